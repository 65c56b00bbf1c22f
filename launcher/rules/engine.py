"""KV8xx: what this engine lacks, and what engine.args and [env] would do behind kvlaunch's back."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.diagnostic import Severity
from launcher.engine.options import OPTIONS, owner_of, spelling
from launcher.profile.bad import near
from launcher.rules.arguments import Argument, split_arguments
from launcher.rules.case import Case
from launcher.rules.facts import devices, quantized, tiers
from launcher.rules.limits import LIMITS, SWITCH_WORDS
from launcher.rules.rule import Act, Example, Found, Needs, rule, rules_of

_MODEL = '[model]\npath = "model.gguf"\n'
_BARE = ("an engine without our patches",)

# The key that a person turns for each of our names (launcher/engine/options.py).
KEYS = {
    "rpc": "compute.rpc", "model": "model.path", "alias": "model.alias", "mmproj": "model.mmproj",
    "chat_template": "model.chat_template", "chat_template_file": "model.chat_template", "lora": "model.lora",
    "lora_scaled": "model.lora", "draft_model": "model.draft.path", "spec_type": "model.draft.type",
    "context": "context.per_slot", "slots": "context.slots", "unified": "context.unified",
    "unified_per_slot": "context.per_slot", "context_shift": "context.shift", "keep": "context.keep",
    "rope_scaling": "context.rope.scaling", "rope_scale": "context.rope.factor", "rope_freq_base": "context.rope",
    "yarn_orig_ctx": "context.rope", "cache_type_k": "kv.tier", "cache_type_v": "kv.tier",
    "swa_full": "kv.swa_full", "cache_ram_mib": "kv.reuse.ram", "cache_reuse": "kv.reuse.chunk",
    "cache_idle_slots": "kv.reuse", "checkpoints": "kv.reuse.checkpoints", "similarity": "kv.reuse.similarity",
    "kv_offload": "kv.residency", "devices": "compute.devices", "gpu_layers": "compute.gpu_layers",
    "split": "compute.split", "tensor_split": "compute.tensor_split", "main_gpu": "compute.main_gpu",
    "cpu_moe": "compute.cpu_moe", "n_cpu_moe": "compute.cpu_moe", "flash_attention": "compute.flash_attention",
    "batch": "compute.batch", "ubatch": "compute.ubatch", "threads": "compute.threads", "load": "compute.load",
    "host": "serve.host", "port": "serve.port", "api_key_file": "serve.api_key_file", "metrics": "serve.metrics",
    "session_affinity": "kv.reuse.affinity", "rest_kv_eviction": "kv.eviction.policy",
    "rest_kv_recent": "kv.eviction.recent", "rest_kv_layer": "kv.eviction.layer", "rest_kv_mode": "kv.eviction.mode",
    "headinfer_fraction": "kv.heads.gpu_fraction", "neo": "kv.neo", "pcie_autodetect": "pcie.autodetect",
    "pcie_bandwidth": "pcie.bandwidth", "cpu_attention": "compute.cpu_attention", "residency": "kv.residency",
    "device_budget": "kv.budget", "host_layers": "kv.host_layers", "prefix_pool": "kv.pool.shared_prefix",
    "prefix_pool_min": "kv.pool.min_tokens", "prefix_pool_pinned": "kv.pool.pinned", "tier_layers": "kv.tiers",
    "state_dir": "kv.persist.enabled", "state_budget": "kv.persist.budget", "state_idle": "kv.persist.idle",
    "exact_first": "kv.exact.first", "exact_recent": "kv.exact.recent", "calibration": "kv.calibration",
    "topk_blocks": "kv.scout.blocks",
}  # fmt: skip

# What would take the engine's place, or blind the supervisor: option → why.
_NOT_FOR_ARGS = {
    ("-h", "--help", "--usage", "--version", "--license", "-cl", "--cache-list", "--completion-bash", "--list-devices"):
        "it prints something and ends",
    ("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url", "-dr", "--docker-repo", "-hfd",
     "--hf-repo-draft", "-mmu", "--mmproj-url", "--embd-gemma-default", "--fim-qwen-1.5b-default",
     "--fim-qwen-3b-default", "--fim-qwen-7b-default", "--gpt-oss-20b-default", "--vision-gemma-4b-default"):
        "it fetches a model of its own: the model is named under [model]",
    ("--models-dir", "--models-preset", "--models-max", "--models-autoload"):
        "it makes a router of the server, which loads no model itself",
    ("--no-slots",): "the supervisor watches /slots",
    ("--api-prefix",): "the supervisor asks /health, /props and /slots where they are",
    ("--ssl-key-file", "--ssl-cert-file"): "the supervisor speaks plain HTTP: put a reverse proxy in front",
    ("--log-disable", "--log-file", "-lv", "--verbosity", "--log-verbosity", "-v", "--verbose", "--log-verbose",
     "--log-colors", "--log-prefix", "--log-timestamps"):
        "the supervisor reads the log: see `kvlaunch logs`",
    ("--sleep-idle-seconds",): "it drops the cache while kvlaunch thinks it is there: see supervise.idle_stop",
    ("--embedding", "--embeddings", "--rerank", "--reranking"):
        "it makes a server for embeddings, and `ready` means that one token was generated",
    ("--reuse-port",): "a second listener on the port loses connections (see serve.port)",
}  # fmt: skip


@rule(
    "KV801",
    "engine-lacks-it",
    Severity.ERROR,
    Act.REFUSE,
    needs=Needs.MODEL,
    why='"auto" may switch on what the engine has; what is written out must be there. The engine would end with '
    "`error: invalid argument`.",
    cost="It does not start.",
    example=Example(_MODEL + '[kv]\nreuse = { affinity = true }\n[engine]\npatches = "none"\n', _BARE),
    counter=Example(_MODEL + "[kv]\nreuse = { affinity = true }\n"),
)
def engine_lacks_it(case: Case) -> Iterator[Found]:
    told: set[str] = set()
    for name, value in case.planned.settings.items():
        option = OPTIONS.get(name)
        if option is None or value is False or spelling(name, case.capability.options) is not None:
            continue
        key = KEYS.get(name, name)
        if key in told:
            continue
        told.add(key)
        if option.patch is not None:
            what = f"{option.spellings[0]} comes with patch {option.patch}, which this engine has not"
            help = f'take the patch in (engine.patches = "default", or add "{option.patch}"), or leave the key away'
        else:
            what = f"this engine has no {option.spellings[0]}"
            help = "leave the key away, or use another engine"
        yield Found(key, what, help)


@rule(
    "KV802",
    "kvlaunch-owns-it",
    Severity.ERROR,
    Act.OURS,
    why="kvlaunch always writes this option out, from the profile; the engine takes the last one and warns at most, so "
    "the plan, the ledger and what is checked at `ready` would all be wrong (common/arg.cpp:836).",
    cost="The plan says one thing and the engine does another.",
    example=Example(_MODEL + '[engine]\nargs = ["-c", "32768"]\n'),
    counter=Example(_MODEL + "[context]\nper_slot = 4096\n"),
)
def kvlaunch_owns_it(case: Case) -> Iterator[Found]:
    for argument in _arguments(case):
        owner = next((name for flag in _spellings(argument) if (name := owner_of(flag))), None)
        if owner is not None:
            key = KEYS.get(owner)
            yield Found(
                f"engine.args.{argument.index}",
                f"{argument.flag} is kvlaunch's own option",
                f"write {key}" if key else "leave it away: kvlaunch decides it",
            )


@rule(
    "KV803",
    "option-unknown",
    Severity.ERROR,
    Act.REFUSE,
    why="The engine ends with `error: invalid argument` (common/arg.cpp:830).",
    cost="It does not start.",
    example=Example(_MODEL + '[engine]\nargs = ["--temperatur", "0.2"]\n'),
    counter=Example(_MODEL + '[engine]\nargs = ["--temperature", "0.2"]\n'),
)
def option_unknown(case: Case) -> Iterator[Found]:
    lost = False
    for argument in _arguments(case):
        if argument.entry is not None:
            lost = False
            continue
        # the word after an unknown option is its value: told with it
        if lost and not argument.flag.startswith("-"):
            continue
        lost = argument.flag.startswith("-")
        place = f"engine.args.{argument.index}"
        if not argument.flag.startswith("-"):
            yield Found(
                place, f'"{argument.flag}" is no option, and none before it takes it as its value', "leave it away"
            )
            continue
        name, equals, value = argument.flag.partition("=")
        if equals and case.capability.has(name):
            yield Found(place, f"{name} takes its value as the next word", f'write "{name}", "{value}"')
            continue
        meant = near(argument.flag, case.capability.options)
        yield Found(
            place, f"this engine has no {argument.flag}", f"did you mean {meant}?" if meant else "see its --help"
        )


@rule(
    "KV804",
    "option-removed",
    Severity.ERROR,
    Act.REFUSE,
    why="The engine knows the name only to refuse it: `the argument has been removed` (common/arg.cpp:344).",
    cost="It does not start.",
    example=Example(_MODEL + '[engine]\nargs = ["--draft-max", "8"]\n'),
    counter=Example(_MODEL + '[engine]\nargs = ["--spec-draft-n-max", "8"]\n'),
)
def option_removed(case: Case) -> Iterator[Found]:
    for argument in _arguments(case):
        if argument.entry is not None and argument.entry.removed:
            kin = [name for name in case.capability.options if argument.flag.lstrip("-").replace("draft-", "") in name]
            meant = near(argument.flag, kin or case.capability.options)
            yield Found(
                f"engine.args.{argument.index}",
                f"{argument.flag} has been removed from the engine",
                f"see {meant}" if meant else "",
            )


@rule(
    "KV805",
    "value-wrong",
    Severity.ERROR,
    Act.REFUSE,
    why="A number is read by std::stoi, which takes 32k for 32 and refuses a word; a word that is none of the option's "
    "own ends the engine (common/arg.cpp:862-890).",
    cost="It does not start, or starts with another figure.",
    example=Example(_MODEL + '[engine]\nargs = ["--threads-http", "many"]\n'),
    counter=Example(_MODEL + '[engine]\nargs = ["--threads-http", "4"]\n'),
)
def value_wrong(case: Case) -> Iterator[Found]:
    for argument in _arguments(case):
        entry = argument.entry
        if entry is None or entry.removed or not entry.value:
            continue
        if argument.lacks_value:
            yield Found(f"engine.args.{argument.index}", f"{argument.flag} takes a value ({entry.value})")
            continue
        value, place = argument.value or "", f"engine.args.{argument.value_index}"
        if limit := next((LIMITS[name] for name in entry.spellings if name in LIMITS), None):
            if why := limit.broken_by(value):
                yield Found(place, f"{argument.flag}: {why}", "write what its help names")
        elif argument.is_any("--override-tensor", "--spec-draft-override-tensor"):
            yield from _buffers(case, place, value)
        elif argument.is_any("--mmproj-device", "--spec-draft-device"):
            known = ["none", *(device.id for device in devices(case))]
            names = value.split(",")
            if len(names) > 1 and argument.is_any("--mmproj-device"):
                yield Found(place, "a projector goes to one device", "name one")
            for name in names:
                if name not in known and not name.startswith("RPC"):
                    yield Found(place, f'"{name}" is no device of this machine', f"it has {', '.join(known)}")
        # <0|1> is a number to the engine, which takes any
        if entry.choices and value not in entry.choices and not entry.value.startswith("<"):
            if "," in value or entry.spellings[-1] == "--spec-type":
                continue  # lists of choices
            if "auto" in entry.choices and "on" in entry.choices and value in SWITCH_WORDS:
                continue
            meant = near(value, entry.choices)
            yield Found(
                place,
                f'"{value}" is none of {", ".join(entry.choices)}',
                f"did you mean {meant}?" if meant else "",
            )
        elif entry.value == "N" and not re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", value):
            what = "is read as" if re.match(r"\s*[-+]?\d", value) else "is no number for"
            number = re.match(r"\s*[-+]?\d+", value)
            yield Found(
                place,
                f'"{value}" {what} {number[0].strip() if number else argument.flag}',
                "write the number out",
            )


def _buffers(case: Case, place: str, value: str) -> Iterator[Found]:
    """`pattern=buffer` pairs: a buffer is the CPU's, or one of a device (common/arg.cpp:277)."""
    known = ["CPU", *(device.id for device in devices(case))]
    for pair in value.split(","):
        _, equals, buffer = pair.rpartition("=")
        if not equals:
            yield Found(place, f'"{pair}" is not PATTERN=BUFFER', "write for example ffn_.*=CPU")
        elif buffer not in known and not buffer.startswith(("RPC", *(f"{name}_" for name in known))):
            yield Found(place, f"{buffer} is no buffer of this machine", f"it has {', '.join(known)}")


