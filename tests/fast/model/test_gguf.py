"""The header reader: what it keeps, what it steps over, and every way in which a file can be wrong."""

from __future__ import annotations

import os
import random
import resource
import struct
import time
from pathlib import Path

import pytest

from launcher.errors import ProfileError
from launcher.model.gguf import Skipped, read_header
from launcher.model.shape import read_shape


def test_reads_keys_arrays_and_tensors(write, tiny):
    header = read_header(write(tiny()))
    assert header.version == 3
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["tokenizer.ggml.tokens"] == Skipped(3)
    assert header.metadata["tokenizer.ggml.scores"].tolist() == [0.0, 1.0, 2.0]
    first, *_, last = header.tensors
    assert (first.name, first.type, first.dims, first.size, first.layer) == (
        "token_embd.weight",
        "f32",
        (64, 3),
        768,
        None,
    )
    assert header.tensors[1].layer == 0
    assert last.offset + last.size == header.size  # the last tensor ends with the file


def test_reads_version_2(write, tiny):
    made = tiny()
    made.version = 2
    assert read_header(write(made)).version == 2


def test_every_number_type(write, gguf):
    made = gguf().key("general.architecture", "str", "llama")
    values = {"u8": 200, "i8": -3, "u16": 60000, "i16": -9, "u32": 1 << 31, "i32": -7, "bool": True, "u64": 1 << 60}
    for kind, value in values.items():
        made.key(f"x.{kind}", kind, value)
        made.array(f"a.{kind}", kind, [value, value])
    metadata = read_header(write(made)).metadata
    for kind, value in values.items():
        assert metadata[f"x.{kind}"] == value
        assert list(metadata[f"a.{kind}"]) == [value, value]


def test_alignment_moves_the_data(write, gguf):
    made = gguf().key("general.architecture", "str", "llama").key("general.alignment", "u32", 256)
    made.alignment = 256
    made.tensor("a", [1]).tensor("b", [1])
    header = read_header(write(made))
    assert header.data % 256 == 0
    assert header.tensors[1].offset - header.tensors[0].offset == 256


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is empty"),
        (b"\0" * 600, "begins with zeros"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"  <html lang='en'>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git-lfs pointer"),
        (struct.pack("<Q", 90) + b'{"a":{"dtype":"F32"}}' + b" " * 200, "safetensors"),
        (b'{"error":"not found"}', "JSON"),
        (b"\x7fELF" + b"\0" * 60, "no llamafile"),
        (b"tjgg" + b"\0" * 60, "before GGUF"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"hello world", "does not begin with GGUF but with 'hell'"),
        (b"\xde\xad\xbe\xef", "de ad be ef"),
    ],
)
def test_says_what_a_wrong_file_is(write, body, words):
    with pytest.raises(ProfileError, match=words) as caught:
        read_header(write(body))
    assert caught.value.code == 10
    assert caught.value.help


@pytest.mark.parametrize(
    ("version", "words"),
    [(1, "version 1"), (4, "version 4"), (9, "reads versions 2 and 3"), (3 << 24, "big-endian"), (0, "version 0")],
)
def test_refuses_other_versions(write, tiny, version, words):
    made = tiny()
    made.version = version
    with pytest.raises(ProfileError, match=words):
        read_header(write(made))


def test_names_the_tensor_that_is_cut(write, tiny):
    body = tiny().bytes()
    with pytest.raises(ProfileError, match=r"cut short: tensor output.weight ends at \d+, the file at \d+ \(100 bytes"):
        read_header(write(body[:-100]))


def test_says_where_a_header_is_cut(write, tiny):
    body = tiny().header()
    # at every length it is a fault in words, and never anything else
    for length in range(4, len(body) - 1, 7):
        with pytest.raises(ProfileError, match=r"ends in the middle|claims \d+|does not begin|cut short"):
            read_header(write(body[:length]))


def _claims(gguf, tiny):
    absurd = 1 << 60
    many = gguf().key("general.architecture", "str", "llama")
    many.key_count = absurd
    yield many
    tensors = tiny()
    tensors.tensor_count = absurd
    yield tensors
    yield gguf().array("a", "u8", [1], count=absurd)
    yield gguf().array("a", "str", ["x"], count=absurd)
    yield gguf().array("a", "u64", [1], count=1 << 61)  # times 8 it wraps to 0
    yield gguf().raw(struct.pack("<Q", absurd) + b"key")
    yield gguf().key("general.architecture", "str", "llama").tensor("t", [1 << 40, 1 << 40], size=4)
    yield gguf().key("general.architecture", "str", "llama").tensor("t", [absurd], size=4)


def test_absurd_claims_fail_at_once_in_constant_memory(write, gguf, tiny):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, made in enumerate(_claims(gguf, tiny)):
        began = time.process_time()
        with pytest.raises(ProfileError):
            read_header(write(made, f"{number}.gguf"))
        assert time.process_time() - began < 0.2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.key("llama.block_count", "u32", 1), "twice"),
        (lambda m: m.tensor("output.weight", [64, 3]), "twice"),
        (lambda m: m.tensor("x" * 64, [1]), "63 letters"),
        (lambda m: m.tensor("x", [1, 1, 1, 1, 1]), "5 dimensions"),
        (lambda m: m.tensor("x", [64], kind=77), "storage type 77"),
        (lambda m: m.tensor("x", [33], kind=2, size=18), "no multiple of 32"),
        (lambda m: m.key("general.alignment", "u32", 24), "power of two"),
        (lambda m: m.raw(m.text("k") + struct.pack("<I", 77)), "type 77"),
        (lambda m: m.raw(m.text("k") + struct.pack("<IIQ", 9, 9, 0)), "array of type 9"),
        (lambda m: m.raw(m.text("") + struct.pack("<IB", 0, 1)), "no name"),
    ],
)
def test_refuses_what_the_engine_would(write, tiny, change, words):
    made = tiny()
    change(made)
    with pytest.raises(ProfileError, match=words):
        read_header(write(made))


