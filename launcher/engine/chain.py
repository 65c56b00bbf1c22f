"""From a choice of patches and a backend to a verified engine in the store.

fetch → check hash → unpack → try every patch → apply → configure → compile → move into place → verify → manifest.
The manifest comes last and by rename: whatever interrupts a build, the store holds only whole engines.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from launcher.engine import compiling, manifest, source, verify, worktree
from launcher.engine.capability import ask_help, parse_help
from launcher.engine.compiling import BuildPlace
from launcher.engine.manifest import Manifest, PatchRecord
from launcher.engine.recipe import OWN_TARGETS, TARGETS, Recipe, cpu_options
from launcher.engine.report import Reporter
from launcher.engine.resolve import Resolved
from launcher.engine.store import Engine, Store
from launcher.errors import BuildError
from launcher.fetch.disk import disk_error
from launcher.paths import Places
from launcher.units import format_bytes

_NEEDS = 1_200 << 20  # source, objects and binaries of a cpu build take 0.7 GB; a full disk is told beforehand
_GPU = ("cuda", "vulkan", "rocm")
_BINARIES = (*TARGETS, *OWN_TARGETS)


@contextmanager
def locked(path: Path, report: Reporter, what: str) -> Iterator[None]:
    """Hold the lock of `path`; says so when somebody else has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report.note(f"another kvlaunch builds {what}: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class Build:
    """One run of the chain. Its fields are what the steps hand on."""

    def __init__(self, wanted: Resolved, places: Places, report: Reporter) -> None:
        self.wanted = wanted
        self.places = places
        self.report = report
        self.store = Store.of(places)
        self.began = time.monotonic()
        name = f"{wanted.pin.name}-{wanted.recipe.backend}{'-dev' if wanted.request.dev else ''}"
        if wanted.request.from_git:
            name += "-git"
        root = places.cache / "trees" / name
        self.place = BuildPlace(root / "src", root / "build", places.logs / f"build-{wanted.key}.log")
        self.environment = compiling.environment(os.environ, root)
        self.notes: list[str] = []

    def run(self) -> Engine:
        self.place.log.unlink(missing_ok=True)
        self._check_space()
        root = self.place.source.parent
        with locked(root.with_name(f".{root.name}.lock"), self.report, f"in {root.name}"):
            self._recover()
            if not self.wanted.request.force and (engine := self.store.find(self.wanted.key)):
                return engine  # the one that a killed build had put aside
            self._prepare_source()
            dropped = set(self.store.dropped_before(self.wanted.recipe.cpu.model))
            if skipped := sorted(dropped & {e.name for e in self.wanted.recipe.cpu.extensions}):
                self.report.note(f"left out, as an earlier build showed: {', '.join(skipped)}")
            while True:
                self._compile(dropped)
                folder = self._install()
                fault = self._verify(folder)
                if fault is None:
                    return self._finish(folder, dropped)
                self._put_back(folder)
                extension = self._suspect(fault, dropped)
                if extension is None:
                    raise BuildError(
                        f"the engine was built, but does not work: {fault}",
                        help=f"It is not used. The build's log: {self.place.log}.",
                    )
                note = f"{fault}: this machine lists {extension} but does not grant it; building without it"
                self.notes.append(f"without {extension}: {fault}")
                self.report.note(note)
                dropped.add(extension)

    def _check_space(self) -> None:
        for folder in (self.places.cache, self.places.engines):
            folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(folder).free
            if free < _NEEDS:
                raise BuildError(
                    f"{format_bytes(free)} free for {folder}, a build takes about {format_bytes(_NEEDS)}",
                    help="`kvlaunch prune` removes what is unused; XDG_CACHE_HOME and XDG_DATA_HOME move it elsewhere.",
                )

    def _recover(self) -> None:
        """What a build that was killed put aside: the build folder while verifying, the engine while replacing it."""
        away = self._away()
        if away.is_dir() and not self.place.build.exists():
            away.rename(self.place.build)
        folder = self.store.root / self.wanted.key
        if self._old(folder).is_dir():
            if (folder / manifest.FILE).is_file():
                shutil.rmtree(self._old(folder))
            else:
                self._put_back(folder)

    def _away(self) -> Path:
        return self.place.build.with_name("build.away")

    def _prepare_source(self) -> None:
        pin, patches = self.wanted.pin, self.wanted.patches
        pristine = source.pristine(pin, self.places, self.report, from_git=self.wanted.request.from_git)
        begin = time.monotonic()
        self.report.stage("patch", f"{len(patches)} patches on {pin.name}" if patches else f"{pin.name}, no patches")
        patched = worktree.patch_all(pristine, patches)
        changed = worktree.sync(pristine, patched, self.place.source)
        self.report.done("patch", time.monotonic() - begin, f"{changed} files written")

    def _compile(self, dropped: Collection[str]) -> None:
        recipe = self.wanted.recipe
        begin = time.monotonic()
        self.report.stage("compile", f"{recipe.backend}, {self._extensions(dropped)}")
        options = dict(recipe.options) | cpu_options(recipe.cpu, dropped)
        options |= {"KVLAUNCH_UNITY": "ON" if recipe.unity else "OFF"}
        options |= {"LLAMA_BUILD_NUMBER": str(self.wanted.pin.number), "LLAMA_BUILD_COMMIT": self.wanted.commit}
        jobs = self.wanted.request.jobs or compiling.default_jobs()
        compiling.configure(self.place, options, self.environment)
        steps = compiling.compile_targets(self.place, _BINARIES, self.environment, jobs, self.report)
        cache = compiling.launcher(self.environment)
        note = f"{steps} steps" + (f" with {Path(cache).name}" if cache else "")
        self.report.done("compile", time.monotonic() - begin, note)

    def _extensions(self, dropped: Collection[str]) -> str:
        kept = [e.name for e in self.wanted.recipe.cpu.extensions if e.name not in dropped]
        return " ".join(reversed(kept)) or self.wanted.recipe.cpu.arch

    def _install(self) -> Path:
        """The binaries to where they will stay, by rename. An engine that is replaced waits beside, for a failure."""
        folder = self.store.root / self.wanted.key
        fresh = self.store.root / f".{self.wanted.key}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            (fresh / "bin").mkdir(parents=True)
            for target in _BINARIES:
                shutil.copy2(self.place.build / "bin" / target, fresh / "bin" / target)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise disk_error(error, self.store.root) from error
        if folder.exists():
            shutil.rmtree(self._old(folder), ignore_errors=True)
            folder.rename(self._old(folder))
        fresh.rename(folder)
        return folder

    @staticmethod
    def _old(folder: Path) -> Path:
        return folder.with_name(f".{folder.name}.old")

    def _put_back(self, folder: Path) -> None:
        """After a failure: the engine that was there before is there again."""
        shutil.rmtree(folder, ignore_errors=True)
        if (old := self._old(folder)).is_dir():
            old.rename(folder)

    def _verify(self, folder: Path) -> verify.Fault | None:
        """With the build folder out of the way: what still reaches into it fails here, not at the user's."""
        begin = time.monotonic()
        self.report.stage("verify", f"inference with {len(verify.CASES)} weight types")
        self.place.build.rename(self._away())
        try:
            fault = self._leaks(folder) or verify.verify(
                folder / "bin",
                gpu=self.wanted.recipe.backend in _GPU,
                version=f"(build {self.wanted.pin.number}, commit {self.wanted.commit})",
                on_case=lambda number, total, name: self.report.progress(number / total, name),
            )
        except BaseException:
            self._put_back(folder)
            raise
        finally:
            self._away().rename(self.place.build)
        if fault is None:
            self.report.done("verify", time.monotonic() - begin, "completions, errors, version")
        return fault

    def _leaks(self, folder: Path) -> verify.Fault | None:
        """A build path inside a binary: a store that can't be moved, and a user's name in a bug report."""
        root = os.fsencode(self.place.source.parent)
        for target in _BINARIES:
            if root in (folder / "bin" / target).read_bytes():
                return verify.Fault("relocation", f"{target} carries the path of its build folder")
        return None

    def _suspect(self, fault: verify.Fault, dropped: Collection[str]) -> str | None:
        if not fault.illegal_instruction:
            return None
        return next((e.name for e in self.wanted.recipe.cpu.extensions if e.name not in dropped), None)

    def _finish(self, folder: Path, dropped: Collection[str]) -> Engine:
        text = ask_help(folder / "bin" / "llama-server")
        (folder / "help.txt").write_text(text, encoding="utf-8")
        record = self._manifest(text, dropped)
        try:
            manifest.write(record, folder)
        except OSError as error:
            self._put_back(folder)
            raise disk_error(error, self.store.root) from error
        shutil.rmtree(self._old(folder), ignore_errors=True)
        return Engine(folder, self.wanted.key, record)

    def _manifest(self, help_text: str, dropped: Collection[str]) -> Manifest:
        wanted, recipe = self.wanted, self.wanted.recipe
        kept = [e for e in recipe.cpu.extensions if e.name not in dropped]
        capability = parse_help(help_text, "its help")
        cache_file = (self.place.build / "CMakeCache.txt").read_bytes()
        return Manifest(
            key=wanted.key,
            pin=wanted.pin.name,
            number=wanted.pin.number,
            source="git" if wanted.request.from_git else wanted.pin.sha256,
            backend=recipe.backend,
            patches=tuple(PatchRecord(p.id, p.name, p.technique, p.options, p.digest) for p in wanted.patches),
            options=dict(recipe.options) | cpu_options(recipe.cpu, dropped),
            compiler=recipe.compiler,
            arch=recipe.cpu.arch,
            cpu=recipe.cpu.model,
            extensions=tuple(e.name for e in kept),
            features=_features(recipe, kept),
            dropped=tuple(sorted(set(dropped) & {e.name for e in recipe.cpu.extensions})),
            unity=recipe.unity,
            engine_options=tuple(sorted(capability.options)),
            cache_types=capability.cache_types,
            verified=tuple(verify.CASES),
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self.began, 1),
            cmake_cache=hashlib.sha256(cache_file).hexdigest(),
            launcher=Path(compiling.launcher(self.environment) or "").name,
            notes=tuple(self.notes),
        )


def _features(recipe: Recipe, kept: Sequence[object]) -> tuple[str, ...]:
    """The CPU flags that the engine needs: of its extensions, or everything where the compiler looked by itself."""
    if recipe.options.get("GGML_NATIVE") == "ON":
        return tuple(sorted(recipe.cpu.flags))
    return tuple(dict.fromkeys(flag for e in recipe.cpu.extensions if e in kept for flag in e.flags))