@rule(
    "KV806",
    "not-for-args",
    Severity.ERROR,
    Act.OURS,
    why="The option takes the server out of kvlaunch's hands: it ends at once, serves another model, or hides what the "
    "supervisor has to see.",
    cost="The engine is never `ready`, or is watched blindly.",
    example=Example(_MODEL + '[engine]\nargs = ["--no-slots"]\n'),
    counter=Example(_MODEL + '[engine]\nargs = ["--slots"]\n'),
)
def not_for_args(case: Case) -> Iterator[Found]:
    for argument in _arguments(case):
        for flags, why in _NOT_FOR_ARGS.items():
            # of a pair (--slots, --no-slots) only the spelling that was written counts
            named = argument.flag in flags
            if named or (argument.is_any(*flags) and not any(flag.startswith("--no-") for flag in flags)):
                yield Found(f"engine.args.{argument.index}", f"{argument.flag}: {why}", "leave it away")
                break


@rule(
    "KV807",
    "option-twice",
    Severity.WARNING,
    Act.CHANGE,
    why="The last one wins, with a line in the log (common/arg.cpp:836).",
    cost="The first does nothing.",
    help="write it once; lists are joined by commas",
    example=Example(_MODEL + '[engine]\nargs = ["--temp", "0.2", "--temp", "0.7"]\n'),
    counter=Example(_MODEL + '[engine]\nargs = ["--temp", "0.2"]\n'),
)
def option_twice(case: Case) -> Iterator[Found]:
    seen: dict[str, str] = {}
    for argument in _arguments(case):
        if argument.entry is None or argument.is_any("--spec-type", "-ot", "--override-tensor", "-otd"):
            continue
        name = argument.entry.spellings[0]
        if name in seen:
            yield Found(f"engine.args.{argument.index}", f"{argument.flag} is given twice: {seen[name]} does nothing")
        seen[name] = argument.flag


