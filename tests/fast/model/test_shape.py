"""What each kind of architecture makes of its header. The engine's own word is in tests/engine/plan."""

from __future__ import annotations

import pytest

from launcher.errors import ProfileError
from launcher.model.shape import Memory, Window, read_shape


def _model(gguf, arch, blocks=6, **more):
    made = gguf().key("general.architecture", "str", arch)
    values = {
        "block_count": blocks,
        "context_length": 4096,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    values.update({name.replace("__", "."): value for name, value in more.items()})
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, list):
            made.array(f"{arch}.{name}", "bool" if isinstance(value[0], bool) else "u32", value)
        else:
            made.key(f"{arch}.{name}", "u32", value)
    return made


def test_plain(write, gguf):
    shape = read_shape(write(_model(gguf, "llama", attention__key_length=32, attention__value_length=24)))
    assert shape.memory is Memory.KV and shape.window == 0 and shape.window_kind is Window.NONE
    layer = shape.layers[0]
    assert (layer.k_width, layer.v_width, layer.cached) == (64, 48, True)  # the lengths win over 64 / 4


def test_heads_divide_the_embedding_without_lengths(write, gguf):
    assert read_shape(write(_model(gguf, "llama"))).layers[0].key_length == 16


def test_kv_heads_default_to_heads(write, gguf):
    shape = read_shape(write(_model(gguf, "gpt2", **{"attention.head_count_kv": None})))
    assert shape.layers[0].kv_heads == 4


@pytest.mark.parametrize(
    ("arch", "more", "sliding"),
    [
        ("gemma2", {}, [1, 0, 1, 0, 1, 0]),
        ("gemma3", {"attention__sliding_window": 512}, [1, 1, 1, 1, 1, 0]),
        ("gemma3", {}, [0] * 6),
        ("gpt-oss", {"attention__sliding_window": 128}, [1, 0, 1, 0, 1, 0]),
        ("cohere2", {"attention__sliding_window": 128}, [1, 1, 1, 0, 1, 1]),
        ("cohere2moe", {"attention__sliding_window": 128}, [0, 1, 1, 1, 0, 1]),
        ("llama4", {}, [1, 1, 1, 0, 1, 1]),
        ("llama4", {"attention__sliding_window": 0}, [0] * 6),
        ("phi3", {"attention__sliding_window": 2048}, [0] * 6),
        ("exaone4", {"attention__sliding_window": 2048}, [0] * 6),
        ("gemma3", {"attention__sliding_window": 512, "attention__sliding_window_pattern": 3}, [1, 1, 0, 1, 1, 0]),
        (
            "gemma3",
            {"attention__sliding_window": 9, "attention__sliding_window_pattern": [True, False, False] + [True] * 3},
            [1, 0, 0, 1, 1, 1],
        ),
        ("mimo2", {"attention__sliding_window": 9, "attention__sliding_window_pattern": [1, 0, 1]}, [1, 0, 1, 0, 0, 0]),
    ],
)  # fmt: skip
def test_which_layers_slide(write, gguf, arch, more, sliding):
    shape = read_shape(write(_model(gguf, arch, **more)))
    assert [int(layer.swa) for layer in shape.layers] == sliding
    assert shape.memory is (Memory.ISWA if any(sliding) else Memory.KV)


def test_windows_that_the_engine_fixes(write, gguf):
    assert read_shape(write(_model(gguf, "llama4"))).window == 8192
    assert read_shape(write(_model(gguf, "llama4"))).window_kind is Window.CHUNKED
    assert read_shape(write(_model(gguf, "smallthinker", attention__sliding_window=64))).window == 4096
    assert read_shape(write(_model(gguf, "gemma2"))).window == 4096


def test_sliding_layers_have_heads_of_their_own_length(write, gguf):
    more = {"sliding_window": 64, "key_length": 32, "key_length_swa": 16, "value_length_swa": 8}
    shape = read_shape(
        write(
            _model(gguf, "gemma4", attention__sliding_window_pattern=[1, 1, 1, 0, 1, 0], attention__shared_kv_layers=2,
                   **{f"attention.{name}": value for name, value in more.items()})
        )
    )  # fmt: skip
    assert [layer.key_length for layer in shape.layers] == [16, 16, 16, 32, 16, 32]
    # the last two have no cache: they read the last full and the last sliding layer that has one
    assert [layer.cached for layer in shape.layers] == [True] * 4 + [False] * 2
    assert [layer.reuses for layer in shape.layers] == [None] * 4 + [2, 3]


def test_an_assistant_reads_its_targets_cache(write, gguf):
    more = {"sliding_window": 64, "key_length_swa": 16, "value_length_swa": 16}
    made = _model(gguf, "gemma4-assistant", **{f"attention.{name}": value for name, value in more.items()})
    made.array("gemma4-assistant.attention.sliding_window_pattern", "u32", [1, 1, 1, 1, 1, 0])
    assert read_shape(write(made)).cached_layers == ()