def test_a_gap_between_tensors_is_a_fault(write, tiny):
    made = tiny()
    made.size += 32
    made.tensor("late", [1])
    with pytest.raises(ProfileError, match="tensor late lies at offset"):
        read_header(write(made))


def test_names_are_shown_and_not_obeyed(write, tiny):
    made = tiny().tensor("a\x1b[31m\n", [33], kind=2, size=18)
    with pytest.raises(ProfileError) as caught:
        read_header(write(made))
    assert "\x1b" not in caught.value.message and "\n" not in caught.value.message


def test_missing_folders_pipes_and_dangling_links(tmp_path: Path):
    with pytest.raises(ProfileError, match="no such file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ProfileError, match="is a folder"):
        read_header(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProfileError, match="not a plain file"):
        read_header(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(ProfileError, match="a link to a file that is gone"):
        read_header(tmp_path / "link")
    with pytest.raises(ProfileError, match="cannot be read"):
        read_header(tmp_path / "a\0b")


def test_a_large_vocabulary_is_read_in_half_a_second(write, tiny):
    made = tiny()
    made.keys = [key for key in made.keys if b"tokenizer" not in key]
    made.array("tokenizer.ggml.tokens", "str", [f"token{n:09d}" for n in range(262_144)])
    made.array("tokenizer.ggml.merges", "str", [f"left{n} right{n}" for n in range(50_000)])
    made.array("tokenizer.ggml.scores", "f32", [0.5] * 262_144)
    path = write(made)
    began = time.process_time()
    header = read_header(path)
    assert time.process_time() - began < 0.5
    assert header.metadata["tokenizer.ggml.tokens"] == Skipped(262_144)
    assert len(header.metadata["tokenizer.ggml.scores"]) == 262_144


def test_64_mib_of_strings_are_read_in_half_a_second(write, tiny):
    made, count = tiny(), 2_000_000
    merge = made.text("left1234567 right1234567")
    made.raw(made.text("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, count) + merge * count)
    path = write(made)
    assert path.stat().st_size > 60 << 20
    began = time.process_time()
    header = read_header(path)
    assert time.process_time() - began < 0.5
    assert header.metadata["tokenizer.ggml.merges"] == Skipped(count)


def test_a_very_long_string_is_stepped_over(write, tiny):
    made = tiny().key("tokenizer.huggingface.json", "str", "x" * (3 << 20)).key("after", "u32", 7)
    header = read_header(write(made))
    assert header.metadata["tokenizer.huggingface.json"] == Skipped(3 << 20)
    assert header.metadata["after"] == 7


# 2,000 in the fast suite; KVLAUNCH_FUZZ=20000 for the whole run
_MUTATIONS = int(os.environ.get("KVLAUNCH_FUZZ", "2000"))


def _mutated(body: bytes, dice: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(changed))
        kind = dice.randrange(6)
        if kind == 0:
            changed[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            changed[at : at + 8] = struct.pack("<Q", dice.choice([0, 1, 255, 1 << 31, 1 << 60, (1 << 64) - 1]))
        elif kind == 2:
            changed[at : at + 4] = struct.pack("<I", dice.choice([0, 3, 7, 8, 9, 12, 13, 1 << 31]))
        elif kind == 3:
            del changed[at : at + dice.randint(1, 64)]
        elif kind == 4:
            changed[at:at] = bytes(dice.randrange(256) for _ in range(dice.randint(1, 16)))
        else:
            changed[at] = dice.randrange(256)
        if not changed:
            return b""
    return bytes(changed)


def test_mutated_headers_are_shapes_or_faults_in_words(tmp_path: Path, tiny, gguf):
    seeds = [tiny().bytes()]
    swa = tiny().key("llama.attention.sliding_window", "u32", 64).array("llama.rope.sections", "i32", [1, 2, 3])
    seeds.append(swa.bytes())
    for arch in ("gemma3", "gemma4", "deepseek4", "qwen3next", "lfm2", "mamba", "glm-dsa", "llama4", "nanbeige"):
        made = gguf().key("general.architecture", "str", arch)
        for name in (
            "block_count",
            "context_length",
            "embedding_length",
            "attention.head_count",
            "attention.kv_lora_rank",
        ):
            made.key(f"{arch}.{name}", "u32", 8)
        for name in ("sliding_window", "indexer.key_length", "indexer.top_k", "shared_kv_layers", "key_length_mla"):
            made.key(f"{arch}.attention.{name}", "u32", 4)
        made.array(f"{arch}.attention.sliding_window_pattern", "bool", [True, False] * 4)
        made.array(f"{arch}.attention.compress_ratios", "u32", [4, 128] * 4)
        made.array(f"{arch}.attention.head_count_kv", "u32", [0, 2] * 4)
        made.key(f"{arch}.shortconv.l_cache", "u32", 3).key(f"{arch}.num_loops", "u32", 2)
        seeds.append(made.bytes())
    dice = random.Random(20)
    path = tmp_path / "fuzz.gguf"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    good = 0
    for number in range(_MUTATIONS):
        body = _mutated(dice.choice(seeds), dice)
        path.write_bytes(body)
        began = time.process_time()
        try:
            read_shape(path)
            good += 1
        except ProfileError as fault:
            assert fault.code == 10 and fault.message
        assert time.process_time() - began < 1.0, f"mutation {number} took too long"
    assert good > _MUTATIONS // 50  # it does get through the header, into the shapes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
