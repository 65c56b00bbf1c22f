"""Every patch compiles with nothing but what it depends on, and brings its own options and no others.

A build a patch, one after the other in one tree, without optimization: some minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from launcher.engine.series import read_series
from launcher.paths import Places

from .tree import UNOPTIMIZED, build, closure

pytestmark = [
    pytest.mark.skipif(not os.environ.get("KVLAUNCH_TEST_SLOW"), reason="compiles: set KVLAUNCH_TEST_SLOW=1"),
    pytest.mark.timeout(3000),
]


def options(server: Path) -> set[str]:
    """The long spellings in its help; the switch that turns one off again is not counted."""
    text = subprocess.run([server, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
    return {name for name in found if not (name.startswith("--no-") and f"--{name[5:]}" in found)}


@pytest.mark.parametrize("patch", [patch.id for patch in read_series()])
def test_a_patch_compiles_alone(patch: str, engine_places: Places, reference_binary: Path) -> None:
    chosen = closure([patch])
    begin = time.monotonic()
    server = build("selections", chosen, ["llama-server"], engine_places, UNOPTIMIZED) / "llama-server"
    promised = {option for one in chosen for option in one.options}
    assert options(server) - options(reference_binary) == promised
    print(f"{'+'.join(one.id for one in chosen)}: {time.monotonic() - begin:.0f} s")