def test_gemma3n_caches_twenty_layers(write, gguf):
    shape = read_shape(write(_model(gguf, "gemma3n", 30, attention__sliding_window=512)))
    assert sum(layer.cached for layer in shape.layers) == 20
    assert shape.layers[29].reuses == 19 and not shape.layers[29].swa
    assert shape.layers[28].reuses == 18 and shape.layers[28].swa


def test_mla_keys_decide(write, gguf):
    latent = {"attention.key_length": 576, "attention.value_length": 512, "attention.head_count_kv": 1}
    shape = read_shape(
        write(_model(gguf, "deepseek2", attention__key_length_mla=192, attention__value_length_mla=128, **latent))
    )
    assert shape.is_mla and shape.layers[0].k_width == 576
    assert not read_shape(write(_model(gguf, "deepseek2", **latent))).is_mla  # files from before these keys
    # an architecture that does not read them has none
    assert not read_shape(
        write(_model(gguf, "llama", attention__key_length_mla=192, attention__value_length_mla=128))
    ).is_mla


def test_recurrent_where_there_are_no_kv_heads(write, gguf):
    shape = read_shape(write(_model(gguf, "lfm2", attention__head_count_kv=[0, 0, 2, 0, 2, 0], shortconv__l_cache=3)))
    assert shape.memory is Memory.HYBRID
    assert [layer.recurrent for layer in shape.layers] == [True, True, False, True, False, True]
    assert [layer.cached for layer in shape.layers] == [False, False, True, False, True, False]
    assert (shape.recurrent.r, shape.recurrent.s) == (64 * 2, 0)


def test_recurrent_by_interval_or_by_array(write, gguf):
    shape = read_shape(write(_model(gguf, "qwen3next", 8)))
    assert [layer.index for layer in shape.layers if layer.cached] == [3, 7]
    shape = read_shape(write(_model(gguf, "qwen3next", 4, attention__recurrent_layers=[True, False, True, False])))
    assert [layer.index for layer in shape.layers if layer.cached] == [1, 3]


def test_mamba_has_state_and_no_cache(write, gguf):
    more = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.group_count": 1}
    shape = read_shape(write(_model(gguf, "mamba2", **more)))
    assert shape.memory is Memory.RECURRENT and not shape.cached_layers
    assert (shape.recurrent.r, shape.recurrent.s) == (3 * (128 + 2 * 16), 16 * 128)


def test_layers_for_drafting_are_not_in_the_trunk(write, gguf):
    shape = read_shape(write(_model(gguf, "glm4moe", nextn_predict_layers=1)))
    assert [layer.cached for layer in shape.layers] == [True] * 5 + [False]
    assert shape.nextn_layers == 1 and shape.layers[5].nextn


def test_loops_and_routers_make_more_layers_than_blocks(write, gguf):
    assert len(read_shape(write(_model(gguf, "nanbeige", num_loops=3))).layers) == 18
    router = read_shape(write(_model(gguf, "graniteswitch"))).layers[-1]
    assert (router.index, router.kv_heads, router.cached) == (6, 1, True)


def test_a_projector_and_an_adapter_have_no_layers(write, gguf):
    projector = read_shape(write(gguf().key("general.architecture", "str", "clip").tensor("v.blk.0.up", [8])))
    assert projector.kind == "mmproj" and projector.layers == () and projector.tensor_bytes == 32
    adapter = gguf().key("general.architecture", "str", "llama").key("general.type", "str", "adapter")
    assert read_shape(write(adapter)).kind == "adapter"


@pytest.mark.parametrize(
    ("arch", "more", "words"),
    [
        ("llama", {"attention__head_count_kv": [2, 2, 2]}, "has 3 entries; the model has 6 blocks"),
        ("llama", {"block_count": 0}, "block_count is 0"),
        ("llama", {"block_count": 513}, "takes 1 to 512"),
        ("llama", {"block_count": None}, "llama.block_count is missing"),
        ("gemma3n", {}, "sliding_window is missing"),
        ("mimo2", {"attention__sliding_window": 64}, "sliding_window_pattern is missing"),
        ("glm4moe", {"nextn_predict_layers": 7}, "more than the 6 blocks"),
        ("qwen3next", {"full_attention_interval": 0}, "is 0"),
        (
            "deepseek4",
            {
                "attention__sliding_window": 8,
                "attention__indexer__key_length": 8,
                "attention__compress_ratios": [4],
            },
            "must list 6 layers",
        ),
    ],
)  # fmt: skip
def test_faults_in_words(write, gguf, arch, more, words):
    with pytest.raises(ProfileError, match=words):
        read_shape(write(_model(gguf, arch, **more)))


def test_no_architecture(write, gguf):
    with pytest.raises(ProfileError, match="does not say what model it is"):
        read_shape(write(gguf().key("a", "u32", 1)))


def test_a_string_where_a_number_belongs(write, gguf):
    made = gguf().key("general.architecture", "str", "llama").key("llama.block_count", "str", "six")
    with pytest.raises(ProfileError, match="is 'six'; it must be a whole number"):
        read_shape(write(made))
