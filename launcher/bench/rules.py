"""The real engine as the oracle of `check`: valid profiles with 1-3 mutations, each checked and then really started.

A profile is a miss where the engine refuses, dies, or comes up with something else than was asked, and `check` said
nothing on a key of that kind. It is a false alarm where `check` announced that, and the engine did as asked.
What a start cannot show (answers, crashes under load, kvlaunch's own policy) is not counted either way.
"""

from __future__ import annotations

import math
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.bench.instance import free_port
from launcher.bench.record import check as compared
from launcher.bench.record import row
from launcher.bench.starts import Start, start
from launcher.diagnostic import Diagnostic, Severity
from launcher.engine.capability import Capability, ask_help, parse_help
from launcher.engine.options import OPTIONS, spell
from launcher.errors import ProfileError
from launcher.machine.probe import probe
from launcher.machine.types import Machine
from launcher.model.shape import ModelShape, read_shape
from launcher.plan.context import pad
from launcher.plan.plan import Plan, make_plan
from launcher.profile.load import load_profile
from launcher.profile.schema import Profile
from launcher.profile.tier import CACHE_TYPES
from launcher.rules import check
from launcher.rules.active import Seen, inactive
from launcher.rules.book import RULES
from launcher.rules.files import look
from launcher.rules.rule import Act

_QUICK, _FULL = 150, 5100  # draws; a few are skipped
_LARGEST_CACHE = 512 << 20  # a start must not fill the memory of the box that runs the bench
_SHOWN_MISSES = 40
_LOADED = "model loaded"  # tools/server/server.cpp:498

UPSTREAM_TYPES = tuple(name for name in CACHE_TYPES if not name.startswith("turbo"))

