"""0006: a session finds its KV again, in its slot or in the RAM cache, and nobody takes it away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .engine import Server, words

SLACK = 4  # tokens that a turn may compute beyond its new ones

MODES = {
    "default": ("-c", 4096),
    "2 split": ("-c", 4096, "-np", 2),
    "2 unified": ("-c", 4096, "-np", 2, "-kvu"),
    "1": ("-c", 4096, "-np", 1),
    "no RAM cache": ("-c", 4096, "--cache-ram", 0),
    "idle slots kept": ("-c", 4096, "-np", 2, "-kvu", "--no-cache-idle-slots"),
}
START = words(150, seed=1)


@pytest.fixture(autouse=True)
def _patched(needs: Callable[[str], None]) -> None:
    needs("--session-affinity")


class Session:
    """A conversation that grows: each turn sends all of it and some new words, as a chat client does."""

    def __init__(self, server: Server, name: str | None, prefix: str = START) -> None:
        self.server, self.name, self.text, self.turns = server, name, prefix, 0

    def turn(self, n_new: int = 20, n_answer: int = 8, **fields: Any) -> tuple[int, int]:
        """(tokens that were new in this turn, tokens that the engine computed for the prompt)."""
        self.turns += 1
        before = self.length() if self.turns > 1 else 0
        self.text += " " + words(n_new, seed=1000 * len(self.text) + self.turns)
        if self.name is not None:
            fields = {"session_id": self.name, **fields}
        total = self.length()
        answer = self.server.complete(self.text, n=n_answer, cache_prompt=True, **fields)
        self.text += answer["content"]
        self.slot = answer["id_slot"]
        return total - before, answer["timings"]["prompt_n"]

    def length(self) -> int:
        return len(self.server.post("/tokenize", {"content": self.text})[1]["tokens"])


def later_turns(sessions: list[Session], turns: int) -> list[tuple[int, int]]:
    return [session.turn() for _ in range(turns) for session in sessions]


@pytest.mark.parametrize("mode", MODES)
def test_two_sessions_with_a_shared_prefix_alternate(start: Callable[..., Server], mode: str) -> None:
    server = start(*MODES[mode], "--session-affinity")
    sessions = [Session(server, "a"), Session(server, "b")]
    for session in sessions:
        session.turn()
    for new, computed in later_turns(sessions, 3):
        assert computed <= new + SLACK


def test_upstream_computes_the_history_again(start: Callable[..., Server]) -> None:
    """The measure of the above: without the option the same turns cost more."""
    server = start(*MODES["default"])
    sessions = [Session(server, None), Session(server, None)]
    for i, session in enumerate(sessions):
        session.text = START + f" {i}"
        session.turn(n_new=20 + i)
    costs = later_turns(sessions, 3)
    assert sum(computed for _, computed in costs) > 2 * sum(new for new, _ in costs)


def test_eight_sessions_on_four_slots(start: Callable[..., Server]) -> None:
    server = start("-c", 4096, "--session-affinity")
    sessions = [Session(server, f"s{i}") for i in range(8)]
    for session in sessions:
        session.turn()
    for new, computed in later_turns(sessions, 2):
        assert computed <= new + SLACK


def test_a_new_session_copies_a_prefix_and_steals_nothing(start: Callable[..., Server]) -> None:
    server = start("-c", 4096, "-np", 1, "--session-affinity")
    first, second = Session(server, "a"), Session(server, "b")
    first.turn()
    _, computed = second.turn()
    assert computed < 40, "the shared prefix was computed again"
    new, computed = first.turn()
    assert computed <= new + SLACK, "the copy was a theft"


@pytest.mark.parametrize("mode", ["no RAM cache", "idle slots kept"])
def test_a_prefix_is_copied_from_slot_to_slot(start: Callable[..., Server], mode: str) -> None:
    """Without a RAM cache, too: a new session's slot is empty, the other's holds what both begin with."""
    server = start(*MODES[mode], "--session-affinity")
    first, second = Session(server, "a"), Session(server, "b")
    first.turn()
    _, computed = second.turn()
    assert second.slot != first.slot
    assert computed < 40, "the shared prefix was computed again"
    for new, computed in later_turns([first, second], 2):
        assert computed <= new + SLACK
    # what was copied is right: the same text as from an engine that computes all of it
    text = second.text + " " + words(20, seed=99)
    ours = server.complete(text, n=12, cache_prompt=True, session_id="b")["content"]
    assert ours == start(*MODES[mode]).complete(text, n=12)["content"]


def test_a_pool_without_room_for_a_copy_is_no_fault(start: Callable[..., Server]) -> None:
    server = start("-c", 512, "-np", 2, "-kvu", "--cache-ram", 0, "--session-affinity")
    first, second = Session(server, "a", words(330, seed=2)), Session(server, "b", words(330, seed=2))
    first.turn(n_new=10)
    second.turn(n_new=10)  # no cells are left: the other's are purged, as upstream does
    new, computed = second.turn(n_new=5)
    assert computed <= new + SLACK


def test_a_side_request_does_not_cost_the_conversation(start: Callable[..., Server]) -> None:
    """Clients ask for a title, say, under the same session: another prompt, then the conversation goes on."""
    server = start("-c", 4096, "--session-affinity")
    session = Session(server, "a")
    session.turn()
    server.complete("Give a title: " + words(30, seed=77), n=4, session_id="a")
    new, computed = session.turn()
    assert computed <= new + SLACK


def test_nor_does_one_that_shares_its_beginning(start: Callable[..., Server]) -> None:
    """The same system prompt, another task, while the conversation's state waits in the RAM cache."""
    server = start("-c", 4096, "--session-affinity")
    session = Session(server, "a", words(300, seed=1))
    session.turn()
    Session(server, "b", words(60, seed=2)).turn()  # the launch clears the first session's slot
    server.complete(words(300, seed=1)[:400] + " Give a title", n=4, session_id="a")
    Session(server, "c", words(60, seed=3)).turn()
    new, computed = session.turn()
    assert computed <= new + SLACK


