"""Two clients of the queue demo: one that polls its job, one that waits for the job to end its own session.

::

    python -m sessionworkers.demo.queue_client http://127.0.0.1:8000
    python -m sessionworkers.demo.queue_client http://127.0.0.1:8000 --webhook
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

try:
    from sessionworkers.client import Client, ClientError, SessionClosed
except ImportError as error:
    if __name__ != "__main__":
        raise
    sys.exit(str(error))  # names the extra to install


async def poll(client: Client, epochs: int = 3) -> dict[str, Any]:
    """Start a job and ask for its state until it is done. The close hook cancels it if this ends early."""
    async with client.session(cost=100, lifetime=30, on_close_route="/cancel_task") as session:
        started = await session.request("/start_task", {"epochs": epochs})
        status: dict[str, Any] = started["response"]["status"]
        while status["state"] not in ("completed", "canceled"):
            await asyncio.sleep(0.1)
            polled = await session.request("/status", {}, retry=False)
            status = polled["response"]["status"]
            print(f"  {status['state']}, epoch {status['epoch']} of {status['epochs']}")
        return status


async def webhook(client: Client, epochs: int = 3) -> str:
    """Start a job that ends the session itself when it is done; nothing of the job is polled."""
    session = await client.session(cost=100, lifetime=30, on_close_route="/cancel_task")
    try:
        await session.request("/start_task", {"epochs": epochs, "finish": True})
        while await session.is_open():  # asks about the session alone, and does not prolong it
            await asyncio.sleep(0.1)
        try:
            await session.request("/status", {})
        except SessionClosed:
            return "the job has ended the session"
        return "the session is still there"
    finally:
        await session.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--webhook", action="store_true", help="let the job end its session")
    parser.add_argument("--jobs", type=int, default=3, help="how many at once")
    options = parser.parse_args()
    async with Client(options.url) as client:
        run = webhook if options.webhook else poll
        for result in await asyncio.gather(*(run(client) for _ in range(options.jobs))):
            print(result)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except (ClientError, ValueError) as error:
        sys.exit(f"queue_client: {error}")
    except KeyboardInterrupt:  # open sessions were ended on the way out
        sys.exit(130)
