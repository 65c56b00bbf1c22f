"""The public address: bound before anything is spawned, and its present owner named when it is taken."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from launcher.errors import PortTaken, ProfileError
from launcher.supervise import proc

BACKLOG = 4096
"""Connections wait here while an engine restarts; the kernel cuts it to net.core.somaxconn."""
_LISTEN = "0A"  # include/net/tcp_states.h


class AddressUnusable(ProfileError):
    """Nobody has it: this machine, or this user, can't listen there at all."""


def is_unix(host: str) -> bool:
    """The engine takes a host that ends in .sock for a unix socket."""
    return host.endswith(".sock")


def bind(host: str, port: int, *, preferred: int = 0) -> socket.socket:
    """A listening socket, non-blocking. With port 0 `preferred` is tried first.

    Raises PortTaken with the owner, and AddressUnusable.
    """
    if is_unix(host):
        return _bind_unix(host)
    if port == 0 and preferred:
        with contextlib.suppress(PortTaken):
            return bind(host, preferred)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # without it a port whose last connections are in TIME_WAIT is refused; on Linux it does not let two listen
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(taken_words(host, port), help="stop it, or choose another serve.port") from None
        raise _unusable(host, port, error) from None
    listener.setblocking(False)  # two engines may wait on it during a hand-over: both wake, one accepts
    return listener


def _unusable(host: str, port: int, error: OSError) -> AddressUnusable:
    if error.errno == errno.EACCES:
        return AddressUnusable(f"port {port} may not be used by this user", help="choose one above 1023")
    if error.errno == errno.EADDRNOTAVAIL:
        words = f"{host} is not an address of this machine"
        return AddressUnusable(words, help='see `ip addr`, or write serve.host = "0.0.0.0" for all of them')
    return AddressUnusable(f"cannot listen on {host}: {error.strerror or error}", help="see serve.host")


def _bind_unix(path: str) -> socket.socket:
    """A socket file of a dead listener is in the way of bind(2); one that answers is somebody's."""
    clear_stale(path)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"{path} is there already, and no socket", help="see serve.host") from None
        raise _unusable(path, 0, error) from None
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


def clear_stale(path: str) -> None:
    """Remove the socket file that nobody listens on any more. Raises PortTaken where somebody does."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
        except OSError:
            return
        else:
            raise PortTaken(f"somebody listens on {path} already", help="stop it, or choose another serve.host")


def taken_words(host: str, port: int) -> str:
    """Who has the port, as far as this user may see."""
    for pid in owners(port):
        return f"port {port} on {host} is taken by pid {pid} ({proc.command(pid)})"
    return f"port {port} on {host} is taken by a process of another user"


def owners(port: int) -> Iterator[int]:
    """The processes that listen on a TCP port."""
    inodes = set(_listening_inodes(port))
    if not inodes:
        return
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit() and inodes & set(socket_inodes(int(entry))):
            yield int(entry)


def listens(pid: int, port: int) -> bool | None:
    """Whether this process holds a listener on the port. None where that cannot be seen."""
    inodes = set(_listening_inodes(port))
    held = set(socket_inodes(pid))
    return bool(inodes & held) if inodes and held else None


def socket_inodes(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
            if target.startswith("socket:["):
                yield target[8:-1]


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                yield fields[9]
