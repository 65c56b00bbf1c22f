from __future__ import annotations

from pathlib import Path

import pytest

from launcher.plan.fallback import concession
from launcher.profile.load import load_profile
from launcher.profile.schema import Profile


def _profile(tmp_path: Path, kv: str = "") -> Profile:
    file = tmp_path / "p.toml"
    file.write_text(f'[model]\npath = "m.gguf"\n[kv]\n{kv}\n')
    return load_profile(file, (), {"HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("tier", "step"),
    [("f16", "q8_0"), ("q8_0", "q8_0:q4_0"), ("q8_0:q4_0", "q4_0"), ("q4_0", None)],
)
def test_a_tier_goes_down_one_step_and_ends_at_the_coarsest(tmp_path: Path, tier: str, step: str | None) -> None:
    found = concession("tier", _profile(tmp_path, f'tier = "{tier}"'), (), 8192, lambda size: True)
    assert found == ([f"kv.tier={step}"] if step else [])


def test_the_context_becomes_the_largest_that_fits_now(tmp_path: Path) -> None:
    profile = _profile(tmp_path)
    assert concession("context", profile, (), 32768, lambda size: size <= 10_000) == ["context.per_slot=9984"]
    # it seemed to fit before: something smaller is tried all the same
    assert concession("context", profile, (), 8192, lambda size: True) == ["context.per_slot=7936"]
    assert concession("context", profile, (), 8192, lambda size: False) == []
    assert concession("context", profile, (), 256, lambda size: True) == []


def test_residency_needs_the_patch_that_moves_it(tmp_path: Path) -> None:
    profile = _profile(tmp_path)
    assert concession("residency", profile, (), 8192, lambda size: True) == []
    has = ("--kv-residency-mode",)
    assert concession("residency", profile, has, 8192, lambda size: True) == ["kv.residency=cpu"]
    moved = _profile(tmp_path, 'residency = "cpu"')
    assert concession("residency", moved, has, 8192, lambda size: True) == []