def test_unnamed_requests_choose_as_upstream(start: Callable[..., Server], reference_binary: Any) -> None:
    texts = [words(60, seed=s % 3) + words(15, seed=s) for s in range(9)]

    def trace(server: Server) -> list[tuple[int, int]]:
        answers = [server.complete(text, n=4, cache_prompt=True) for text in texts]
        return [(answer["id_slot"], answer["timings"]["prompt_n"]) for answer in answers]

    assert trace(start("-c", 2048, "--session-affinity")) == trace(start("-c", 2048, binary=reference_binary))


def test_an_unnamed_request_takes_a_slot_but_no_state(start: Callable[..., Server]) -> None:
    server = start("-c", 2048, "-np", 1, "--session-affinity")
    session, stranger = Session(server, "a"), Session(server, None, prefix=words(80, seed=5))
    session.turn()
    stranger.turn()
    new, computed = session.turn()
    assert computed <= new + SLACK


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"X-Session-Id": "h"}, {}),
        ({"x-session-id": "h"}, {}),
        ({}, {"metadata": {"user_id": "h"}}),
        ({}, {"session_id": "h"}),
    ],
)
def test_ways_to_name_a_session(start: Callable[..., Server], headers: dict[str, str], fields: dict[str, Any]) -> None:
    server = start("-c", 1024, "--session-affinity")
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}
    status, answer = server.request("POST", "/v1/chat/completions", body, headers)
    assert status == 200, answer
    assert [slot.get("session_id") for slot in server.get("/slots")[1]].count("h") == 1


def test_anthropic_clients_name_it_by_their_metadata(start: Callable[..., Server]) -> None:
    server = start("-c", 1024, "--session-affinity")
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "metadata": {"user_id": "u1"}}
    status, answer = server.post("/v1/messages", body)
    assert status == 200, answer
    assert "u1" in [slot.get("session_id") for slot in server.get("/slots")[1]]


def test_bad_ids_are_refused_and_long_metadata_is_not(start: Callable[..., Server]) -> None:
    server = start("-c", 512, "--session-affinity")
    for bad in ("", "x" * 257, 7, ["a"]):
        status, answer = server.post("/completion", {"prompt": "Hi", "n_predict": 1, "session_id": bad})
        assert status == 400 and "session_id" in answer["error"]["message"]
    status, _ = server.post("/completion", {"prompt": "Hi", "n_predict": 1, "metadata": {"user_id": "x" * 999}})
    assert status == 200


def test_several_prompts_are_no_session(start: Callable[..., Server]) -> None:
    server = start("-c", 1024, "--session-affinity")
    status, _ = server.post("/completion", {"prompt": ["One", "Two"], "n_predict": 2, "session_id": "a"})
    assert status == 200
    assert not any(slot.get("session_id") for slot in server.get("/slots")[1])


def test_several_answers_leave_other_sessions_their_state(start: Callable[..., Server]) -> None:
    server = start("-c", 4096, "-np", 2, "-kvu", "--session-affinity", "--no-cache-idle-slots")
    first, second = Session(server, "a"), Session(server, "b")
    first.turn()
    second.turn()
    status, _ = server.post(
        "/completion", {"prompt": words(40, seed=9), "n_predict": 4, "n_cmpl": 2, "session_id": "c", "temperature": 0}
    )
    assert status == 200
    for session in (first, second):
        new, computed = session.turn()
        assert computed <= new + SLACK


def test_a_small_cache_gives_way_to_the_session_that_returns(start: Callable[..., Server]) -> None:
    """The pool holds one of the two: the idle one moves to RAM and comes back, nothing is lost."""
    server = start("-c", 512, "-np", 2, "-kvu", "--session-affinity", "--no-cache-idle-slots")
    sessions = [Session(server, "a", words(150, seed=2)), Session(server, "b", words(150, seed=3))]
    for session in sessions:
        session.turn(n_new=60)
    for new, computed in later_turns(sessions, 2):
        assert computed <= new + SLACK


@pytest.mark.parametrize("prefix", [150, 900])
def test_gemma_with_its_sliding_window(
    start: Callable[..., Server], gemma3_model: Any, reference_binary: Any, prefix: int
) -> None:
    """Its window is 512: the longer state comes back without the cells that nothing can see any more."""
    server = start("-c", 4096, "--session-affinity", model=gemma3_model)
    sessions = [Session(server, name, words(prefix, seed=1)) for name in ("a", "b")]
    for session in sessions:
        session.turn()
    for new, computed in later_turns(sessions, 2):
        assert computed <= new + SLACK
    # and the states are right: the same text as from an engine that computes all of it
    text = sessions[0].text + " " + words(20, seed=99)
    ours = server.complete(text, n=12, cache_prompt=True, session_id="a")["content"]
    assert ours == start("-c", 4096, model=gemma3_model, binary=reference_binary).complete(text, n=12)["content"]
