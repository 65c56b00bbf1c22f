"""Asks the kernel whether this machine could listen on the addresses that a profile names: a trial bind to no port.

Names are left alone: to resolve one may take longer than everything else that `check` does.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Sequence
from ipaddress import ip_address

_LOOKS_NUMERIC = re.compile(r"[\d.]+|[\[\]0-9a-fA-F:.%]*:[\[\]0-9a-zA-Z:.%]*")


def unusable_addresses(hosts: Sequence[str]) -> dict[int, str]:
    """Why nothing can listen on an address, in words, by its place in the list."""
    found: dict[int, str] = {}
    for index, host in enumerate(hosts):
        if not host.endswith(".sock") and _LOOKS_NUMERIC.fullmatch(host) and (why := _unusable(host)):
            found[index] = why
    return found


def _unusable(host: str) -> str:
    try:
        address = ip_address(host)
    except ValueError:
        bare = host.strip("[]")
        return "is written without brackets here" if bare != host and ":" in bare else "is no address"
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((host, 0))
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return "is no address of this machine"
        if error.errno == errno.EAFNOSUPPORT:
            return f"is IPv{address.version}, which this machine does not have"
        return f"cannot be listened on: {error.strerror or error}"
    return ""