# Values that the schema takes. What stands here decides what the figures are about: every key, and its edges.
MUTATIONS: Mapping[str, tuple[str, ...]] = {
    "context.per_slot": ("2", "64", "100", "255", "256", "257", "513", "1000", '"1k"', '"4k"', "20000"),
    "context.total": ("256", "300", "512", "1000", "2048", '"8k"'),
    "context.slots": ("1", "2", "3", "4", "5", "7", "8", "33", "64", "255", "256", "257", "1000"),
    "context.unified": ("true", "false"),
    "context.shift": ("true", "false"),
    "context.keep": ("0", "16", "-1", "250", "4096"),
    "context.rope": (
        '{ scaling = "yarn", factor = 2.0 }', '{ scaling = "linear", factor = 2.0 }',
        '{ scaling = "none", factor = 2.0 }', "{ factor = 4.0 }", "{ factor = 0.5 }", '{ scaling = "yarn" }',
        '{ scaling = "yarn", factor = 8.0 }', '{ scaling = "none" }',
    ),
    "kv.tier": (
        *(f'"{k}:{v}"' for k in UPSTREAM_TYPES for v in UPSTREAM_TYPES), *(f'"{both}"' for both in CACHE_TYPES),
    ),
    "kv.swa_full": ("true", "false"),
    "kv.reuse.chunk": ("0", "1", "64", "4096"),
    "kv.reuse.ram": ('"0B"', '"64MiB"', '"1GiB"'),
    "kv.reuse.checkpoints": ("0", "1", "32"),
    "kv.reuse.similarity": ("0.0", "0.5", "1.0"),
    "kv.reuse.affinity": ('"auto"', "true", "false"),
    "kv.eviction": ('{ policy = "keydiff" }', '{ policy = "positional" }', '{ policy = "keydiff", recent = 64 }',
        '{ policy = "keydiff", layer = 0 }', '{ policy = "keydiff", layer = 1 }', '{ policy = "keydiff", layer = 99 }',
    ),
    "kv.pool": ("{ shared_prefix = true }", "{ shared_prefix = false }"),
    "kv.residency": ('"auto"', '"off"', '"cpu"', '"gpu"', '"heads"', '"stream"'),
    "kv.neo": ('"auto"', '"off"', '"on"'),
    "kv.persist": ("{ enabled = true }", "{ enabled = false }"),
    "kv.exact": ("{ first = 4 }", "{ recent = 64 }", "{ first = 0 }"),
    "kv.tiers": ('[{ layers = "0", tier = "q8_0" }]', "[]"),
    "kv.scout": ("{ blocks = 0 }", "{ blocks = 8 }"),
    "compute.flash_attention": ('"auto"', '"on"', '"off"'),
    "compute.cpu_attention": ('"auto"', '"upstream"', '"grouped"'),
    "compute.batch": ("1", "2", "3", "8", "31", "32", "33", "63", "64", "255", "256", "257", "512", "2048", '"8k"'),
    "compute.ubatch": ("1", "2", "16", "33", "255", "256", "512", "1024", '"4k"'),
    "compute.threads": ("0", "1", "2", "3"),
    "compute.gpu_layers": ('"auto"', "0", "2", '"all"'),
    "compute.split": ('"auto"', '"none"', '"layer"', '"row"', '"tensor"'),
    "compute.tensor_split": ("[]", "[1]", "[1, 1]", str([1] * 16), str([1] * 15)),
    "compute.main_gpu": ("0", "1", "300"),
    "compute.cpu_moe": ('"auto"', '"off"', '"all"', "1", "600"),
    "compute.devices": ("[]", '["CUDA0"]', '["CPU"]', '["none"]'),
    "compute.load": ('"auto"', '"none"', '"mmap"', '"mlock"', '"mmap+mlock"', '"dio"'),
    "compute.rpc": ("[]",),
    "kv.budget": ('"auto"', '"0B"', '"1GiB"'),
    "kv.host_layers": ('""', '"0"'),
    "kv.heads.gpu_fraction": ("0.0", "0.5", "1.0"),
    "kv.calibration": ('"missing.gguf"',),
    "compute.backend": ('"auto"', '"cpu"', '"cuda"', '"vulkan"', '"rocm"'),
    "pcie.autodetect": ("true", "false"),
    "pcie.bandwidth": ('"auto"', '"6.67GB/s"'),
    "serve.metrics": ("true", "false"),
    "serve.host": (
        '"127.0.0.1"', '"localhost"', '"0.0.0.0"', '"::1"', '["127.0.0.1", "::1"]', '["127.0.0.1", "127.0.0.1"]',
        '["0.0.0.0", "127.0.0.1"]', '["127.0.0.1", "127.0.0.2"]', '"203.0.113.7"', '"300.1.1.1"', '"[::1]"',
        '"kv.sock"', '["127.0.0.1", "kv.sock"]', f'"{"x" * 110}.sock"', '"2001:db8::1"', '"::"', '["::", "0.0.0.0"]',
    ),
    "serve.port": ("0", "80", "18431", "65535"),
    "serve.api_key_file": ('"missing"', '"{model}"'),
    "supervise.restart": ('"never"', '"always"'),
    "supervise.strict": ("true", "false"),
    "supervise.idle_stop": ('"never"', '"10min"'),
    "supervise.fallback": ('["context", "tier"]', '["residency"]'),
    "env": (
        '{ LLAMA_ARG_CTX_SIZE = "512" }', '{ LLAMA_ARG_N_PARALLEL = "3" }', '{ LLAMA_ARG_THREADS = "many" }',
        '{ LLAMA_ARG_KV_UNIFIED = "0" }', '{ LLAMA_ARG_NO_MMAP = "1" }', '{ LLAMA_ARG_ALIAS = "b" }',
        '{ LLAMA_ARG_CACHE_TYPE_V = "q4_0" }', '{ LLAMA_ARG_FLASH_ATTN = "off" }', '{ LLAMA_ARG_NO_SUCH = "1" }',
        '{ LLAMA_ARG_MODEL = "/no/such" }', '{ LLAMA_ARG_EMBEDDINGS = "1" }', '{ LLAMA_ARG_TOP_K = "5" }',
        '{ LLAMA_API_KEY = "k" }', '{ AIP_MODE = "PREDICTION" }', '{ LLAMA_ATTN_ROT_DISABLE = "1" }',
        '{ OMP_NUM_THREADS = "1" }', '{ CUDA_VISIBLE_DEVICES = "" }', '{ GGML_SCHED_DEBUG = "1" }',
        '{ LLAMA_CACHE = "/no/such" }', '{ HF_TOKEN = "x" }', '{ LLAMA_GRAPH_REUSE_DISABLE = "1" }',
        '{ LLAMA_LOG_VERBOSITY = "1" }', '{ LD_PRELOAD = "/no/such.so" }', '{ HOME = "/no/such" }',
    ),
    "model.alias": ('"a"', '"a b"', '"é/x:1"'),
    "model.chat_template": ('"chatml"', '"llama3"', '"no-such"', '"{{ bad"', '"missing.jinja"'),
    "model.mmproj": ('"missing.gguf"', '"{model}"'),
    "model.lora": ('[{ path = "missing.gguf" }]', '[{ path = "{model}" }]'),
    "model.draft": (
        '{ path = "{model}" }', '{ path = "{other}" }', '{ path = "missing.gguf" }', '{ type = "mtp" }',
        '{ type = "ngram" }', '{ path = "{model}", type = "mtp" }', '{ path = "{model}", type = "ngram" }',
        '{ path = "{other}", type = "mtp" }',
    ),
    "engine.args": (
        '["--temp", "0.2"]', '["--no-such"]', '["--draft-max", "8"]', '["--threads-http", "many"]', '["--jinja"]',
        '["--threads-http"]', '["--numa", "nowhere"]', '["--prio", "1"]', '["--temp=0.2"]', '["stray"]',
        '["--top_k", "20"]', '["--reasoning", "maybe"]', '["--seed", "-1", "--no-warmup"]', '["--no-jinja"]',
        '["--override-kv", "nonsense"]', '["-ot", "x=NOWHERE"]', '["--slot-save-path", "/no/such/dir"]',
        '["--grammar-file", "/no/such"]', '["--pooling", "bad"]', '["--spec-draft-n-max", "-1"]',
        '["--poll", "500"]', '["-c", "4096"]', '["-np", "3"]', '["-ctk", "q4_0"]', '["-fa", "off"]', '["-kvu"]',
        '["--no-mmap"]', '["--defrag-thold", "0.1"]', '["-n", "-5"]', '["-n", "notanum"]', '["--temp", "abc"]',
        '["--samplers", "nonsense"]', '["--mirostat", "9"]', '["--yarn-orig-ctx", "512"]', '["--no-kv-offload"]',
        '["--no-cont-batching"]', '["--check-tensors"]', '["--lookup-cache-static", "/no/such"]',
        '["--control-vector", "/no/such"]', '["--tools", "nope"]', '["--mcp-servers-json", "{bad"]',
        '["--ui-config", "{bad"]', '["--log-file", "/no/such/dir/x"]', '["--timeout", "-1"]',
        '["--threads-http", "0"]', '["--path", "/no/such"]', '["--chat-template-kwargs", "{bad"]',
        '["--json-schema", "{bad"]', '["--grammar", "root ::= ("]', '["--logit-bias", "x"]', '["--seed", "abc"]',
        '["--device-draft", "CUDA0"]', '["--cpu-mask", "zz"]', '["--cpu-range", "x"]', '["--prio", "9"]',
        '["--lazy-mode", "x"]', '["--sleep-idle-seconds", "0"]', '["--verbose-prompt"]', '["--rerank"]',
        '["--embedding"]', '["--pooling", "mean"]', '["--no-warmup"]', '["--keep-alive", "5"]',
        '["--image-min-tokens", "5"]', '["--sse-ping-interval", "0"]', '["--reasoning-budget", "-5"]',
        '["--reasoning-format", "bad"]', '["--mmproj-device", "x"]', '["--n-cpu-ffn", "-1"]', '["--cache-prompt"]',
        '["--no-repack"]', '["--spec-ngram-mod-n-max", "5000"]', '["--cors-origins", "x"]',
        '["--spec-draft-ngl", "many"]', '["--dry-sequence-breaker", "none"]', '["--cpu-strict", "2"]',
        '["--tags", "a,b"]', '["--media-path", "/no/such"]', '["--reverse-prompt", "x"]',
        '["--spec-type", "ngram-mod"]', '["--temp"]',
    ),
}  # fmt: skip

