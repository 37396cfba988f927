"""Raw frames want uvicorn as they know it; with any other all goes by ASGI frames, and the log says so."""

from __future__ import annotations

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sessionworkers.hosts import raw
from sessionworkers.hosts.protocol import PlainHttpToolsProtocol, SessionHttpToolsProtocol, replacement
from tests.raw.servers import Client, pair


def test_this_uvicorn_fits() -> None:
    assert raw.fits(HttpToolsProtocol) == ""
    assert replacement(HttpToolsProtocol, known=True) is SessionHttpToolsProtocol


def test_another_protocol_does_not() -> None:
    assert "H11Protocol" in raw.fits(H11Protocol)
    assert replacement(H11Protocol, known=False) is H11Protocol


def test_an_unknown_uvicorn_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cycle:
        def __init__(self, scope: object, transport: object, news: object) -> None:
            """A cycle of a later release."""

    monkeypatch.setattr(raw, "RequestResponseCycle", Cycle)
    assert "news" in raw.fits(HttpToolsProtocol)
    assert replacement(HttpToolsProtocol, known=False) is PlainHttpToolsProtocol


def test_h11_goes_by_frames() -> None:
    with pair("frames", "asyncio", http="h11") as two:
        with Client(two.doors[0]) as client:
            for _ in range(4):
                assert client.ask("/", two.sids[1], "POST", body=b"x").json["worker"] == "1"
        assert "by ASGI frames" in two.log(0)
