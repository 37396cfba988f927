"""The frame reader: whatever way the bytes are cut, the same frames; whatever the bytes, nothing but FrameError."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionworkers.errors import FrameError
from sessionworkers.hop import codec
from sessionworkers.hop.codec import DATA, END, FrameReader

# the kinds that come in pieces, and as what: bodies, and the raw bytes of a reply
PIECES = {
    codec.DATA: codec.DATA,
    codec.END: codec.DATA,
    codec.RAW: codec.RAW,
    codec.RAW_KEEP: codec.RAW,
    codec.RAW_CLOSE: codec.RAW,
}

kinds = st.integers(codec.HELLO, codec.LAST_KIND)
frames = st.lists(st.tuples(kinds, st.integers(0, 2**32 - 1), st.binary(max_size=200)), max_size=12)


def encoded(content: list[tuple[int, int, bytes]]) -> bytes:
    return b"".join(codec.header(kind, stream, len(payload)) + payload for kind, stream, payload in content)


def joined(content: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Bodies without the boundaries that the cutting made: what belongs to one frame put together again."""
    whole: list[tuple[int, int, bytes]] = []
    for kind, stream, payload in content:
        piece = PIECES.get(kind)
        if piece is not None and whole and whole[-1][:2] == (piece, stream):
            whole[-1] = (kind, stream, whole[-1][2] + payload)
        elif kind != piece or payload:
            whole.append((kind, stream, payload))
    return whole


@settings(max_examples=300, deadline=None)
@given(frames, st.data())
def test_any_cut_gives_the_same_frames(content: list[tuple[int, int, bytes]], data: st.DataObject) -> None:
    wire = encoded(content)
    reader = FrameReader(codec.MAX_FRAME)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=20)))
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        got += reader.feed(wire[start:end])
    assert joined(got) == joined(content)
    assert all(len(payload) <= 200 for _, _, payload in got)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=10), st.integers(0, 300))
def test_any_bytes_give_frames_or_a_frame_error(chunks: list[bytes], limit: int) -> None:
    reader = FrameReader(limit)
    try:
        for chunk in chunks:
            for kind, _stream, payload in reader.feed(chunk):
                assert codec.HELLO <= kind <= codec.LAST_KIND
                assert len(payload) <= limit
    except FrameError:
        pass
    assert reader._held is None or len(reader._held) <= limit + 9 + 300


def test_one_byte_at_a_time() -> None:
    content = [(codec.OPEN, 1, b"abc"), (DATA, 1, b"defg"), (END, 1, b""), (codec.WANT, 2, b"")]
    reader = FrameReader()
    got = [frame for byte in encoded(content) for frame in reader.feed(bytes([byte]))]
    assert joined(got) == [(codec.OPEN, 1, b"abc"), (END, 1, b"defg"), (codec.WANT, 2, b"")]


def test_a_body_frame_is_given_out_as_it_comes() -> None:
    reader = FrameReader(1000)
    assert reader.feed(codec.header(END, 3, 10) + b"abc") == [(DATA, 3, b"abc")]
    assert reader.feed(b"defg") == [(DATA, 3, b"defg")]
    assert reader.feed(b"") == []
    assert reader.feed(b"hij" + codec.bare(codec.DONE, 4)) == [(END, 3, b"hij"), (codec.DONE, 4, b"")]


def test_other_frames_come_whole() -> None:
    reader = FrameReader(1000)
    wire = codec.packed(codec.OPEN, 3, [b"x" * 500])
    assert reader.feed(wire[:4]) == []
    assert reader.feed(wire[4:100]) == []
    assert reader.feed(wire[100:]) == [(codec.OPEN, 3, wire[9:])]


@pytest.mark.parametrize(
    "wire",
    [codec.header(codec.HEAD, 1, 1001), codec.header(0, 1, 0), codec.header(codec.LAST_KIND + 1, 1, 0), b"\xff" * 9],
)
def test_beyond_the_limits(wire: bytes) -> None:
    with pytest.raises(FrameError):
        FrameReader(1000).feed(wire)


def test_a_frame_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(FrameError):
        codec.packed(codec.EVENT, 1, {"x": b"y" * codec.MAX_FRAME})


def test_credit() -> None:
    ((kind, stream, payload),) = FrameReader().feed(codec.credit(7, 65536))
    assert (kind, stream, codec.read_credit(payload)) == (codec.CREDIT, 7, 65536)
    with pytest.raises(FrameError):
        codec.read_credit(b"123")


def test_can_travel() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert codec.can_travel({"a": [1, 2.5, None, True, b"x", "y"]})
    for value in (object(), {"a": object()}, 2**70, "\ud800", loop):
        assert not codec.can_travel(value)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=50)), max_size=8),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.binary(max_size=30),
)
def test_heads_come_back_as_they_went(headers: list[tuple[bytes, bytes]], path: str, raw: bytes) -> None:
    from sessionworkers.hop.scopes import open_frame, scope_of

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": raw,
        "query_string": raw,
        "root_path": "",
        "headers": headers,
        "client": ("c", 1),
        "server": None,
    }
    ((_, _, payload),) = FrameReader(codec.MAX_FRAME).feed(open_frame(1, scope, {"m": 1}, codec.COMPLETE, raw))
    head = codec.read_open(payload)
    assert (head.meta, head.body) == ({"m": 1}, raw)
    assert scope_of(head, {}) == scope
