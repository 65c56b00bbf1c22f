from __future__ import annotations

import socket

import pytest

from launcher.rules.addresses import unusable_addresses


def test_addresses_of_this_machine_names_and_sockets_are_left_alone() -> None:
    assert unusable_addresses(("127.0.0.1", "0.0.0.0", "127.8.8.8", "localhost", "nas.local", "/run/kv.sock")) == {}


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("203.0.113.7", "is no address of this machine"),  # RFC 5737: nobody's
        ("300.1.1.1", "is no address"),
        ("127.0.0", "is no address"),
        ("[::1]", "is written without brackets here"),
    ],
)
def test_what_nobody_can_listen_on_is_told_by_its_place(host: str, words: str) -> None:
    assert unusable_addresses(("127.0.0.1", host)) == {1: words}


def test_an_address_that_is_in_use_is_still_one_of_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert unusable_addresses(("127.0.0.1",)) == {}