# What a start shows of the rules: refusals and deaths but for those that come later, and these changes. The others
# show in answers, under load, on other machines, or not at all; they are not counted either way.
_LATER = frozenset({"KV201", "KV204", "KV306", "KV606", "KV711"})
_CHANGES = frozenset({"KV101", "KV105", "KV107", "KV111", "KV113", "KV114", "KV304", "KV416", "KV501", "KV504"})
_STOPS = (Act.REFUSE, Act.CRASH)
_BESIDE = ("KV802", "KV808")  # options that kvlaunch owns, and the environment
# Keys that decide one thing together: what is told at one of them was told.
_FAMILIES = (
    "context",
    "kv.tier",
    "kv.reuse",
    "kv.",
    "compute.batch",
    "compute.",
    "model.",
    "engine.",
    "serve.",
    "env.",
)


@dataclass(frozen=True, slots=True)
class Specimen:
    """One mutated profile and what became of it."""

    number: int
    model: str
    text: str
    mutated: tuple[str, ...]
    told: tuple[Diagnostic, ...]
    shown: tuple[tuple[str, str], ...]
    """(key, what the engine did) for everything that is not as asked; key "" for a refusal."""
    log: tuple[str, ...]


@dataclass(slots=True)
class Score:
    """Counts over all specimens, by key."""

    done: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    misses: list[tuple[Specimen, str, str]] = field(default_factory=list)
    alarms: list[tuple[Specimen, Diagnostic]] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)


