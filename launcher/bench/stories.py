"""Texts for the eviction bench: made from a seed, with one fact in them that can be asked for.

Two kinds: reports whose every sentence names people, places and numbers, and a log that says much the same each line.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_PEOPLE = [
    "Anna",
    "Boris",
    "Clara",
    "David",
    "Elena",
    "Farid",
    "Greta",
    "Hugo",
    "Irene",
    "Jonas",
    "Karin",
    "Luca",
    "Marta",
    "Nils",
    "Olga",
    "Pavel",
    "Rosa",
    "Simon",
]
_PLACES = [
    "Lisbon",
    "Tromso",
    "Kyoto",
    "Nairobi",
    "Quito",
    "Riga",
    "Turin",
    "Dublin",
    "Oslo",
    "Cairo",
    "Perth",
    "Lima",
    "Bergen",
    "Cork",
    "Graz",
    "Porto",
]
_THINGS = [
    "apples",
    "maps",
    "bicycles",
    "letters",
    "lamps",
    "coats",
    "bottles",
    "chairs",
    "drums",
    "kettles",
    "ropes",
    "paintings",
    "boxes",
    "tickets",
]
_ACTS = [
    "bought",
    "sold",
    "carried",
    "repaired",
    "counted",
    "painted",
    "ordered",
    "returned",
    "borrowed",
    "inspected",
    "wrapped",
    "shipped",
]
_WHEN = ("On Monday", "Last week", "In the morning", "After lunch", "At noon", "In March", "On Friday", "Before dawn")
_COLOURS = ["red", "blue", "green", "yellow", "black", "white", "silver", "golden", "purple", "orange"]
_ONWARD = 16  # tokens
_LOCKED = ["safe", "gate", "cabinet", "vault", "locker", "archive", "garage", "cellar", "tower", "shed"]

Tokenize = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Story:
    """Token ids throughout, so that nothing is tokenized differently from one request to the next."""

    kind: str
    text: list[int]
    needle: list[int]
    question: list[int]
    answer: list[int]
    onward: list[int]  # plain text of the same kind that goes on
    newline: int


def story(seed: int, depth: float, length: int, context: int, tokenize: Tokenize) -> Story:
    """`length` tokens; the needle begins `depth` of `context` tokens into them."""
    pick = random.Random(seed)
    kind = ("reports", "log")[seed % 2]
    sentences = _reports(pick) if kind == "reports" else _log(pick)
    lock = f"{pick.choice(_COLOURS)} {pick.choice(_LOCKED)}"
    fact = str(pick.randrange(10_000, 99_999))

    needle = tokenize(f" The pass code of the {lock} is {fact}.")
    text: list[int] = []
    placed = False
    while len(text) < length:
        if not placed and len(text) >= depth * context:
            text += needle
            placed = True
        text += tokenize(next(sentences))
    onward: list[int] = []
    while len(onward) < _ONWARD:
        onward += tokenize(next(sentences))
    return Story(
        kind=kind,
        text=text[:length],
        needle=needle,
        question=tokenize(f"\nQuestion: What is the pass code of the {lock}?\nAnswer: The pass code of the {lock} is"),
        answer=tokenize(f" {fact}"),
        onward=onward[:_ONWARD],
        newline=tokenize("\n")[-1],
    )


def _reports(pick: random.Random) -> Iterator[str]:
    while True:
        who, whom = pick.sample(_PEOPLE, 2)
        when, did, what, where = map(pick.choice, (_WHEN, _ACTS, _THINGS, _PLACES))
        yield pick.choice(
            (
                f" {when}, {who} {did} {pick.randrange(2, 90)} {what} in {where}.",
                f" {who} wrote to {whom} about the {what} from {where}.",
                f" The {what} were {did} by {who}, and {whom} took the rest to {where}.",
                f" {when} the train from {where} came {pick.randrange(3, 50)} minutes late, said {whom}.",
            )
        )


def _log(pick: random.Random) -> Iterator[str]:
    while True:
        yield pick.choice(
            (
                f" INFO request served in {pick.randrange(1, 30)} ms.",
                " INFO health check passed.",
                f" DEBUG cache hit for key user:{pick.randrange(1, 40)}.",
                " INFO connection closed by the client.",
                f" INFO worker {pick.randrange(1, 5)} is idle.",
            )
        )