@rule(
    "KV808",
    "environment-speaks-too",
    Severity.ERROR,
    Act.OURS,
    why="Every option of the engine can also be said by LLAMA_ARG_*, which no plan sees; AIP_MODE replaces the port "
    "(tools/server/server-http.cpp:92); a key in the environment is read by children and by /proc.",
    cost="The plan says one thing and the engine does another.",
    example=Example(_MODEL + '[env]\nLLAMA_ARG_CTX_SIZE = "512"\n'),
    counter=Example(_MODEL + '[env]\nOMP_PROC_BIND = "true"\n'),
)
def environment_speaks_too(case: Case) -> Iterator[Found]:
    by_variable = {entry.env: entry for entry in case.capability.entries if entry.env}
    for name in case.profile.env:
        entry = by_variable.get(name) or by_variable.get(name.replace("LLAMA_ARG_NO_", "LLAMA_ARG_"))
        if name.startswith("LLAMA_ARG_") or entry is not None:
            flag = entry.spellings[-1] if entry else None
            owner = next((key for f in (entry.spellings if entry else ()) if (key := owner_of(f))), None)
            help = (
                f"write {KEYS.get(owner, 'it')}"
                if owner in KEYS
                else f"write it in engine.args: {flag}"
                if flag
                else ""
            )
            yield Found(f"env.{name}", f"{name} speaks to the engine beside the plan", help)
        elif name.startswith("AIP_"):
            yield Found(f"env.{name}", f"{name} makes the engine serve elsewhere than planned", "write serve.port")


