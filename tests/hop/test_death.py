"""Workers that are killed, stopped or forked while requests are on their way: real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sessionworkers.errors import HopBroken, OwnerBusy, OwnerGone
from sessionworkers.hop import Links, PrivateServer
from tests.hop.ends import body, get, listen, private_path, read, run, start, until, websocket


@contextlib.contextmanager
def owner(kind: str, path: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.hop.owner_process", path, kind], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextlib.asynccontextmanager
async def linked(path: str, *, alive: bool = True, timeout: float = 2.0) -> Any:
    links = Links("me", lambda uid: path, lambda uid: alive, connect_timeout=timeout, hello_patience=timeout)
    try:
        yield links
    finally:
        await links.close()


def test_killed_before_the_reply(loop: str) -> None:
    with private_path() as path, owner(loop, path) as process:

        async def main() -> None:
            async with linked(path) as links:
                host = get("/wait")
                carried = asyncio.create_task(links.carry("owner", host.scope, host.receive, host.send, {}))
                assert process.stdout is not None
                assert await asyncio.to_thread(process.stdout.readline) == "waiting\n"
                process.kill()
                with pytest.raises(OwnerGone) as gone:
                    await carried
                assert gone.value.replay is None  # the app may have run: never again
                assert host.sent == []
                host = get()
                with pytest.raises(OwnerGone) as gone:
                    await links.carry("owner", host.scope, host.receive, host.send, {})
                assert gone.value.replay is not None  # nobody has seen this one
                assert await read(gone.value.replay) == b""

        run(loop, main())


def test_killed_in_the_reply(loop: str) -> None:
    with private_path() as path, owner(loop, path) as process:

        async def main() -> None:
            async with linked(path) as links:
                host, socket = get("/half"), websocket()
                carried = [
                    asyncio.create_task(links.carry("owner", host.scope, host.receive, host.send, {}))
                    for host in (host, socket)
                ]
                await until(lambda: len(host.sent) == 2 and len(socket.sent) == 2)
                process.kill()
                for task in carried:
                    with pytest.raises(HopBroken):
                        await task
                assert host.body == b"half"
                assert not host.complete
                assert socket.sent[-1]["type"] == "websocket.send"  # no close: the client sees 1006

        run(loop, main())


def test_killed_after_the_reply(loop: str) -> None:
    with private_path() as path, owner(loop, path) as process:

        async def main() -> None:
            async with linked(path) as links:
                host = get()
                await links.carry("owner", host.scope, host.receive, host.send, {})
                assert host.body == b"whole"
                process.kill()
                process.wait()
                host = get()
                with pytest.raises(OwnerGone):
                    await links.carry("owner", host.scope, host.receive, host.send, {})
                assert host.sent == []

        run(loop, main())


def test_killed_after_a_fork(loop: str) -> None:
    """A child of the app does not keep the link open."""
    with private_path() as path, owner(loop, path) as process:

        async def main() -> None:
            child = 0
            try:
                async with linked(path) as links:
                    host = get("/fork")
                    await links.carry("owner", host.scope, host.receive, host.send, {})
                    child = int(host.body)
                    stuck = get("/wait")
                    carried = asyncio.create_task(links.carry("owner", stuck.scope, stuck.receive, stuck.send, {}))
                    assert process.stdout is not None
                    assert await asyncio.to_thread(process.stdout.readline) == "waiting\n"
                    process.kill()
                    with pytest.raises(OwnerGone):
                        await asyncio.wait_for(carried, 5)
            finally:
                if child:
                    os.kill(child, signal.SIGKILL)

        run(loop, main())


def test_the_router_is_killed(loop: str) -> None:
    """The owner's apps are told that their clients are gone."""
    seen: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        if scope["type"] == "http":
            await send(start(200))
            await send(body(b"x", True))
        while (message := await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
            pass
        seen.append(f"{message['type']} {message.get('code')}")

    with private_path() as path:
        script = f"""
import asyncio
from sessionworkers.hop import Links
from tests.hop.ends import get, websocket
async def main():
    links = Links("me", lambda uid: {path!r}, lambda uid: True)
    hosts = [get(), get(), websocket()]
    await asyncio.gather(*(links.carry("owner", host.scope, host.receive, host.send, {{}}) for host in hosts))
asyncio.run(main())
"""

        async def main() -> None:
            server = PrivateServer("owner", listen(path), handler, state=dict)
            await server.start()
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
            await until(lambda: server.streams == 3)
            process.kill()
            await process.wait()
            await until(lambda: not server.streams, 1)
            assert sorted(seen) == ["http.disconnect None"] * 2 + ["websocket.disconnect 1006"]
            await server.close(1)

        run(loop, main())


@pytest.mark.parametrize("alive", [True, False])
def test_a_stopped_owner_with_a_full_backlog(loop: str, alive: bool) -> None:
    """Busy, unless its lock says that it is dead and only a child holds its socket; within the limit either way."""
    with private_path() as path:

        async def main() -> None:
            sock = listen(path, 0)
            try:
                async with linked(path, alive=alive, timeout=0.3) as links:
                    clock = asyncio.get_running_loop().time
                    for _ in range(3):  # the first ones get into the backlog and hear no hello
                        began = clock()
                        hosts = [get() for _ in range(3)]
                        results = await asyncio.gather(
                            *(links.carry("owner", host.scope, host.receive, host.send, {}) for host in hosts),
                            return_exceptions=True,
                        )
                        assert 0.2 < clock() - began < 0.8
                        for host, result in zip(hosts, results, strict=True):
                            assert type(result) is (OwnerBusy if alive else OwnerGone)
                            assert result.replay is not None
                            assert host.receives == 0
            finally:
                sock.close()

        run(loop, main())


def test_a_busy_owner_is_reached_once_it_has_time(loop: str) -> None:
    import socket

    async def handler(scope: Any, receive: Any, send: Any, meta: Any) -> None:
        await send(start(200))
        await send(body(b"at last"))

    with private_path() as path:

        async def main() -> None:
            listener = listen(path, 0)
            fillers = []
            for _ in range(2):  # until connect says EAGAIN
                sock = socket.socket(socket.AF_UNIX)
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sock.connect(path)
                fillers.append(sock)
            async with linked(path) as links:
                host = get()
                carried = asyncio.create_task(links.carry("owner", host.scope, host.receive, host.send, {}))
                await asyncio.sleep(0.05)
                assert not carried.done()
                server = PrivateServer("owner", listener, handler, state=dict)
                await server.start()
                await carried
                assert host.body == b"at last"
            for sock in fillers:
                sock.close()
            await server.close(0)

        run(loop, main())


def test_stopped_while_a_request_is_there(loop: str) -> None:
    """A stopped owner answers once it goes on; others are not held up."""
    with private_path() as path, owner(loop, path) as process:

        async def main() -> None:
            async with linked(path) as links:
                host = get()
                await links.carry("owner", host.scope, host.receive, host.send, {})
                process.send_signal(signal.SIGSTOP)
                hosts = [get() for _ in range(50)]
                carried = [
                    asyncio.create_task(links.carry("owner", host.scope, host.receive, host.send, {})) for host in hosts
                ]
                await asyncio.sleep(0.1)
                assert not any(task.done() for task in carried)
                process.send_signal(signal.SIGCONT)
                await asyncio.gather(*carried)
                assert all(host.body == b"whole" for host in hosts)

        run(loop, main())