def run(
    server: Path, models: Mapping[str, Path], quick: bool, seed: int, count: int | None = None, first: int = 0
) -> dict[str, Any]:
    """The body of `bench rules`: rows, checks, and every miss and false alarm with its profile.

    The zoo is a folder of small models that the engine's own `test-llama-archs -o FOLDER` writes, one for each
    architecture; KVLAUNCH_BENCH_ZOO names it. `first` and `count` take a part of a seed's profiles.
    """
    began = time.monotonic()
    wanted = count or (_QUICK if quick else _FULL)
    folder_of_zoo = os.environ.get("KVLAUNCH_BENCH_ZOO", "")
    zoo = sorted(Path(folder_of_zoo).glob("*.gguf")) if folder_of_zoo else []
    # a real model for every eighth profile of a zoo
    lab = Lab(server, [*zoo, *list(models.values()) * max(1, len(zoo) // 16)])
    score = Score()
    if not zoo:
        score.skipped["architectures of the zoo: KVLAUNCH_BENCH_ZOO names no folder"] = 1
    with tempfile.TemporaryDirectory(prefix="kvlaunch-rules-") as folder:
        for number in range(first, first + wanted):
            if quick and time.monotonic() - began > 100:
                score.skipped["out of time"] += first + wanted - number
                break
            specimen = lab.specimen(number, random.Random(f"{seed}/{number}"), Path(folder))
            if isinstance(specimen, str):
                score.skipped[specimen] += 1
                continue
            judge(specimen, score)
    return _body(score, seed, time.monotonic() - began)


class Lab:
    """The engine, its zoo and this machine."""

    def __init__(self, server: Path, models: Sequence[Path]) -> None:
        self.server = server
        self.models = tuple(models)
        self.capability: Capability = parse_help(ask_help(server), str(server))
        self.machine: Machine = probe()
        self._shapes: dict[Path, ModelShape] = {}

    def shape(self, model: Path) -> ModelShape:
        if model not in self._shapes:
            self._shapes[model] = read_shape(model)
        return self._shapes[model]

    def specimen(self, number: int, rng: random.Random, folder: Path) -> Specimen | str:
        """Makes, checks and starts one; a string says why it was not."""
        model, other = rng.choice(self.models), rng.choice(self.models)
        text, mutated = mutate(rng, model, other, self.shape(model))
        file = folder / "p.toml"
        # a port that nobody has, where none was drawn
        file.write_text(text if "serve.port" in mutated else text + f"serve.port = {free_port()}\n")
        try:
            profile = load_profile(file, (), {"HOME": str(folder)})
        except ProfileError as error:
            return f"the document itself is refused ({error.rule})"
        shape = self.shape(model)
        try:
            plan = make_plan(
                profile, shape, self.machine, self.capability.options, model=model, state_dir=folder / "state"
            )
        except ProfileError as error:
            return f"no plan ({error.rule})"
        if plan.kv_bytes > _LARGEST_CACHE:
            return "its cache would fill this machine"
        told, _ = check(profile, shape, self.machine, self.capability, plan, look(profile, folder))
        for host in profile.serve.host:
            if host.endswith(".sock"):  # an engine before was killed and left its own, which the supervisor clears
                Path(host).unlink(missing_ok=True)
        argv = self._argv(plan, profile)
        seen = start(self.server, argv, timeout=30.0, until=_LOADED, listens=True, env=profile.env)
        shown = tuple(deviations(profile, plan, seen))
        return Specimen(number, model.name, text, mutated, told, shown, seen.tail[-12:])

    def _argv(self, plan: Plan, profile: Profile) -> list[str]:
        try:
            return plan.argv(self.capability.options, profile.engine.args)
        except ProfileError:
            # what check says the engine lacks is said to the engine all the same: it must refuse
            known = {flag for option in OPTIONS.values() for flag in option.spellings}
            return [*spell(plan.settings, known), *profile.engine.args]


def mutate(rng: random.Random, model: Path, other: Path, shape: ModelShape) -> tuple[str, tuple[str, ...]]:
    """A valid profile for this model with one to three keys changed, as text, and the keys."""
    trained = shape.train_context or 512
    values = {"context.per_slot": str(min(512, trained)), "compute.threads": "1"}
    mutated = tuple(rng.sample(sorted(MUTATIONS), rng.randint(1, 3)))
    for key in mutated:
        value = rng.choice(MUTATIONS[key])
        values[key] = value.replace("{model}", str(model)).replace("{other}", str(other))
        if key == "context.total" and rng.random() < 0.7:
            del values["context.per_slot"]
    lines = ["schema = 1", f'model.path = "{model}"', *(f"{key} = {value}" for key, value in values.items())]
    return "\n".join(lines) + "\n", mutated


def deviations(profile: Profile, plan: Plan, seen: Start) -> Iterator[tuple[str, str]]:
    """What the engine did that is not what the profile asks for."""
    if not seen.ready:
        code = seen.exit_code
        yield "", f"died by signal {-code}" if code is not None and code < 0 else f"refused (exit code {code})"
        return
    log = seen.tail
    context = profile.context
    slots = _figure(log, r"n_slots = (\d+)")
    each = _figure(log, r"n_ctx_slot = (\d+)")
    total = _figure(log, r"llama_context: n_ctx +=\s*(\d+)")
    if slots is not None and slots != context.slots:
        yield "context.slots", f"{slots} slots"
    if each is not None and context.per_slot is not None and each < context.per_slot:
        yield "context.per_slot", f"{each} tokens for a slot instead of {context.per_slot}"
    if each is not None and each != plan.split.per_slot:
        yield "context", f"{each} tokens for a slot; the plan said {plan.split.per_slot}"
    if total is not None and context.total is not None and total != pad(context.total):
        yield "context.total", f"{total} cells instead of {context.total}"
    for key, name in (("compute.batch", "n_batch"), ("compute.ubatch", "n_ubatch")):
        real = _figure(log, rf"llama_context: {name} +=\s*(\d+)")
        asked = getattr(profile.compute, key.split(".")[1])
        if real is not None and profile.is_set(key) and real != asked:
            yield key, f"{real} instead of {asked}"
    flash = next((m[1] for line in log if (m := re.search(r"llama_context: flash_attn +=\s*(\w+)", line))), None)
    if profile.compute.flash_attention == "on" and flash == "disabled":
        yield "compute.flash_attention", "off instead of on"
    if line := next((line for line in log if "failed to load control vector" in line), ""):
        yield "engine.args", line
    yield from inactive(
        {k: v for k, v in plan.settings.items() if k not in ("gpu_layers", "context", "unified_per_slot", "load")},
        Seen(log, {}, ()),
    )


def _figure(log: Sequence[str], pattern: str) -> int | None:
    return next((int(match[1]) for line in log if (match := re.search(pattern, line))), None)


def judge(specimen: Specimen, score: Score) -> None:
    """Counts one specimen: hits and misses by what the engine did, false alarms by what check said."""
    score.done += 1
    told = [one for one in specimen.told if one.severity is not Severity.NOTE]
    acts = {rule.code: rule.act for rule in RULES}
    for one in told:
        score.told[one.key] += 1
    refused = any(key == "" for key, _ in specimen.shown)
    for key, what in specimen.shown:
        if key == "":
            hit = any(one.severity is Severity.ERROR and _announces(one, acts) for one in told)
            key = next((one.key for one in told), ", ".join(specimen.mutated))
        else:
            # what speaks to the engine beside the plan was told as that: whatever it changes was told
            hit = any(_family(one.key) == _family(key) or one.rule in _BESIDE for one in told)
        if hit:
            score.hits[_family(key)] += 1
        else:
            score.misses.append((specimen, key, what))
    for one in told:
        if one.rule in _CHANGES:
            # where the engine refuses for another reason, nothing can be seen of this one
            right = refused or any(_family(key) == _family(one.key) for key, _ in specimen.shown)
        elif acts.get(one.rule) in _STOPS and one.rule not in _LATER:
            # a file that is missing is refused, or gone without
            right = refused or (
                one.rule == "KV901" and any(_family(key) == _family(one.key) for key, _ in specimen.shown)
            )
        else:
            continue
        if not right:
            score.alarms.append((specimen, one))


def _announces(one: Diagnostic, acts: Mapping[str, Act]) -> bool:
    """Whether this finding says that the engine may not come up: or that an argument is none for a profile."""
    return acts.get(one.rule) in (*_STOPS, Act.CORRUPT) or one.rule in (*_BESIDE, "KV806")


def _family(key: str) -> str:
    return next((family for family in _FAMILIES if key.startswith(family)), key)


def upper_bound(events: int, trials: int, confidence: float = 0.95) -> float:
    """Clopper-Pearson: the share that `events` of `trials` is below, with this confidence."""
    if trials == 0 or events >= trials:
        return 1.0
    low, high = events / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        below = sum(
            math.exp(
                math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
                + k * math.log(middle) + (trials - k) * math.log1p(-middle)
            )
            for k in range(events + 1)
        )  # fmt: skip
        low, high = (middle, high) if below > 1 - confidence else (low, middle)
    return high


def _lines(specimen: Specimen) -> str:
    """The keys of a specimen in one line."""
    return "; ".join(line for line in specimen.text.splitlines() if not line.startswith(("schema", "model.path")))


def _body(score: Score, seed: int, seconds: float) -> dict[str, Any]:
    missed = len({specimen.number for specimen, _, _ in score.misses})
    alarmed = len({specimen.number for specimen, _ in score.alarms})
    bound = upper_bound(missed, score.done)
    share = alarmed / score.done if score.done else 1.0
    families = sorted({*score.hits, *(_family(key) for _, key, _ in score.misses)})
    rows = [
        row("all", "profiles", score.done, "count"),
        row("all", "seconds", round(seconds, 1), "s"),
        row("all", "misses", missed, "count"),
        row("all", "misses, upper 95 % bound", round(bound, 6), "ratio"),
        row("all", "false alarms", round(share, 6), "ratio"),
        row("all", "seed", seed, ""),
    ]
    for family in families:
        missing = sum(1 for _, key, _ in score.misses if _family(key) == family)
        alarms = sum(1 for _, one in score.alarms if _family(one.key) == family)
        hits = score.hits[family]
        rows.append(row(family, "recall", round(hits / (hits + missing), 4) if hits + missing else None, "ratio"))
        rows.append(row(family, "precision", round(hits / (hits + alarms), 4) if hits + alarms else None, "ratio"))
    # every miss and false alarm by name, with the lines that make it again
    for one, key, what in score.misses[:_SHOWN_MISSES]:
        rows.append(row(f"miss: {key}", one.model, f"{what} | {_lines(one)}", ""))
    for one, told in score.alarms[:_SHOWN_MISSES]:
        rows.append(row(f"false alarm: {told.rule} {told.key}", one.model, f"{told.message} | {_lines(one)}", ""))
    # the bound needs thousands of profiles to be small at all: a sample only has to be clean
    few = score.done < 3000
    checks = [
        compared("misses", missed == 0 if few else bound <= 0.001, missed if few else round(bound, 6),
                 "0" if few else "upper 95 % bound ≤ 0.001"),
        compared("false alarms", share < 0.005, round(share, 6), "< 0.005"),
        compared("profiles started", score.done > 0, score.done, "> 0"),
    ]  # fmt: skip
    return {
        "rows": rows,
        "checks": checks,
        "skipped": [f"{count} × {why}" for why, count in score.skipped.most_common()],
        "misses": [
            {"profile": s.text, "model": s.model, "key": key, "engine": what, "log": list(s.log)}
            for s, key, what in score.misses[:_SHOWN_MISSES]
        ],
        "false_alarms": [
            {"profile": s.text, "model": s.model, "rule": one.rule, "key": one.key, "message": one.message,
             "engine": [what for _, what in s.shown]}
            for s, one in score.alarms[:_SHOWN_MISSES]
        ],
    }  # fmt: skip
