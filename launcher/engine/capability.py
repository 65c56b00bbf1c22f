"""What one engine can do, read from its own `--help`: options and their spellings, cache types, patches.

Where the help comes from, first that applies (contract.md): `--engine-help FILE`; a given binary's own help (kept by
inode, size and time); the manifest of the built engine; the committed record of the pin (`build/capability/`).
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from launcher.engine.series import Choice, read_series, select
from launcher.errors import EngineRefused, ProfileError
from launcher.paths import shipped

_NAME = re.compile(r"--?[A-Za-z][A-Za-z0-9-]*")
_ENV = re.compile(r"\(env: (\w+)\)")
_ALLOWED = re.compile(r"allowed values: ([\w, ]+?)(?: \(|$)")
_BRACES = re.compile(r"[\[{<]([\w.+-]+(?:[|,][\w.+-]+)+)[\]}>]")
_HELP_SECONDS = 20.0
_HELP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class HelpOption:
    """One entry of the help.

    value    what its value is called; empty: it takes none
    env      the variable that says the same; empty: none does
    choices  the values that it takes, where the help lists them
    removed  the engine knows the name only to refuse it
    """

    spellings: tuple[str, ...]
    value: str = ""
    env: str = ""
    choices: tuple[str, ...] = ()
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Capability:
    """`patches` is None where they can't be known (a given binary); `source` says where all this was read."""

    entries: tuple[HelpOption, ...]
    patches: tuple[str, ...] | None
    source: str
    _by_name: dict[str, HelpOption] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {name: entry for entry in self.entries for name in entry.spellings}
        object.__setattr__(self, "_by_name", by_name)

    @property
    def options(self) -> frozenset[str]:
        """Every spelling that works."""
        return frozenset(name for name, entry in self._by_name.items() if not entry.removed)

    def option(self, name: str) -> HelpOption | None:
        """The entry of one spelling, also of a removed one."""
        return self._by_name.get(name)

    def has(self, name: str) -> bool:
        """Whether this spelling works."""
        entry = self._by_name.get(name)
        return entry is not None and not entry.removed

    @property
    def cache_types(self) -> tuple[str, ...]:
        """The types that K can be stored as; empty where the help doesn't list them."""
        entry = self._by_name.get("--cache-type-k")
        return entry.choices if entry else ()


def parse_help(text: str, source: str, patches: Sequence[str] | None = None) -> Capability:
    """Read a `--help` text. Raises ProfileError where it lists no option at all."""
    entries: list[HelpOption] = []
    spellings: tuple[str, ...] = ()
    value = ""
    words: list[str] = []

    def close() -> None:
        if spellings:
            body = " ".join(words)
            env = _ENV.search(body)
            removed = "argument has been removed" in body
            entries.append(HelpOption(spellings, value, env[1] if env else "", _choices(value, body), removed))

    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            close()
            # names and value stand left of the description: two blanks apart, but for those after a short name's comma
            head, _, rest = re.sub(r",\s+", ", ", line).partition("  ")
            names = head.split(", ")
            last, _, value = names[-1].strip().partition(" ")
            spellings = tuple(name for name in (*names[:-1], last) if _NAME.fullmatch(name))
            words = [rest.strip()] if rest.strip() else []
        elif line.startswith(" ") and spellings:
            words.append(line.strip())
    close()
    if not entries:
        raise ProfileError(f"{source} lists no option", help="give the text that `llama-server --help` prints")
    return Capability(tuple(entries), tuple(patches) if patches is not None else None, source)


def _choices(value: str, body: str) -> tuple[str, ...]:
    """The values an option takes: `allowed values: f32, f16`, or `{none,linear,yarn}` and `[on|off|auto]`."""
    if allowed := _ALLOWED.search(body):
        return tuple(name.strip() for name in allowed[1].split(","))
    braces = _BRACES.fullmatch(value)
    return tuple(re.split(r"[|,]", braces[1])) if braces and ".." not in value else ()


def from_help_file(path: Path) -> Capability:
    """`--engine-help FILE`. Raises ProfileError."""
    try:
        with path.open("rb") as file:
            # bounded: a device never ends, and no help is that long
            text = file.read(_HELP_BYTES).decode("utf-8", "replace")
        return parse_help(text, str(path))
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error


def from_binary(binary: Path, cache: Path) -> Capability:
    """A given executable's own help, asked once and kept by inode, size and time. Raises EngineRefused (13)."""
    try:
        stat = binary.stat()
    except OSError as error:
        raise ProfileError(f"engine.binary: {binary}: {error.strerror}") from error
    stamp = f"{stat.st_ino:x}-{stat.st_size:x}-{stat.st_mtime_ns:x}"
    kept = cache / "capability" / f"{stamp}.json"
    try:
        text = json.loads(kept.read_text())["help"]
    except (OSError, ValueError, KeyError, TypeError):
        text = ask_help(binary)
        with contextlib.suppress(OSError):  # a full disk: it is asked again the next time
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps({"binary": str(binary), "help": text}))
    try:
        return parse_help(text, str(binary))
    except ProfileError as error:
        words = f"engine.binary: {binary} is no llama-server: its --help lists no option"
        raise ProfileError(words, help="name a llama-server, or a llamafile that carries one") from error


def ask_help(binary: Path) -> str:
    """Run `binary --help`. Raises EngineRefused (13) in words where it can't be run."""
    said = ""
    for arguments in (("--help",), ("--server", "--help")):  # a llamafile is a server only when told so
        try:
            done = subprocess.run(
                [binary, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_HELP_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            words = getattr(error, "strerror", None) or f"no end after {_HELP_SECONDS:g} s"
            raise EngineRefused(f"{binary} --help: {words}", help="is it an executable for this machine?") from error
        if done.returncode < 0:
            raise EngineRefused(
                f"{binary} --help died by signal {-done.returncode}", help="it is not built for this CPU"
            )
        if "--ctx-size" in done.stdout:
            return done.stdout
        said = said or done.stdout
    return said


def of_pin(choice: Choice = "default") -> Capability:
    """The committed record of the pin with the chosen patches: what a build will be able to do."""
    series = read_series()
    chosen = select(series, choice)
    absent = {option for patch in series if patch not in chosen for option in patch.options}
    present = tuple(entry for entry in read_record() if not absent.intersection(entry.spellings))
    return Capability(present, tuple(patch.id for patch in chosen), "the record of the pin")


def read_record() -> tuple[HelpOption, ...]:
    """`build/capability/options.json`: the facts of the help of the pin with the whole series."""
    data = json.loads((shipped("build") / "capability" / "options.json").read_text("utf-8"))
    return tuple(
        HelpOption(
            tuple(entry["spellings"]),
            entry.get("value", ""),
            entry.get("env", ""),
            tuple(entry.get("choices", ())),
            entry.get("removed", False),
        )
        for entry in data["options"]
    )


def write_record(capability: Capability, path: Path) -> None:
    """Write that file anew: after a pin bump or a new option (tests/engine/engine/test_capability.py says when)."""
    options = [
        {key: value for key, value in asdict(entry).items() if value or key == "spellings"}
        for entry in capability.entries
    ]
    lines = ",\n".join("  " + json.dumps(option) for option in options)
    path.write_text(f'{{"schema": 1, "options": [\n{lines}\n]}}\n', "utf-8")
