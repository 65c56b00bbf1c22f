"""What an engine is built with: the backend's cmake options, the CPU's extensions, the compiler, and the key of it all.

The key is known before anything is fetched or compiled, so that a finished engine is found in milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli

from launcher.engine.pins import Pin
from launcher.engine.series import Patch
from launcher.errors import BuildError, UsageError
from launcher.machine.cpu import read_cpu
from launcher.machine.tree import Tree
from launcher.paths import shipped

_COMPILER_VARIABLES = {"cc": "CC", "c++": "CXX"}

TARGETS = ("llama-server", "ggml-rpc-server", "llama-fit-params")
OWN_TARGETS = ("kvlaunch-bandwidth",)  # ours, added by the glue: build/bandwidth
_LAYOUT = 1  # of an engine's folder and manifest: raise it to make every engine anew


class CompilerMissing(BuildError):
    """Nothing can be built here; an engine that was built elsewhere can still be used."""


@dataclass(frozen=True, slots=True)
class Extension:
    """One instruction set extension: the CPU flags that it takes, and the options that switch it on."""

    name: str
    flags: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cpu:
    """The CPU that an engine is built for. `extensions` stand in the order in which they would be given up."""

    arch: str
    model: str
    flags: frozenset[str]
    extensions: tuple[Extension, ...]

    @property
    def identity(self) -> str:
        """Which boxes share what was learnt about a CPU."""
        return f"{self.arch} {self.model}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that can change the result, but where it is built."""

    backend: str
    options: Mapping[str, str]
    compiler: str
    cpu: Cpu
    unity: bool


def read_recipe(
    backend: str, *, flags: Collection[str] | None = None, unity: bool = True, environ: Mapping[str, str] | None = None
) -> Recipe:
    """The recipe for this machine. `flags` instead of the CPU's own are for tests and for building for another box."""
    table = tomli.loads((shipped("build") / "backends.toml").read_text("utf-8"))
    backends = [name for name in table if name not in ("common", "needs", "x86")]
    if backend not in backends:
        raise UsageError(f"no backend {backend!r}", help=f"Known: {', '.join(backends)}.")
    env = os.environ if environ is None else environ
    options = {name: _cmake(value) for name, value in (table["common"] | table[backend]).items()}
    cpu = _cpu(table["x86"], flags)
    if not cpu.extensions and cpu.arch != "x86_64":
        options["GGML_NATIVE"] = "ON"  # elsewhere the compiler's own detection is all there is
    return Recipe(backend, options, compiler_identity(table["needs"][backend], env), cpu, unity)


def _cmake(value: object) -> str:
    return {True: "ON", False: "OFF"}[value] if isinstance(value, bool) else str(value)


def _cpu(table: Sequence[Mapping[str, object]], flags: Collection[str] | None) -> Cpu:
    found = read_cpu(Tree())
    arch = found.arch or os.uname().machine
    known = frozenset(found.features if flags is None else flags)
    extensions: list[Extension] = []
    if arch in ("x86_64", "amd64"):
        all_of = [
            Extension(str(e["name"]), tuple(e["flags"]), tuple(e["options"]))  # type: ignore[arg-type]
            for e in table
        ]
        extensions = [e for e in all_of if known.issuperset(e.flags)]
    return Cpu(arch, found.model or "unknown CPU", known, tuple(extensions))


def cpu_options(cpu: Cpu, dropped: Collection[str], table_file: Path | None = None) -> dict[str, str]:
    """Every extension's option, on or off: nothing is left to detection."""
    if cpu.arch not in ("x86_64", "amd64"):
        return {}
    table = tomli.loads((table_file or shipped("build") / "backends.toml").read_text("utf-8"))["x86"]
    options = {option: "OFF" for entry in table for option in entry["options"]}
    kept = [e for e in cpu.extensions if e.name not in dropped]
    return options | {option: "ON" for e in kept for option in e.options}


def compiler_identity(needs: Mapping[str, object], env: Mapping[str, str]) -> str:
    """The compilers' own version lines. Raises CompilerMissing, which names the package to install."""
    lines = []
    programs = needs["programs"]
    assert isinstance(programs, list)
    for program in programs:
        # cmake looks for these names first; gcc and clang both answer to them
        command = env.get(_COMPILER_VARIABLES.get(program, ""), "").split() or [program]
        path = shutil.which(command[0], path=env.get("PATH"))
        if path is None:
            raise CompilerMissing(
                f"no {command[0]} here: the engine is compiled on this machine",
                help=f"Install {needs['packages']} (Debian: apt install …).",
            )
        done = subprocess.run([path, *command[1:], "--version"], capture_output=True, text=True, check=False)
        lines.append(next((line for line in done.stdout.splitlines() if line.strip()), program))
    return "; ".join(lines)


def engine_key(pin: Pin, from_git: bool, patches: Sequence[Patch], recipe: Recipe) -> str:
    """16 hex digits of the hash of all that can change the result."""
    glue = [*sorted((shipped("build") / "cmake").glob("*.cmake")), *sorted((shipped("build") / "bandwidth").iterdir())]
    parts = {
        "layout": _LAYOUT,
        "source": f"git {pin.git.url} {pin.git.tag}" if from_git and pin.git else pin.sha256,
        "patches": [[patch.id, patch.digest] for patch in patches],
        "backend": recipe.backend,
        "options": sorted(recipe.options.items()),
        "extensions": [e.name for e in recipe.cpu.extensions],
        "native": recipe.cpu.identity if recipe.options.get("GGML_NATIVE") == "ON" else "",
        "arch": recipe.cpu.arch,
        "compiler": recipe.compiler,
        "glue": [hashlib.sha256(file.read_bytes()).hexdigest() for file in glue],
        "unity": recipe.unity,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
