"""Who may talk to whom: hello, versions, users, and peers that speak something else."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from typing import Any

import pytest

from sessionworkers.errors import HopRefused, OwnerBusy, OwnerGone
from sessionworkers.hop import Links, PrivateServer, codec, link, private
from tests.hop.ends import body, descriptors, get, listen, pair, private_path, run, start, until


async def app(scope: Any, receive: Any, send: Any, meta: Any) -> None:
    await send(start(200))
    await send(body(b"ok"))


def test_another_worker_answers(loop: str) -> None:
    async def main() -> None:
        async with pair(app) as ends:
            host = get()
            with pytest.raises(OwnerGone) as gone:
                await ends.links.carry("someone else", host.scope, host.receive, host.send, {})
            assert gone.value.replay is not None
            await ends.carry(host)
            assert host.body == b"ok"

    run(loop, main())


def test_nobody_listens(loop: str) -> None:
    async def main() -> None:
        with private_path() as path:
            links = Links("me", lambda uid: path, lambda uid: True)
            for present in (False, True):
                if present:
                    listen(path).close()  # the path stays
                host = get()
                with pytest.raises(OwnerGone):
                    await links.carry("owner", host.scope, host.receive, host.send, {})
            await links.close()

    run(loop, main())


def test_a_path_that_cannot_be_used(loop: str) -> None:
    async def main() -> None:
        links = Links("me", lambda uid: "/x" * 100, lambda uid: True)
        host = get()
        with pytest.raises(HopRefused, match="cannot be used"):
            await links.carry("owner", host.scope, host.receive, host.send, {})
        await links.close()
        with pytest.raises(HopRefused, match="closed"):
            await links.carry("owner", host.scope, host.receive, host.send, {})

    run(loop, main())


@pytest.mark.parametrize(
    ("mine", "theirs", "fits"),
    [
        ((1, 1), (1, 1), True),
        ((1, 1), (2, 1), True),
        ((2, 1), (1, 1), True),
        ((1, 1), (2, 2), False),
        ((3, 2), (1, 1), False),
    ],
)
def test_versions(
    loop: str, mine: tuple[int, int], theirs: tuple[int, int], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``(newest, oldest)`` of the acceptor and the owner: two releases side by side talk if they have one in common."""
    for module, (version, oldest) in ((link, mine), (private, theirs)):
        monkeypatch.setattr(module, "VERSION", version)
        monkeypatch.setattr(module, "OLDEST", oldest)

    async def main() -> None:
        async with pair(app) as ends:
            host = get()
            if fits:
                await ends.carry(host)
                assert host.body == b"ok"
            else:
                with pytest.raises(HopRefused, match="versions") as refused:
                    await ends.carry(host)
                assert refused.value.replay is not None

    run(loop, main())


