"""The rule's table, row by row, and that no combination is left without an answer."""

from __future__ import annotations

import itertools

import pytest

from sessionworkers.affinity.decide import Answer, Arrival, Claim, Names, claims_on_sight, decide, refuses_late_start
from sessionworkers.affinity.rules import Mint, Rule
from sessionworkers.affinity.ruleset import Found, Named
from sessionworkers.affinity.words import parse_rule

PUBLIC, PRIVATE = Arrival.PUBLIC, Arrival.PRIVATE
NOTHING, AN_ID, CONFLICT = Names.NOTHING, Names.AN_ID, Names.CONFLICT

ROWS = [
    # arrived, names, claim, inferred, start, answer
    (PRIVATE, AN_ID, Claim.MINE, False, False, Answer.HERE),
    (PRIVATE, AN_ID, Claim.NONE, False, False, Answer.HERE),
    (PRIVATE, NOTHING, Claim.NONE, False, True, Answer.HERE),
    (PRIVATE, AN_ID, Claim.OTHER, False, False, Answer.NOT_MINE),
    (PRIVATE, AN_ID, Claim.OTHER, False, True, Answer.CONFLICT),
    (PRIVATE, AN_ID, Claim.GONE, False, False, Answer.NOT_MINE),
    (PUBLIC, NOTHING, Claim.NONE, False, False, Answer.HERE),
    (PUBLIC, CONFLICT, Claim.OTHER, False, True, Answer.CONFLICT),
    (PUBLIC, CONFLICT, Claim.MINE, False, False, Answer.CONFLICT),
    (PUBLIC, AN_ID, Claim.MINE, False, False, Answer.HERE),
    (PUBLIC, AN_ID, Claim.OTHER, False, False, Answer.HOP),
    (PUBLIC, AN_ID, Claim.OTHER, True, False, Answer.HOP),
    (PUBLIC, AN_ID, Claim.OTHER, False, True, Answer.HOP),
    (PUBLIC, AN_ID, Claim.GONE, False, False, Answer.GONE),
    (PUBLIC, AN_ID, Claim.GONE, True, False, Answer.HERE),
    (PUBLIC, AN_ID, Claim.NONE, False, False, Answer.HERE),
    (PUBLIC, AN_ID, Claim.NONE, True, True, Answer.HERE),
]


@pytest.mark.parametrize(("arrival", "names", "claim", "inferred", "start", "answer"), ROWS)
def test_row(arrival: Arrival, names: Names, claim: Claim, inferred: bool, start: bool, answer: Answer) -> None:
    assert decide(arrival, names, claim, inferred=inferred, start=start) is answer


def test_every_combination_has_an_answer_and_nothing_hops_twice() -> None:
    flags = (False, True)
    for arrival, names, claim, inferred, start in itertools.product(Arrival, Names, Claim, flags, flags):
        answer = decide(arrival, names, claim, inferred=inferred, start=start)
        if arrival is PRIVATE:
            assert answer in (Answer.HERE, Answer.NOT_MINE, Answer.CONFLICT)
        if inferred and names is not CONFLICT:
            assert answer not in (Answer.GONE,), "an inferred ID never refuses"


def found(words: str, *, carrier: int = 0, start: bool = False, end: bool = False, verified: bool = True) -> Found:
    rule: Rule = parse_rule(words, "r")
    return Found(rule, Named("x" * 20, "k", carrier, verified), (), start, end, ())


@pytest.mark.parametrize(
    ("words", "kwargs", "on_sight"),
    [
        ("header:x-sid", {}, False),
        ("header:x-sid", {"start": True}, False),
        ("header:x-sid mint=client", {}, True),
        ("json:sid start=POST:/start end=POST:/end", {}, False),
        ("json:sid start=POST:/start end=POST:/end", {"start": True}, True),
        ("json:sid start=POST:/start end=POST:/end", {"end": True}, True),
        ("json:sid cookie:sid start=POST:/start end=POST:/end", {"start": True, "carrier": 1}, False),
        ("token:x-token/sid", {"verified": False}, False),
    ],
)
def test_claimed_on_sight_only_where_clients_mint(words: str, kwargs: dict[str, bool], on_sight: bool) -> None:
    one = found(words, **kwargs)  # type: ignore[arg-type]
    assert claims_on_sight(one, one.primary) is on_sight


@pytest.mark.parametrize(
    ("words", "carrier", "refused"),
    [
        ("json:sid cookie:sid start=POST:/start end=POST:/end late-start=refuse", 0, True),
        ("json:sid cookie:sid start=POST:/start end=POST:/end late-start=refuse", 1, False),
        ("json:sid start=POST:/start end=POST:/end", 0, False),
    ],
)
def test_late_starts_are_refused_for_ids_that_clients_mint(words: str, carrier: int, refused: bool) -> None:
    assert refuses_late_start(found(words, carrier=carrier, start=True)) is refused


def test_mint_is_a_closed_set() -> None:
    assert {each.value for each in Mint} == {"app", "client"}