@rule(
    "KV809",
    "rotation-off",
    Severity.WARNING,
    Act.CHANGE,
    why="Quantized K and V are rotated before they are stored; without it q4_0 loses three times as much (KL 0.153 "
    "instead of 0.052 on SmolLM2), and sessions saved with it can't be restored.",
    cost="Worse answers for nothing.",
    help="leave LLAMA_ATTN_ROT_DISABLE away",
    example=Example(_MODEL + '[kv]\ntier = "q4_0"\n[env]\nLLAMA_ATTN_ROT_DISABLE = "1"\n'),
    counter=Example(_MODEL + '[kv]\ntier = "f16"\n[env]\nLLAMA_ATTN_ROT_DISABLE = "1"\n'),
)
def rotation_off(case: Case) -> Iterator[Found]:
    if case.profile.env.get("LLAMA_ATTN_ROT_DISABLE", "0") in ("", "0"):
        return
    if any(quantized(tier.k) or quantized(tier.v) for _, tier in tiers(case)):
        yield Found("env.LLAMA_ATTN_ROT_DISABLE", "the rotation that quantized caches rely on is turned off")


@rule(
    "KV810",
    "engines-own-config",
    Severity.WARNING,
    Act.CHANGE,
    why="The engine reads this file before its environment and its command line (common/arg.cpp:721); nothing can turn "
    "that off.",
    cost="Options that no profile names are in force.",
    help="remove the file, or keep nothing in it that the profile does not say",
    example=Example(_MODEL, ("a config file of the engine's own",)),
    counter=Example(_MODEL),
)
def engines_own_config(case: Case) -> Iterator[Found]:
    if case.files.config is not None:
        yield Found("engine", f"{case.files.config} is read by the engine before all that kvlaunch tells it")


@rule(
    "KV811",
    "option-without-effect",
    Severity.WARNING,
    Act.IGNORE,
    why="The engine still takes the option and says in its log that it does nothing (common/arg.cpp, `deprecated`).",
    cost="Nothing happens.",
    help="leave it away",
    example=Example(_MODEL + '[engine]\nargs = ["--defrag-thold", "0.1"]\n'),
    counter=Example(_MODEL),
)
def option_without_effect(case: Case) -> Iterator[Found]:
    for argument in _arguments(case):
        if argument.is_any("--defrag-thold"):
            yield Found(f"engine.args.{argument.index}", f"{argument.flag} does nothing any more")


def _arguments(case: Case) -> Iterator[Argument]:
    return split_arguments(case.profile.engine.args, case.capability)


def _spellings(argument: Argument) -> tuple[str, ...]:
    return argument.entry.spellings if argument.entry is not None else (argument.flag,)


RULES = rules_of(globals())
