"""The few words that systemd wants to hear (man sd_notify). Without NOTIFY_SOCKET nothing is said."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


class Notifier:
    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        # ping twice within the limit; systemd's limit attests our event loop, not the engine
        microseconds = environ.get("WATCHDOG_USEC", "")
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog = int(microseconds) / 2e6 if microseconds.isdigit() and mine else 0.0

    def say(self, **words: str) -> None:
        """`say(READY="1", STATUS="…")`."""
        if not self._address:
            return
        text = "\n".join(f"{key}={value}" for key, value in words.items())
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(text.encode(), self._address)
