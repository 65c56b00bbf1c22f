"""A model hub reference, `owner/repo:QUANT`, by huggingface_hub (an optional extra)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from launcher.errors import BuildError, ProfileError


def find_in_hub_cache(reference: str, cache: Path) -> Path | None:
    """The model of this reference where it was fetched before; no network."""
    note = _note(reference, cache)
    if not note.is_file():
        return None
    path = Path(note.read_text().strip())
    return path if path.exists() else None


def fetch_from_hub(reference: str, cache: Path, progress: Callable[[int, int | None], None]) -> Path:
    """Fetch `owner/repo:QUANT` (all its shards); the first file comes back.

    Raises ProfileError (10) when the reference names nothing, BuildError (12) without the extra or without network.
    """
    if (here := find_in_hub_cache(reference, cache)) is not None:
        return here
    repo, _, quant = reference.partition(":")
    if repo.count("/") != 1:
        raise ProfileError(f"model.hub: {reference!r} is not owner/repo:QUANT", help='write hub = "owner/repo:Q4_K_M"')
    if find_spec("huggingface_hub") is None:
        raise BuildError(
            "model.hub needs the hub client, which is not installed",
            help="uv tool install 'kvlaunch[hub]' brings it; or fetch the file and give model.path",
        )
    from huggingface_hub import HfApi, hf_hub_download

    try:
        names = sorted(name for name in HfApi().list_repo_files(repo) if name.endswith(".gguf"))
        wanted = _matching(names, quant)
        if not wanted:
            raise ProfileError(
                f"{repo} has no GGUF that matches {quant or 'a model'}",
                help="it has: " + (", ".join(names[:12]) or "no GGUF at all"),
            )
        first: Path | None = None
        for number, name in enumerate(wanted):
            progress(number, len(wanted))
            here = Path(hf_hub_download(repo, name, cache_dir=cache / "hub"))
            first = first or here
    except ProfileError:
        raise
    except Exception as error:  # the client raises its own, requests' and httpx's errors
        raise BuildError(
            f"the hub did not give {reference}: {error}",
            help="is there a network? A file that is here already goes as model.path",
        ) from error
    assert first is not None  # `wanted` is not empty
    note = _note(reference, cache)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(f"{first}\n")
    return first


def _note(reference: str, cache: Path) -> Path:
    return cache / "hub" / (reference.replace("/", "--").replace(":", "--") + ".path")


def _matching(names: list[str], quant: str) -> list[str]:
    """The file, or all shards of the one model, whose name holds the quant; projectors and drafts left out."""
    models = [name for name in names if "mmproj" not in name.lower()]
    found = [name for name in models if quant.lower() in name.lower()]
    if not found:
        return []
    stem = found[0].split("-00001-of-")[0]
    return [name for name in found if name.startswith(stem)] if "-00001-of-" in found[0] else found[:1]
