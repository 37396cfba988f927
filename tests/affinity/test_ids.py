"""What is an ID, what looks random, what values of one minting place have in common."""

from __future__ import annotations

import random
import secrets
import string
import uuid

import pytest

from sessionworkers.affinity.ids import (
    MAX_ID,
    claim_key,
    is_word,
    looks_random,
    mask,
    set_mask_key,
    shape,
    valid_id,
)

VALID = [
    ("a", True),
    ("!~", True),
    ("x" * MAX_ID, True),
    ("", False),
    ("x" * (MAX_ID + 1), False),
    ("a b", False),
    ("a\tb", False),
    ("a\x7f", False),
    ("a\x00", False),
    ("caf\u00e9", False),
    ("\ud800", False),
]


@pytest.mark.parametrize(("value", "expected"), VALID)
def test_valid_id(value: str, expected: bool) -> None:
    assert valid_id(value) is expected


def test_the_limit_is_an_argument() -> None:
    assert valid_id("x" * 600, 600)
    assert not valid_id("x" * 601, 600)


def test_claim_key_is_128_bits_of_space_and_id() -> None:
    key = claim_key("mcp", "abc")
    assert len(key) == 32
    assert set(key) <= set("0123456789abcdef")
    assert key == claim_key("mcp", "abc")
    assert key != claim_key("mc", "pabc")
    assert key != claim_key("auto", "abc")
    assert claim_key("mcp", "\ud800") != key


def test_mask_tells_nothing_and_agrees_under_one_key() -> None:
    set_mask_key(b"one key")
    first = mask("secret-session-id")
    assert len(first) == 12
    assert "secret" not in first
    assert first == mask("secret-session-id")
    set_mask_key(b"another key")
    assert first != mask("secret-session-id")


RANDOM = [
    "550e8400-e29b-41d4-a716-446655440000",
    "550E8400-E29B-41D4-A716-446655440000",
    "urn:uuid:550e8400-e29b-41d4-a716-446655440000",
    "9f86d081884c7d659a2feaa0c55ad015",
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "507f1f77bcf86cd799439011",
    "sess_8f3kd9s0a1b2c3d4",
    "resources-session-0123456789abcdef0123456789abcdef",
    "VtYjr2eUSnFOqPXlA3Y8bw",
    "Bn-8yJKp_QxzW2m_4Lr-Tg",
    "X9_kQz-Rt5_bVn-Lp7_wYs",
]
NOT_RANDOM = [
    "",
    "alice",
    "1234567890123456",
    "20240131235959000000",
    "internationalization",
    "internationalization12",
    "my-long-session-name",
    "counter_server_name_",
    "00000000-0000-0000-0000-000000000000",
    "MySessionHandlerFactoryBean",
    "production-environment",
    "text/event-stream; charset",
    "hello world 1234567890abcdef1234",
    "http://host/0123456789abcdef0123",
    "a" * 300 + "1",
]


@pytest.mark.parametrize("value", RANDOM)
def test_looks_random(value: str) -> None:
    assert looks_random(value)


@pytest.mark.parametrize("value", NOT_RANDOM)
def test_does_not_look_random(value: str) -> None:
    assert not looks_random(value)


@pytest.mark.parametrize(
    ("make", "missed_at_most"),
    [
        (lambda: str(uuid.uuid4()), 0),
        (lambda: uuid.uuid4().hex, 0.0001),  # one in a million is nothing but digits
        (lambda: secrets.token_hex(12), 0.0005),
        (lambda: secrets.token_hex(8), 0.004),
        (lambda: secrets.token_urlsafe(16), 0.004),
        (lambda: secrets.token_urlsafe(24), 0.002),
        (lambda: secrets.token_urlsafe(32), 0.002),
        (lambda: "".join(random.choices(string.ascii_letters + string.digits, k=22)), 0.004),
    ],
    ids=["uuid", "hex32", "hex24", "hex16", "urlsafe16", "urlsafe24", "urlsafe32", "base62"],
)
def test_few_random_values_are_missed(make, missed_at_most: float) -> None:  # type: ignore[no-untyped-def]
    count = 4000
    missed = sum(not looks_random(make()) for _ in range(count))
    assert missed <= max(missed_at_most * count * 2, missed_at_most and 6)


SHAPES = [
    ("550e8400-e29b-41d4-a716-446655440000", "uuid"),
    ("sess-550e8400-e29b-41d4-a716-446655440000", "sess-uuid"),
    ("9f86d081884c7d659a2feaa0c55ad015", "hex32"),
    ("9F86D081884C7D659A2FEAA0C55AD015", "hex32"),
    ("sess_9f86d081884c7d659a2feaa0", "sess_hex24"),
    ("resources-session-0123456789abcdef0123456789abcdef", "resources-session-hex32"),
    ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "upp26"),
    ("8f3kd9s0a1b2c3d4zzyy", "low20"),
    ("VtYjr2eUSnFOqPXlA3Y8bw", "b64-22"),
    ("12345678", "num-8"),
    ("a.b!c", "txt-5"),
]


@pytest.mark.parametrize(("value", "expected"), SHAPES)
def test_shape(value: str, expected: str) -> None:
    assert shape(value) == expected


@pytest.mark.parametrize("size", [16, 24, 32])
def test_base64url_values_of_one_size_share_a_shape(size: int) -> None:
    shapes = {shape(secrets.token_urlsafe(size)) for _ in range(3000)}
    assert len(shapes) <= 2  # one in thousands may lack an upper-case letter, or begin as a prefix does


@pytest.mark.parametrize(("value", "expected"), [("start", True), ("batch-stop", True), ("s1", False), ("aBc", False)])
def test_is_word(value: str, expected: bool) -> None:
    assert is_word(value) is expected
