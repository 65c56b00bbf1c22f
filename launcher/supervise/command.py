"""The engine's command line as it is really started: the plan's options, and our own for addresses and log."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.supervise.spec import LaunchSpec

_OURS = {"--host": 1, "--port": 1, "--listen-fd": 1, "--log-jsonl": 0, "-lv": 1, "--verbosity": 1, "--log-verbosity": 1}
"""Options that this module alone writes, with the number of their values."""
_LOUD_ENOUGH = "4"
"""Residency ("KV buffer size", "offloaded n/m layers") is written from this level on."""


def engine_command(spec: LaunchSpec, port: int, listeners: Sequence[int] = (), private: str | None = None) -> list[str]:
    """`listeners`: descriptors of the public address, where the engine takes them. `private`: a socket for probes."""
    words = [spec.binary, *_without_ours(spec.argv)]
    hosts = list(spec.hosts)
    if listeners:
        # all public addresses are among them, unix sockets too: what stands in --host is the private one
        words += ["--listen-fd", ",".join(map(str, listeners))]
        hosts = []
    if private is not None:
        hosts.append(private)
    words += ["--host", ",".join(hosts)]
    words += ["--port", str(port)]
    if spec.log_jsonl:
        words += ["--log-jsonl", "-lv", _LOUD_ENOUGH]
    return words


def _without_ours(argv: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = 0
    for word in argv:
        if skip:
            skip -= 1
        elif word in _OURS:
            skip = _OURS[word]
        else:
            kept.append(word)
    return kept
