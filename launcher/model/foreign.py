"""What a file is that is no GGUF, in the words of someone who downloaded the wrong thing."""

from __future__ import annotations

import struct

NOT_A_MODEL_HELP = "model.path wants a GGUF file, its first shard, or a llamafile that carries one"

_SIGNS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "is a git-lfs pointer, not the model: run `git lfs pull` where it was cloned"),
    (b"/annex/objects/", "is a git-annex pointer, not the model: run `git annex get`"),
    (b"PK\x03\x04", "is a zip archive (a PyTorch checkpoint or a package) without a GGUF in it"),
    (b"\x1f\x8b", "is gzip-compressed: unpack it first"),
    (b"\xfd7zXZ\x00", "is xz-compressed: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "is zstd-compressed: unpack it first"),
    (b"BZh", "is bzip2-compressed: unpack it first"),
    (b"7z\xbc\xaf", "is a 7-Zip archive: unpack it first"),
    (b"\x80\x02", "is a Python pickle (a PyTorch checkpoint): convert it to GGUF"),
    (b"\x80\x04", "is a Python pickle (a PyTorch checkpoint): convert it to GGUF"),
    (b"\x89HDF", "is an HDF5 file (Keras): convert it to GGUF"),
    (b"lmgg", "is a GGML file from before GGUF: convert it, or get the GGUF"),
    (b"fmgg", "is a GGML file from before GGUF: convert it, or get the GGUF"),
    (b"tjgg", "is a GGML file from before GGUF: convert it, or get the GGUF"),
    (b"algg", "is a GGLA adapter from before GGUF: convert it"),
    (b"\x7fELF", "is a program, and no llamafile: there is no GGUF in it"),
    (b"MZ", "is a program, and no llamafile: there is no GGUF in it"),
)


def describe(head: bytes, size: int) -> str:
    """`head` is the first few hundred bytes of a file of `size` bytes. The answer completes "PATH: …"."""
    if size == 0:
        return "is empty"
    if not head.strip(b"\x00"):
        return "begins with zeros: the download was laid out and never filled"
    for sign, words in _SIGNS:
        if head.startswith(sign):
            return words
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "is a web page, not a model: the link led to a page, or the download needs a login"
    if _is_safetensors(head, size):
        return "is a safetensors file: convert it to GGUF (llama.cpp's convert_hf_to_gguf.py)"
    if text.startswith((b"{", b"[")):
        return "is a JSON document (an error message of the download, or an index), not a model"
    shown = head[:4].decode("ascii", "replace")
    shown = shown if shown.isprintable() and shown.isascii() else head[:4].hex(" ")
    return f"does not begin with GGUF but with {shown!r}"


def _is_safetensors(head: bytes, size: int) -> bool:
    """Eight bytes of length, then that much JSON."""
    if len(head) < 10:
        return False
    length: int = struct.unpack_from("<Q", head)[0]
    return length < size and head[8:10] in (b'{"', b"{ ", b"{\n", b"{}")
