"""What the engine's help does not say of an option's value: ranges, words, forms, files. From common/arg.cpp."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

# what is_truthy, is_falsey and is_autoy take where the help says [on|off|auto] (common/arg.cpp:318-333)
SWITCH_WORDS = frozenset({"on", "enabled", "true", "1", "off", "disabled", "false", "0", "auto", "-1"})


@dataclass(frozen=True, slots=True)
class Limit:
    """What a value must be. `low` and `high` are inclusive; `form` says in words what `pattern` means.

    each    the value is a list, and this is said of every part
    closes  a pair of brackets that must be balanced
    """

    low: int | None = None
    high: int | None = None
    words: tuple[str, ...] = ()
    pattern: str = ""
    form: str = ""
    is_json: bool = False
    each: bool = False
    closes: str = ""

    def broken_by(self, value: str) -> str:
        """Why the value is refused, in words; empty where it is taken."""
        if self.each and "," in value:
            return next((why for part in value.split(",") if (why := self.broken_by(part))), "")
        if self.words and value not in self.words:
            return f'"{value}" is none of {", ".join(self.words)}'
        if self.pattern and re.fullmatch(self.pattern, value) is None:
            return f'"{value}" is not {self.form}'
        if self.closes and value.count(self.closes[0]) != value.count(self.closes[1]):
            return f"{self.closes[0]} and {self.closes[1]} do not match"
        if self.is_json:
            try:
                json.loads(value)
            except ValueError as error:
                return f"this is no JSON: {error}"
        if self.low is not None or self.high is not None:
            match = re.match(r"\s*[-+]?\d+", value)
            number = int(match[0]) if match else None
            if number is not None and self.low is not None and number < self.low:
                return f"{number} is below {self.low}"
            if number is not None and self.high is not None and number > self.high:
                return f"{number} is above {self.high}"
        return ""


_NGRAM = Limit(1, 1024)
_PRIORITY = Limit(0, 3)
_JSON = Limit(is_json=True)
_MASK = Limit(pattern=r"(0[xX])?[0-9a-fA-F]{1,128}", form="a mask of hexadecimal digits")
_RANGE = Limit(pattern=r"\d*-\d*", form="a range of processors such as 0-7")

LIMITS: Mapping[str, Limit] = {  # one spelling of each option is enough
    "--prio": Limit(-1, 3),
    "--prio-batch": _PRIORITY,
    "--spec-draft-prio": _PRIORITY,
    "--spec-draft-prio-batch": _PRIORITY,
    "--cpu-mask": _MASK,
    "--cpu-mask-batch": _MASK,
    "--cpu-range": _RANGE,
    "--cpu-range-batch": _RANGE,
    "--mirostat": Limit(0, 2),
    "--numa": Limit(words=("", "distribute", "isolate", "numactl")),
    "--lazy-mode": Limit(words=("on", "auto", "off")),
    "--n-cpu-ffn": Limit(low=0),
    "--reasoning-budget": Limit(low=-1),
    "--checkpoint-min-step": Limit(low=0),
    "--spec-draft-n-cpu-moe": Limit(low=0),
    "--spec-draft-n-max": Limit(low=0),
    "--spec-ngram-mod-n-min": Limit(0, 1024),
    "--spec-ngram-mod-n-max": Limit(0, 1024),
    "--spec-ngram-mod-n-match": _NGRAM,
    "--spec-ngram-simple-size-n": _NGRAM,
    "--spec-ngram-simple-size-m": _NGRAM,
    "--spec-ngram-simple-min-hits": Limit(low=1),
    "--spec-ngram-map-k-size-n": _NGRAM,
    "--spec-ngram-map-k-size-m": _NGRAM,
    "--spec-ngram-map-k-min-hits": Limit(low=1),
    "--spec-ngram-map-k4v-size-n": _NGRAM,
    "--spec-ngram-map-k4v-size-m": _NGRAM,
    "--spec-ngram-map-k4v-min-hits": Limit(low=1),
    "--reasoning-format": Limit(words=("none", "auto", "deepseek", "deepseek-legacy")),
    "--tools": Limit(
        words=(
            "all",
            "read_file",
            "file_glob_search",
            "grep_search",
            "exec_shell_command",
            "write_file",
            "edit_file",
            "get_info",
        ),
        each=True,
    ),
    "--logit-bias": Limit(pattern=r"\s*\d+\s*[+-].*\d.*", form="TOKEN+BIAS or TOKEN-BIAS"),
    "--seed": Limit(pattern=r"\s*[-+]?\d.*", form="a number"),
    # a parser of GBNF is the engine's; what is opened and never closed is the slip that happens
    "--grammar": Limit(closes="()"),
    "--chat-template-kwargs": _JSON,
    "--mcp-servers-json": _JSON,
    "--ui-config": _JSON,
    "--json-schema": _JSON,
    "--override-kv": Limit(
        pattern=r"[^=]+=(int:.+|float:.+|bool:(true|false)|str:.*)(,.*)?", form="KEY=TYPE:VALUE (int, float, bool, str)"
    ),
}

# options whose value is a file that must be there, and those whose value is a directory
FILE_OPTIONS = (
    "--grammar-file", "--json-schema-file", "-jf", "--control-vector", "--ui-config-file",
    "--webui-config-file", "--mcp-servers-config", "--ssl-key-file", "--ssl-cert-file",
)  # fmt: skip
DIRECTORY_OPTIONS = ("--slot-save-path", "--media-path", "--path")
