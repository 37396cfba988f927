"""One field of a JSON document, read without building the rest."""

from __future__ import annotations

import json
import time

import pytest

from sessionworkers.affinity.documents import MISSING, FieldReader, as_id, decode

FIELDS = [
    ("session_id", b'{"session_id": "abc"}', "abc"),
    ("session_id", b' {"x": [1, {"session_id": "no"}], "session_id": "abc"} ', "abc"),  # twice by name: read slowly
    ("session_id", b'{"x": [1, 2, {"y": null}], "session_id": 7}', 7),
    ("session_id", b'{"session_id": null}', None),
    ("session_id", b'{"session_id": {"a": 1}}', MISSING),
    ("session_id", b'{"session_id": ["a"]}', MISSING),
    ("session_id", b'["session_id"]', MISSING),
    ("session_id", b'"session_id"', MISSING),
    ("session_id", b'{"session_id": "abc"', MISSING),
    ("session_id", b"", MISSING),
    ("a.b", b'{"a": {"b": "x"}}', "x"),
    ("a.b", b'{"a": {"c": "x"}, "b": "y"}', MISSING),
    ("a.b", b'{"a": "x", "b": "y"}', MISSING),
    ("a.b", b'{"a": {"b": "x", "z": {"b": "y"}}}', "x"),
    ("id", b'{"id": "a", "id": "b"}', MISSING),
    ("id", b'{"id": "a", "id": "a"}', MISSING),
    ("id", b'{"id": "a", "i\\u0064": "b"}', MISSING),
    ("id", b'{"i\\u0064": "b"}', "b"),
    ("a.b", b'{"a": {"b": "1"}, "a": {"b": "2"}}', MISSING),
    ("id", b'{"list": [{"id": "x"}, {"id": "y"}], "id": "z"}', "z"),
    ("id", b'{"id": "z", "value": NaN}', "z"),
    ("id", b'{"id": "z", "value": "\\ud800"}', "z"),
    ("id", b'\xef\xbb\xbf{"id": "z"}', "z"),
    ("sitzungs-id", '{"sitzungs-id": "\u00e4"}'.encode(), "\u00e4"),
    ("id", b'{"id": tru', MISSING),
    ("id", b"\xff\xfe\x00", MISSING),
]


@pytest.mark.parametrize(("field", "data", "expected"), FIELDS)
def test_read(field: str, data: bytes, expected: object) -> None:
    assert FieldReader(field).read(data) == expected


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b"])
def test_no_field(text: str) -> None:
    with pytest.raises(ValueError, match="joined by dots"):
        FieldReader(text)


def test_megabytes_pass_at_parser_speed() -> None:
    data = json.dumps({"data": [{"x": i, "y": "z" * 20} for i in range(100_000)], "session_id": "abc"}).encode()
    assert len(data) > 4_000_000
    start = time.perf_counter()
    assert FieldReader("session_id").read(data) == "abc"
    assert time.perf_counter() - start < 0.5


def test_a_repeated_key_in_a_large_body_is_refused() -> None:
    data = b'{"id": "a", "pad": "%b", "id": "b"}' % (b"x" * 300_000)
    assert FieldReader("id").read(data) is MISSING


@pytest.mark.parametrize("data", [b"[" * 10_000, b'{"a":' * 10_000, b'{"id":' * 5000 + b"1" + b"}" * 5000])
def test_deep_documents_name_nothing(data: bytes) -> None:
    decode(data)  # how deep one may nest is the interpreter's choice; that it never raises is not
    assert FieldReader("id").read(data) is MISSING


@pytest.mark.parametrize(
    ("value", "expected"), [("a", "a"), (7, "7"), (-7, "-7"), (True, None), (1.5, None), (None, None), ([], None)]
)
def test_as_id(value: object, expected: str | None) -> None:
    assert as_id(value) == expected
