"""An owner in a process of its own, to be killed: ``python -m tests.hop.owner_process PATH LOOP``."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from sessionworkers.hop import PrivateServer
from tests.hop.ends import body, listen, start


async def app(scope: Any, receive: Any, send: Any, meta: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": str(os.getpid())})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        return
    path = scope["path"]
    if path == "/fork":
        child = os.fork()
        if child == 0:
            time.sleep(30)  # noqa: ASYNC251 - the child has no loop
            os._exit(0)
        await send(start(200))
        await send(body(b"%d" % child))
        return
    if path == "/wait":
        print("waiting", flush=True)
        await asyncio.sleep(60)
    await send(start(200))
    if path == "/half":
        await send(body(b"half", True))
        await asyncio.sleep(60)
    if path == "/disconnect":
        print("waiting", flush=True)
        while (await receive())["type"] != "http.disconnect":
            pass
        print("disconnected", flush=True)
        return
    await send(body(b"whole"))


async def main(path: str) -> None:
    server = PrivateServer("owner", listen(path), app, state=dict)
    await server.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[2] == "uvloop":
        import uvloop

        uvloop.install() if sys.version_info < (3, 12) else None
        loop = uvloop.new_event_loop()
    else:
        loop = asyncio.new_event_loop()
    loop.run_until_complete(main(sys.argv[1]))
