"""KV5xx: drafts, adapters, projectors."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.diagnostic import Severity
from launcher.model.layers import Memory
from launcher.profile.bad import near
from launcher.rules.case import Case
from launcher.rules.rule import Act, Example, Found, Needs, rule, rules_of

_MODEL = '[model]\npath = "model.gguf"\n'
_DRAFT = _MODEL + '[model.draft]\npath = "draft.gguf"\n'


@rule(
    "KV501",
    "draft-speaks-otherwise",
    Severity.ERROR,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="Draft and model must have the same vocabulary; with another the engine logs an error and serves WITHOUT "
    "speculation (tools/server/server-context.cpp:1396; common/speculative.cpp, vocabularies compared token by token).",
    cost="The draft is loaded, takes memory, and speeds nothing up.",
    help="choose a draft of the same family as the model",
    example=Example(_DRAFT, ("a draft with another vocabulary",)),
    counter=Example(_DRAFT, ("a draft with the same vocabulary",)),
)
def draft_speaks_otherwise(case: Case) -> Iterator[Found]:
    draft = case.files.shapes.get("model.draft.path")
    wanted = case.profile.model.draft
    if draft is None or wanted is None or wanted.type != "draft":
        return
    model = case.model
    if draft.tokenizer != model.tokenizer:
        yield Found("model.draft.path", f"the draft's tokenizer is {draft.tokenizer}, the model's {model.tokenizer}")
    # common/speculative.cpp allows a few tokens of padding
    elif abs(draft.vocab_size - model.vocab_size) > 128:
        yield Found("model.draft.path", f"the draft knows {draft.vocab_size} tokens, the model {model.vocab_size}")


@rule(
    "KV502",
    "no-mtp-head",
    Severity.ERROR,
    Act.REFUSE,
    needs=Needs.MODEL,
    why="`context type MTP requested but model doesn't contain MTP layers` (src/llama-context.cpp:3884, "
    "tools/server/server-context.cpp:1258).",
    cost="The engine ends after loading.",
    help='leave [model.draft] away, or write type = "ngram"',
    example=Example(_MODEL + '[model.draft]\ntype = "mtp"\n'),
    counter=Example(_MODEL + '[model.draft]\ntype = "mtp"\n', ("a model with an MTP head",)),
)
def no_mtp_head(case: Case) -> Iterator[Found]:
    draft = case.profile.model.draft
    if draft is None or draft.type != "mtp":
        return
    # a head may come in a file of its own
    holder = case.model if draft.path is None else case.files.shapes.get("model.draft.path")
    if holder is not None and holder.nextn_layers == 0:
        where = "this model" if draft.path is None else draft.path.name
        yield Found("model.draft.type", f"{where} ({holder.arch}) has no head that drafts")


@rule(
    "KV503",
    "not-a-model",
    Severity.ERROR,
    Act.REFUSE,
    needs=Needs.MODEL,
    why="A projector given as the model ends with `CLIP cannot be used as main model`, an adapter with missing tensors "
    "(src/llama-model.cpp).",
    cost="The engine ends while loading.",
    help="name the model's own file",
    example=Example(_MODEL, ("a projector in the model's place",)),
    counter=Example(_MODEL),
)
def not_a_model(case: Case) -> Iterator[Found]:
    kind = case.model.kind
    if kind != "model":
        where = {"mmproj": "model.mmproj", "adapter": "[[model.lora]]"}.get(kind)
        yield Found(
            _source(case), f"{case.model.path.name} is no model but: {kind}", f"it belongs in {where}" if where else ""
        )


@rule(
    "KV504",
    "images-stop-shift",
    Severity.ERROR,
    Act.IGNORE,
    why="`ctx_shift is not supported by multimodal, it will be disabled`, and cache_reuse likewise "
    "(tools/server/server-context.cpp:1309, 1314).",
    cost="A full slot ends its answer; prompts that changed at the front are computed anew.",
    example=Example(_MODEL + 'mmproj = "p.gguf"\n[context]\nper_slot = 4096\nshift = true\n'),
    counter=Example(_MODEL + 'mmproj = "p.gguf"\n[context]\nper_slot = 4096\n'),
)
def images_stop_shift(case: Case) -> Iterator[Found]:
    if case.profile.model.mmproj is None:
        return
    if case.profile.context.shift:
        yield Found("context.shift", "a context with images can't be shifted", "write shift = false")
    if case.profile.kv.reuse.chunk:
        yield Found("kv.reuse.chunk", "a context with images can't move chunks", "write chunk = 0")


@rule(
    "KV505",
    "projector-of-another-kind",
    Severity.ERROR,
    Act.REFUSE,
    why="What is given as the projector has to be one (tools/mtmd, clip_init).",
    cost="The engine ends after loading the model.",
    help="the projector's file usually has mmproj in its name",
    example=Example(_MODEL + 'mmproj = "p.gguf"\n', ("a model in the projector's place",)),
    counter=Example(_MODEL + 'mmproj = "p.gguf"\n', ("a projector",)),
)
def projector_of_another_kind(case: Case) -> Iterator[Found]:
    shape = case.files.shapes.get("model.mmproj")
    if shape is not None and shape.kind != "mmproj":
        yield Found("model.mmproj", f"{shape.path.name} is no projector but: {shape.kind}")


@rule(
    "KV506",
    "adapter-of-another-model",
    Severity.ERROR,
    Act.REFUSE,
    why="An adapter names the architecture it was made for (src/llama-adapter.cpp).",
    cost="The engine ends after loading the model.",
    help="an adapter works with the model that it was made from",
    example=Example(_MODEL + '[[model.lora]]\npath = "a.gguf"\n', ("an adapter for another architecture",)),
    counter=Example(_MODEL + '[[model.lora]]\npath = "a.gguf"\n', ("an adapter for this model",)),
)
def adapter_of_another_model(case: Case) -> Iterator[Found]:
    for index, _ in enumerate(case.profile.model.lora):
        key = f"model.lora.{index}.path"
        shape = case.files.shapes.get(key)
        if shape is None:
            continue
        if shape.kind != "adapter":
            yield Found(key, f"{shape.path.name} is no adapter but: {shape.kind}")
        elif case.shape is not None and shape.arch != case.shape.arch:
            yield Found(key, f"{shape.path.name} was made for {shape.arch}, the model is {case.shape.arch}")


@rule(
    "KV507",
    "draft-path-idle",
    Severity.WARNING,
    Act.IGNORE,
    why="ngram drafts from the conversation itself and reads no model.",
    cost="The file is loaded for nothing, or not at all.",
    help="leave path away",
    example=Example(_DRAFT + 'type = "ngram"\n'),
    counter=Example(_MODEL + '[model.draft]\ntype = "ngram"\n'),
)
def draft_path_idle(case: Case) -> Iterator[Found]:
    draft = case.profile.model.draft
    if draft is not None and draft.type == "ngram" and draft.path is not None:
        yield Found("model.draft.path", 'type = "ngram" reads no draft model')


@rule(
    "KV508",
    "template-taken-literally",
    Severity.ERROR,
    Act.CORRUPT,
    why="With jinja templates (the default) the only name that the engine knows is chatml; any other text is taken for "
    "the template itself: with --chat-template llama3 every prompt becomes the word `llama3` (seen on /apply-template; "
    "common/chat.cpp, common_chat_templates_init). The built-in names need --no-jinja.",
    cost="Every chat is answered as if nothing had been said.",
    example=Example(_MODEL + 'chat_template = "llama3"\n'),
    counter=Example(_MODEL + 'chat_template = "llama3"\n[engine]\nargs = ["--no-jinja"]\n'),
)
def template_taken_literally(case: Case) -> Iterator[Found]:
    template = case.profile.model.chat_template
    if not isinstance(template, str) or "{" in template or template == "chatml":
        return
    if template in _TEMPLATES:
        if "--no-jinja" not in case.profile.engine.args:
            yield Found(
                "model.chat_template",
                f'with jinja templates "{template}" is no name but the whole text of every prompt',
                'write args = ["--no-jinja"] under [engine], name a template file, or leave the key away for the '
                "model's own",
            )
        return
    meant = near(template, _TEMPLATES)
    yield Found(
        "model.chat_template",
        f'"{template}" is no template that the engine has',
        f'did you mean "{meant}"?' if meant else "write a file's path, or leave the key away for the model's own",
    )


@rule(
    "KV509",
    "template-broken",
    Severity.ERROR,
    Act.REFUSE,
    why="A template that the parser does not take ends the engine: `the supplied chat template is not supported` "
    "(common/arg.cpp:957).",
    cost="It does not start.",
    help="close what is opened, or name a template file",
    example=Example(_MODEL + 'chat_template = "{{ messages"\n'),
    counter=Example(_MODEL + 'chat_template = "{{ messages }}"\n'),
)
def template_broken(case: Case) -> Iterator[Found]:
    template = case.profile.model.chat_template
    if not isinstance(template, str):
        return
    for opening, closing in (("{{", "}}"), ("{%", "%}"), ("{#", "#}")):
        if template.count(opening) != template.count(closing):
            yield Found("model.chat_template", f"the template opens {opening} and does not close it, or the reverse")
            return


@rule(
    "KV510",
    "nothing-to-take-back",
    Severity.ERROR,
    Act.IGNORE,
    needs=Needs.MODEL,
    why="Tokens that a draft guessed wrong have to be taken out of the cache, and this model has none: `speculative "
    "decoding not supported by this context` (tools/server/server-context.cpp:1375).",
    cost="The draft is loaded, takes memory, and speeds nothing up.",
    help="leave [model.draft] away",
    example=Example(_MODEL + '[model.draft]\ntype = "ngram"\n', ("a diffusion model",)),
    counter=Example(_MODEL + '[model.draft]\ntype = "ngram"\n'),
)
def nothing_to_take_back(case: Case) -> Iterator[Found]:
    if case.profile.model.draft is not None and case.model.memory is Memory.NONE:
        yield Found("model.draft", f"{case.model.arch} has no cache that a wrong guess could be taken out of")


# src/llama-chat.cpp, LLM_CHAT_TEMPLATES
_TEMPLATES = frozenset(
    {
        "bailing", "bailing-think", "bailing2", "chatglm3", "chatglm4", "chatml", "command-r", "deepseek",
        "deepseek-ocr", "deepseek2", "deepseek3", "exaone-moe", "exaone3", "exaone4", "falcon3", "gemma",
        "gigachat", "glmedge", "gpt-oss", "granite", "granite-4.0", "granite-4.1", "grok-2", "hunyuan-dense",
        "hunyuan-moe", "hunyuan-vl", "kimi-k2", "llama2", "llama2-sys", "llama2-sys-bos", "llama2-sys-strip",
        "llama3", "llama4", "megrez", "minicpm", "mistral-v1", "mistral-v3", "mistral-v3-tekken", "mistral-v7",
        "mistral-v7-tekken", "monarch", "openchat", "orion", "pangu-embedded", "phi3", "phi4", "rwkv-world",
        "seed_oss", "smolvlm", "solar-open", "vicuna", "vicuna-orca", "yandex", "zephyr",
    }
)  # fmt: skip


def _source(case: Case) -> str:
    model = case.profile.model
    return "model.path" if model.path else "model.package" if model.package else "model.hub"


RULES = rules_of(globals())
