"""Requests in a session: by envelope, by header, SSE and WebSocket; with four workers and fresh connections."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import websockets

from tests.harness import wait_for
from tests.sessions.kit import AUTH, UNKNOWN, Api, sessions


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with sessions("--max-sessions", "0", "--unwrap", "/bare") as running:
        yield running


TRIES = 12


def test_every_request_of_a_session_reaches_its_worker(api: Api) -> None:
    for _ in range(4):
        session_id = api.open()
        replies = [api.use(session_id, payload={"k": n}) for n in range(TRIES)]
        assert {reply.status for reply in replies} == {200}
        assert len({reply.json["pid"] for reply in replies}) == 1
        assert [reply.json["got"] for reply in replies] == [{"k": n} for n in range(TRIES)]
        assert {reply.json["session"] for reply in replies} == {session_id}


def test_the_header_names_a_session_too(api: Api) -> None:
    session_id = api.open()
    pid = api.use(session_id).json["pid"]
    headers = {"X-Session-ID": session_id}
    for _ in range(TRIES):
        reply = api.server.fetch("GET", "/plain", headers=headers)
        assert (reply.status, reply.json["pid"], reply.json["session"]) == (200, pid, session_id)
        reply = api.post("/raw", b"binary\0body", {**headers, "content-type": "application/octet-stream"})
        assert (reply.status, reply.json["pid"], reply.json["body"]) == (200, pid, "binary\0body")


def test_without_a_session_any_worker_answers(api: Api) -> None:
    pids = {api.use(None).json["pid"] for _ in range(40)} | {api.post("/echo", {"payload": 1}).json["pid"]}
    assert len(pids) > 1
    assert api.use(None).json["session"] is None


@pytest.mark.parametrize("session_id", [UNKNOWN, "", "aB3xY7kLm9Qz1", 5, ["a"], {"a": 1}, True])
def test_an_envelope_with_an_unknown_session_is_410(api: Api, session_id: Any) -> None:
    reply = api.use(session_id)
    assert (reply.status, reply.json["error"]) == (410, "invalid session")


def test_an_ended_session_is_410_by_envelope_header_and_bare_id(api: Api) -> None:
    session_id = api.open()
    api.end(session_id)
    for _ in range(TRIES):
        assert api.use(session_id).status == 410
        assert api.server.fetch("GET", "/plain", headers={"X-Session-ID": session_id}).status == 410
        assert api.post("/echo", {"session_id": session_id}).status == 410


@pytest.mark.parametrize(
    "body",
    [
        {"session_id": "mine"},
        {"session_id": 5, "payload": {}},
        {"session_id": None},
        {"session_id": "sw_short"},
        {"auth_data": "text", "session_id": "mine"},
        {"payload": {"session_id": UNKNOWN}},
        [{"session_id": UNKNOWN}],
    ],
)
def test_an_apps_own_session_id_is_its_own_business(api: Api, body: Any) -> None:
    reply = api.post("/raw", body)
    assert (reply.status, json.loads(reply.json["body"])) == (200, body)


def test_an_app_may_use_the_header_for_ids_of_its_own(api: Api) -> None:
    assert api.server.fetch("GET", "/plain", headers={"X-Session-ID": "abc"}).status == 200


def test_header_and_envelope_must_agree(api: Api) -> None:
    one, other = api.open(), api.open()
    assert api.use(one, headers={"X-Session-ID": other}).status == 409
    assert api.use(one, headers={"X-Session-ID": one}).status == 200


def test_a_large_payload_passes_unread_and_unchanged(api: Api) -> None:
    session_id = api.open()
    pid = api.use(session_id).json["pid"]
    payload = {"text": "é" * 1_000_000}
    for _ in range(4):
        reply = api.use(session_id, "/raw", payload)
        assert (reply.status, reply.json["pid"]) == (200, pid)
        assert json.loads(reply.json["body"].encode("latin-1"))["payload"] == payload


def test_session_id_behind_a_large_payload_is_not_looked_for(api: Api) -> None:
    body = {"payload": "x" * 200_000, "session_id": UNKNOWN, "auth_data": AUTH}
    assert api.post("/raw", body).status == 200
    small = {"payload": "x", "session_id": UNKNOWN, "auth_data": AUTH}
    assert api.post("/raw", small).status == 410


def test_an_id_that_stands_twice_names_nothing(api: Api) -> None:
    text = f'{{"session_id": "{UNKNOWN}", "session_id": "x", "payload": 1}}'
    assert api.post("/raw", text.encode(), {"content-type": "application/json"}).status == 200


def test_a_payload_is_unwrapped_where_the_setting_says(api: Api) -> None:
    session_id = api.open()
    payload = {"a": ["é", 1.5, None]}
    reply = api.use(session_id, "/bare", payload)
    assert json.loads(reply.json["body"].encode("latin-1")) == payload
    assert int(reply.json["length"]) == reply.json["size"]
    assert reply.json["session"] == session_id
    assert json.loads(api.use(None, "/bare", [1]).json["body"]) == [1]
    assert json.loads(api.post("/bare", {"x": 1}).json["body"]) == {"x": 1}  # no envelope
    assert json.loads(api.use(session_id, "/raw", payload).json["body"].encode("latin-1"))["payload"] == payload


def test_envelopes_are_looked_for_on_the_named_paths_only() -> None:
    with sessions("--session-envelope", "/echo", workers=2) as api:
        session_id = api.open()
        assert {api.use(session_id).json["session"] for _ in range(8)} == {session_id}
        assert api.use(UNKNOWN).status == 410
        assert api.use(UNKNOWN, "/raw").status == 200
        assert api.server.fetch("GET", "/plain", headers={"X-Session-ID": UNKNOWN}).status == 410


def test_event_streams_stay_in_the_session(api: Api) -> None:
    session_id = api.open()
    pid = api.use(session_id).json["pid"]
    for _ in range(6):
        reply = api.use(session_id, "/stream", {"n": 3})
        assert reply.header(
            "content-type",
        ).startswith("text/event-stream")  # type: ignore[union-attr]
        assert [line for line in reply.text.splitlines() if line][:3] == [f'data: {{"i": {n}}}' for n in range(3)]
    assert api.use(session_id).json["pid"] == pid


def test_websockets_stay_in_the_session_by_header_and_by_query(api: Api) -> None:
    session_id = api.open()
    pid = api.use(session_id).json["pid"]

    async def talk(query: str, headers: dict[str, str]) -> Any:
        url = f"ws://127.0.0.1:{api.port}/ws{query}"
        async with websockets.connect(url, additional_headers=headers) as ws:
            await ws.send("hello")
            return json.loads(await ws.recv())

    async def main() -> None:
        for _ in range(6):
            for query, headers in (("", {"X-Session-ID": session_id}), (f"?X-Session-ID={session_id}", {})):
                assert await talk(query, headers) == {"got": "hello", "pid": pid, "session": session_id}
        assert (await talk("", {}))["session"] is None
        with pytest.raises(websockets.InvalidStatus) as refused:
            await talk("", {"X-Session-ID": UNKNOWN})
        assert refused.value.response.status_code == 410

    asyncio.run(main())


def test_the_app_has_its_session_state_and_its_workers_sessions(api: Api) -> None:
    session_id = api.open()
    replies = [api.use(session_id, "/watch") for _ in range(5)]
    assert [reply.json["n"] for reply in replies] == [1, 2, 3, 4, 5]
    assert all(session_id in reply.json["live"] for reply in replies)
    api.end(session_id)
    wait_for(lambda: len(api.events("callback", session=session_id)) == 5, 5)
    other = next(each for each in iter(api.open, "") if api.use(each).json["pid"] == replies[0].json["pid"])
    assert session_id not in api.use(other, "/watch").json["live"]


def test_the_lifespan_state_is_the_owners(api: Api) -> None:
    session_id = api.open()
    for _ in range(TRIES):
        reply = api.use(session_id, "/state")
        assert reply.json["started"] == reply.json["pid"]


def test_the_app_ends_its_session_without_credentials_and_still_answers(api: Api) -> None:
    session_id = api.open()
    reply = api.use(session_id, "/end-self")
    assert (reply.status, reply.json["ended"]) == (200, True)
    assert api.use(session_id).status == 410
    assert api.end(session_id).status == 410


def test_a_chunked_envelope_in_many_pieces(api: Api) -> None:
    session_id = api.open()
    pid = api.use(session_id).json["pid"]
    document = json.dumps({"auth_data": AUTH, "session_id": session_id, "payload": {"x": "y" * 100}}).encode()
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", api.port), 5) as sock:
            head = "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
            sock.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            for at in range(0, len(document), 7):
                piece = document[at : at + 7]
                sock.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            sock.sendall(b"0\r\n\r\n")
            answer = b""
            while data := sock.recv(65536):
                answer += data
        assert answer.startswith(b"HTTP/1.1 200")
        assert f'"pid":{pid}'.encode() in answer


def test_one_worker_has_the_same_routes_and_answers() -> None:
    with sessions("--max-sessions", "2", workers=1) as api:
        session_id = api.open()
        assert api.use(session_id).json["session"] == session_id
        assert api.use(UNKNOWN).status == 410
        api.open()
        assert api.create().status == 429
        assert api.end(session_id).status == 200
        assert api.end(session_id).status == 410
        assert len(api.load()["workers"]) == 1
