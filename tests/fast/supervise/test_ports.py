from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from launcher.errors import PortTaken
from launcher.supervise import ports
from launcher.supervise.ports import AddressUnusable


def test_a_free_port_is_bound_and_ours_to_see() -> None:
    with ports.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert not listener.getblocking()
        assert ports.listens(os.getpid(), port) is True
        assert ports.listens(os.getppid(), port) in (False, None)
        with pytest.raises(PortTaken, match=rf"port {port} on 127\.0\.0\.1 is taken by pid {os.getpid()} \("):
            ports.bind("127.0.0.1", port)


def test_port_0_prefers_the_last_one_and_does_without() -> None:
    with ports.bind("127.0.0.1", 0) as listener:
        taken = listener.getsockname()[1]
        with ports.bind("127.0.0.1", 0, preferred=taken) as other:
            assert other.getsockname()[1] not in (0, taken)
    with ports.bind("127.0.0.1", 0, preferred=taken) as again:
        assert again.getsockname()[1] == taken


def test_an_address_of_no_interface_of_ours() -> None:
    with pytest.raises(AddressUnusable, match=r"192\.0\.2\.1 is not an address of this machine"):
        ports.bind("192.0.2.1", 0)
    with pytest.raises(AddressUnusable, match=r"cannot listen on no-such-host\.invalid: "):
        ports.bind("no-such-host.invalid", 0)
    with pytest.raises(AddressUnusable, match=r"cannot listen on /nonexistent/a\.sock: No such file"):
        ports.bind("/nonexistent/a.sock", 0)


def test_a_stale_socket_file_is_no_obstacle_and_a_live_one_is() -> None:
    with tempfile.TemporaryDirectory(prefix="kv-") as home:
        path = str(Path(home) / "a.sock")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
        with ports.bind(path, 0) as listener:
            assert Path(path).stat().st_mode & 0o077 == 0
            with pytest.raises(PortTaken, match="somebody listens"):
                ports.bind(path, 0)
            assert listener.getsockname() == path


def test_a_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    precious = tmp_path / "notes.sock"
    precious.write_text("mine")
    with pytest.raises(PortTaken, match="is there already, and no socket"):
        ports.bind(str(precious), 0)
    assert precious.read_text() == "mine"
