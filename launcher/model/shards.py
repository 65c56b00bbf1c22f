"""A model in several files: `NAME-00001-of-00003.gguf`. Any of them names them all.

Paths stay as they were given: a cache of a model hub is a folder of links, and only the links have these names.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from launcher.errors import ProfileError
from launcher.model.gguf import Header, TensorInfo, read_header

# llama_split_path, src/llama.cpp: "%s-%05d-of-%05d.gguf"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MAX_SHARDS = 1024


def shard_paths(path: Path) -> tuple[Path, ...]:
    """All shards that the name of one of them implies, in order; just `path` for another name."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return (path,)
    count, number = int(match["count"]), int(match["number"])
    if not 1 <= number <= count <= _MAX_SHARDS:
        return (path,)
    return tuple(path.with_name(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1))


def read_shards(path: Path, *, member: str | None = None) -> tuple[tuple[Header, ...], tuple[TensorInfo, ...]]:
    """The headers of all shards and the joined tensor table. Missing shards are named, all of them."""
    paths = shard_paths(path)
    missing = [shard.name for shard in paths if not shard.exists()] if len(paths) > 1 else []
    if missing:
        raise ProfileError(
            f"{path}: {_counted(len(missing), len(paths))} missing: {', '.join(missing[:8])}"
            f"{' …' if len(missing) > 8 else ''}",
            help=f"all {len(paths)} shards must lie in {path.parent}",
        )
    headers = tuple(read_header(shard, member=member) for shard in paths)
    _check_split(path, headers)
    tensors = tuple(
        replace(tensor, file=index) if index else tensor
        for index, header in enumerate(headers)
        for tensor in header.tensors
    )
    names = {tensor.name for tensor in tensors}
    if len(names) != len(tensors):
        raise ProfileError(f"{path}: two of its shards hold the same tensor", help="these files are not of one model")
    return headers, tensors


def _counted(missing: int, count: int) -> str:
    return f"{missing} of its {count} shards {'is' if missing == 1 else 'are'}"


def _check_split(path: Path, headers: tuple[Header, ...]) -> None:
    """What the files say of the split against what their names say (src/llama-model-loader.cpp:595-673)."""
    for number, header in enumerate(headers):
        said = header.metadata.get("split.count", 0)
        count = said if isinstance(said, int) else 0
        if max(count, 1) == len(headers) and (len(headers) == 1 or header.metadata.get("split.no") == number):
            continue
        if len(headers) == 1:
            raise ProfileError(
                f"{path}: is one of {count} shards, but its name does not say which",
                help="give the shards back their names: NAME-00001-of-" + f"{count:05d}.gguf and so on",
            )
        raise ProfileError(
            f"{header.path}: its name says shard {number + 1} of {len(headers)}, the file itself {_said(header)}",
            help="give the shards back the names they were downloaded with",
        )


def _said(header: Header) -> str:
    number, count = header.metadata.get("split.no"), header.metadata.get("split.count")
    if isinstance(number, int) and isinstance(count, int) and count > 1:
        return f"says {number + 1} of {count}"
    return "says nothing of shards"
