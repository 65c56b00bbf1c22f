from __future__ import annotations

from launcher.supervise.lines import Facts
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
