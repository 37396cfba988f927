"""When to try again: pauses and Retry-After."""

from __future__ import annotations

import datetime

import pytest

from sessionworkers.client.retry import LONGEST, TRIES, pause, retry_after


def test_pauses_grow_to_five_seconds_with_jitter() -> None:
    assert [pause(n, None, 1.0) for n in range(1, 7)] == [0.25, 0.5, 1, 2, 4, LONGEST]
    assert pause(3, None, 0.0) == 0.5
    assert sum(pause(n, None, 1.0) for n in range(1, TRIES)) < 25


def test_retry_after_is_the_least() -> None:
    assert pause(1, 2.0, 0.0) == 2.0
    assert 2.0 <= pause(1, 2.0, 0.99) <= 2.2
    assert pause(6, 0.0, 1.0) == LONGEST
    assert pause(1, 1e9, 0.0) == 60


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("0", 0.0),
        ("-3", None),
        ("x", None),
        ("Wed, 21 Oct 2026 07:28:10 GMT", 10.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
    ],
)
def test_retry_after_has_two_forms(value: str | None, seconds: float | None) -> None:
    now = datetime.datetime(2026, 10, 21, 7, 28, 0, tzinfo=datetime.timezone.utc)
    assert retry_after({} if value is None else {"Retry-After": value}, now) == seconds