def test_another_user(loop: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with pair(app, timeout=0.5) as ends:
            host = get()
            monkeypatch.setattr(private, "same_user", lambda sock: False)
            with pytest.raises(OwnerGone):  # the owner turns us away
                await ends.carry(host)
            monkeypatch.undo()
            monkeypatch.setattr("sessionworkers.hop.dial.same_user", lambda sock: False)
            with pytest.raises(HopRefused, match="another user"):
                await ends.carry(host)
            monkeypatch.undo()
            await ends.carry(host)
            assert host.body == b"ok"

    run(loop, main())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_a_real_other_user_is_turned_away(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with pair(app) as ends:
            os.chmod(os.path.dirname(ends.path), 0o777)
            os.chmod(ends.path, 0o777)

            def as_nobody() -> bytes:
                code = (
                    "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
                    f"s.connect({ends.path!r}); s.settimeout(5); sys.stdout.write(repr(s.recv(10)))"
                )
                import subprocess

                return subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, check=True).stdout

            with caplog.at_level(logging.WARNING):
                assert await asyncio.to_thread(as_nobody) in (b"b''", b"")
            assert "another user" in caplog.text
            await ends.carry(get())

    run(loop, main())


GARBAGE = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": b"\x00" * 64,
    "huge length": codec.header(codec.HELLO, 0, 0xFFFFFFFF),
    "long hello": codec.header(codec.HELLO, 0, 5000) + b"x" * 5000,
    "no hello": codec.packed(codec.OPEN, 1, []),
    "unreadable hello": codec.header(codec.HELLO, 0, 3) + b"abc",
    "hello of another shape": codec.packed(codec.HELLO, 0, {"uid": "me"}),
    "unknown kind": codec.header(99, 0, 0),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_before_the_hello(loop: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Closed, at once or at the time limit; the server serves on."""

    async def main() -> None:
        with private_path() as path:
            server = PrivateServer("owner", listen(path), app, state=dict, hello_limit=0.1)
            await server.start()
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(GARBAGE[name])
            try:
                assert await asyncio.wait_for(reader.read(100), 5) == b""
            except ConnectionResetError:
                pass
            writer.close()
            await until(lambda: not server.links)
            links = Links("me", lambda uid: path, lambda uid: True)
            host = get()
            await links.carry("owner", host.scope, host.receive, host.send, {})
            assert host.body == b"ok"
            await links.close()
            await server.close(0)

    run(loop, main())


HELLO = codec.packed(codec.HELLO, 0, codec.Hello("me", "owner", 1, 1))
AFTER = {
    "hello twice": HELLO,
    "reply from an acceptor": codec.packed(codec.HEAD, 1, [200, [], None, b"", False]),
    "body for nobody": codec.header(codec.END, 7, 1) + b"x",
    "credit for nobody": codec.credit(7, 5),
    "shared memory for nobody": codec.shared(7, codec.RAW, 64, 10),
    "a ring that was not offered": codec.header(codec.RING, 0, 0),
    "frame too long": codec.header(codec.TEXT, 1, codec.MAX_FRAME + 1),
    "unknown kind": codec.header(200, 1, 0),
    "stream opened twice": codec.header(codec.OPEN, 5, 1) + b"\xc0" + codec.header(codec.OPEN, 5, 1) + b"\xc0",
}


@pytest.mark.parametrize("name", AFTER)
def test_nonsense_after_the_hello(loop: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with pair(app) as ends:
            reader, writer = await asyncio.open_unix_connection(ends.path)
            writer.write(HELLO + AFTER[name])
            try:
                while await asyncio.wait_for(reader.read(1000), 5):
                    pass
            except ConnectionResetError:
                pass
            writer.close()
            await ends.carry(get())

    run(loop, main())
    assert "a private link was closed" in caplog.text


def test_random_bytes_from_a_peer(loop: str) -> None:
    """Frames of random kinds and payloads after a proper hello: no exception gets out, the server serves on."""
    chance = random.Random(1)
    logging.getLogger("sessionworkers.hop").disabled = True

    async def main() -> None:
        async with pair(app) as ends:
            for _ in range(100):
                reader, writer = await asyncio.open_unix_connection(ends.path)
                writer.write(HELLO)
                for _ in range(20):
                    payload = chance.randbytes(chance.randrange(40))
                    writer.write(
                        codec.header(chance.randrange(1, codec.LAST_KIND + 1), chance.randrange(4), len(payload))
                        + payload
                    )
                writer.close()
                del reader
            await until(lambda: not ends.server.links)
            host = get()
            await ends.carry(host)
            assert host.body == b"ok"

    try:
        run(loop, main())
    finally:
        logging.getLogger("sessionworkers.hop").disabled = False


OWNERS = {
    "closes": b"",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "another uid": codec.packed(codec.HELLO, 0, codec.Hello("other", "", 1, 1)),
    "unreadable hello": codec.header(codec.HELLO, 0, 1) + b"\xc1",
    "bye unknown": codec.packed(codec.BYE, 0, codec.Bye("mood", "not today")),
}


@pytest.mark.parametrize("name", OWNERS)
def test_an_owner_that_speaks_nonsense(loop: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with private_path() as path:
            listener = listen(path)

            def serve() -> None:
                sock, _ = listener.accept()
                sock.recv(100)
                sock.sendall(OWNERS[name])
                sock.close()

            serving = asyncio.create_task(asyncio.to_thread(serve))
            links = Links("me", lambda uid: path, lambda uid: True, connect_timeout=1, hello_patience=1)
            host = get()
            with pytest.raises(OwnerGone):
                await links.carry("owner", host.scope, host.receive, host.send, {})
            await serving
            listener.close()
            await links.close()

    run(loop, main())


REPLIES = {
    "unreadable head": (codec.header(codec.HEAD, 1, 1) + b"\xc1", OwnerGone),
    "for another stream": (codec.bare(codec.DONE, 2), OwnerGone),
    "open from an owner": (codec.bare(codec.OPEN, 1), OwnerGone),
    "shared memory before there is any": (codec.shared(1, codec.RAW, 64, 10), OwnerGone),
    "unreadable refusal": (codec.header(codec.REFUSE, 1, 1) + b"\xc1", OwnerGone),
    "unknown refusal": (codec.packed(codec.REFUSE, 1, codec.Refusal("mood", None)), HopRefused),
    "hello again": (codec.packed(codec.HELLO, 0, codec.Hello("owner", "", 1, 1)), OwnerGone),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_that_is_nonsense(loop: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    frame, expected = REPLIES[name]

    async def main() -> None:
        with private_path() as path:
            listener = listen(path)

            def serve() -> None:
                sock, _ = listener.accept()
                sock.recv(100)
                sock.sendall(codec.packed(codec.HELLO, 0, codec.Hello("owner", "", 1, 1)))
                sock.recv(100)
                sock.sendall(frame)
                while sock.recv(100):
                    pass
                sock.close()

            serving = asyncio.create_task(asyncio.to_thread(serve))
            links = Links("me", lambda uid: path, lambda uid: True, connect_timeout=1, hello_patience=1)
            host = get()
            with pytest.raises(expected):
                await links.carry("owner", host.scope, host.receive, host.send, {})
            await links.close()
            await serving
            listener.close()

    run(loop, main())


def test_an_owner_that_says_nothing(loop: str) -> None:
    async def main() -> None:
        with private_path() as path:
            listener = listen(path)
            links = Links("me", lambda uid: path, lambda uid: True, connect_timeout=0.1, hello_patience=0.1)
            host = get()
            with pytest.raises(OwnerBusy):
                await links.carry("owner", host.scope, host.receive, host.send, {})
            assert not links.all
            closing = asyncio.create_task(links.carry("owner", host.scope, host.receive, host.send, {}))
            await asyncio.sleep(0)
            await links.close()
            with pytest.raises(HopRefused):
                await closing
            listener.close()

    before = descriptors()
    run(loop, main())
    assert descriptors() == before


def test_one_link_for_all(loop: str) -> None:
    """Requests that come while the link is being made share it."""

    async def main() -> None:
        async with pair(app) as ends:
            hosts = [get() for _ in range(20)]
            tasks = [asyncio.create_task(ends.carry(host)) for host in hosts]
            tasks[3].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert [host.body for number, host in enumerate(hosts) if number != 3] == [b"ok"] * 19
            assert len(ends.server.links) == 1

    run(loop, main())


def test_stream_numbers_run_out(loop: str) -> None:
    async def main() -> None:
        async with pair(app) as ends:
            await ends.carry(get())
            (first,) = ends.links.all
            first._next = codec.LAST_STREAM
            hosts = [get(), get()]
            await ends.carry(hosts[0])
            await ends.carry(hosts[1])
            assert [host.body for host in hosts] == [b"ok", b"ok"]
            assert first not in ends.links.all

    run(loop, main())


def test_no_descriptor_left(loop: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server rests for a moment instead of spinning, then accepts again."""
    monkeypatch.setattr(private, "_ACCEPT_PAUSE", 0.05)

    class Exhausted:
        def __init__(self, listener: socket.socket) -> None:
            self.listener = listener
            self.failures = 2

        def accept(self) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError(24, "Too many open files")
            return self.listener.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.listener, name)

    async def main() -> None:
        with private_path() as path:
            server = PrivateServer("owner", Exhausted(listen(path)), app, state=dict)  # type: ignore[arg-type]
            await server.start()
            links = Links("me", lambda uid: path, lambda uid: True)
            host = get()
            await links.carry("owner", host.scope, host.receive, host.send, {})
            assert host.body == b"ok"
            await links.close()
            await server.close(0)

    run(loop, main())
    assert caplog.text.count("no file descriptor left") == 2
