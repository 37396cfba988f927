"""The facade without await: the same names, the same answers."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator

import pytest

from sessionworkers import client as asynchronous
from sessionworkers.client import SessionClosed
from sessionworkers.client import sync as synchronous
from tests.sessions.kit import Api, sessions


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with sessions() as running:
        yield running


def test_the_names_are_the_same() -> None:
    for name in ("Client", "Session"):
        ours, theirs = getattr(synchronous, name), getattr(asynchronous, name)
        public = {each for each in dir(theirs) if not each.startswith("_")} - {"refresh"}
        assert public <= {each for each in dir(ours) if not each.startswith("_")}
    one = inspect.signature(synchronous.Client.session).parameters
    other = inspect.signature(asynchronous.Client.session).parameters
    assert {name: each.default for name, each in one.items()} == {name: each.default for name, each in other.items()}


def test_a_session_from_start_to_end(api: Api) -> None:
    with synchronous.Client(api.server.url) as client:
        with client.session(cost=10, lifetime=30) as session:
            pids = {session.request("/echo", {"k": n})["response"]["pid"] for n in range(8)}
            assert len(pids) == 1
            assert session.is_open() is True
            assert list(session.request("/stream", {"n": 3}, stream=True)["response"]) == [{"i": n} for n in range(3)]
            with session.websocket("/ws") as ws:
                ws.send_str("x")
                assert ws.receive_json()["session"] == session.session_id
            again = client.get_session(session.session_id, session.auth_data)
            assert (again.lifetime, again.url, again.open) == (30, session.url, True)
        assert session.is_open() is False
        with pytest.raises(SessionClosed):
            session.request("/echo", {})
        assert client.request("/echo", {"x": 1})["response"]["got"] == {"x": 1}


def test_many_threads_share_a_client(api: Api) -> None:
    with synchronous.Client(api.server.url) as client:
        with client.session() as session:
            found: list[int] = []
            threads = [
                threading.Thread(target=lambda: found.append(session.request("/echo", {})["response"]["pid"]))
                for _ in range(10)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(found) == 10
            assert len(set(found)) == 1


def test_a_closed_client_leaves_no_thread_and_says_so(api: Api) -> None:
    before = threading.active_count()
    client = synchronous.Client(api.server.url)
    client.session().close()
    client.close()
    client.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError):
        client.session()


def test_what_is_no_url_is_refused_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match=r"'localhost:8000' is no URL of a server: it begins with http://"):
        synchronous.Client("localhost:8000")
    assert threading.active_count() == before
