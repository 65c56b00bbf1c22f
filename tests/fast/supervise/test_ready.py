from __future__ import annotations

from launcher.supervise.lines import Facts, Line
from launcher.supervise.ready import active, compare
from launcher.supervise.spec import Expected

PROPS = {"total_slots": 2, "model_alias": "foo", "default_generation_settings": {"n_ctx": 2048}}
SLOTS = [{"id": 0, "n_ctx": 2048}, {"id": 1, "n_ctx": 2048}]
PLAN = Expected(total=2048, per_slot=2048, slots=2, unified=True, alias="foo")


def facts(**more: object) -> Facts:
    return Facts(context={"n_ctx": "2048", "kv_unified": "true"}, **more)  # type: ignore[arg-type]


def test_as_planned() -> None:
    assert compare(PLAN, PROPS, SLOTS, facts(), {}).shortfalls == ()


def test_every_difference_is_named() -> None:
    props = {"total_slots": 4, "model_alias": "bar"}
    slots = [{"id": 0, "n_ctx": 512}, {"id": 1, "n_ctx": 768}]
    known = Facts(context={"n_ctx": "4096", "kv_unified": "false"})
    assert compare(PLAN, props, slots, known, {}).shortfalls == (
        "slots: planned 2, the engine has 4",
        "alias: planned foo, the engine has bar",
        "context per slot: planned 2048, the engine has 512, 768",
        "context: planned 2048, the engine has 4096",
        "unified cache: planned True, the engine has False",
    )


def test_what_the_engine_does_not_say_is_not_held_against_it() -> None:
    assert compare(PLAN, {}, [], Facts(), {}).shortfalls == ()
    assert compare(Expected(), PROPS, SLOTS, facts(), {}).shortfalls == ()


def test_a_device_in_the_plan_and_nothing_on_it() -> None:
    plan = Expected(devices=("CUDA0",), gpu_layers=31)
    said = facts(buffers={("weights", "host"): 1}, offloaded=31, layers=31)  # it says so without a GPU, too
    assert compare(plan, PROPS, SLOTS, said, {}).gpu_missing
    there = facts(buffers={("weights", "CUDA0"): 1}, offloaded=20, layers=31)
    verdict = compare(plan, PROPS, SLOTS, there, {})
    assert not verdict.gpu_missing
    assert verdict.shortfalls == ("layers on the device: planned 31, the engine has 20",)


def test_requested_and_active() -> None:
    plan = Expected(techniques={"affinity": True, "flash_attention": True, "neo": False})
    known = facts(flash_attention=True)
    shown = {"affinity": False}
    assert active(plan, shown, known) == {"affinity": False, "flash_attention": True, "neo": None}
    assert compare(plan, PROPS, SLOTS, known, shown).shortfalls == ("affinity: asked for, but not active",)


def test_what_the_engine_takes_and_then_does_without_is_a_shortfall() -> None:
    said = Facts()
    said.learn(Line("warn", "ctx_shift is not supported by this context, it will be disabled"))
    told = {"context_shift": True, "cache_type_k": "q8_0"}
    verdict = compare(Expected(told=told), {}, [], said, {})
    assert [words.partition(":")[0] for words in verdict.shortfalls] == ["context.shift"]
    said.learn(Line("info", "llama_kv_cache: size = 45.00 MiB, K (f16): 22.50 MiB, V (f16): 22.50 MiB"))
    verdict = compare(Expected(told=told), {}, [], said, {})
    assert any("kv.tier" in words and "f16" in words for words in verdict.shortfalls)
    assert compare(Expected(told={"context_shift": False}), {}, [], said, {}).shortfalls == ()


def test_only_the_lines_of_the_start_are_kept() -> None:
    said = Facts()
    for number in range(5000):
        said.learn(Line("info", f"load_tensors: {number}"))
    assert len(said.start) == 3000
    said.start.clear()
    said.learn(Line("info", "listening on http://127.0.0.1:1"))
    said.learn(Line("info", "a request's line"))
    assert said.start == ["listening on http://127.0.0.1:1"]
