"""The page's examples, with our client where theirs has its endpoint: they run unchanged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sessionworkers.client import Client
from tests.sessions.kit import Api, sessions


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with sessions() as running:
        yield running


@pytest.fixture(scope="module")
def queue() -> Iterator[Api]:
    with sessions(app="sessionworkers.demo.queue:app") as running:
        yield running


def test_opening_and_using_a_session(api: Api) -> None:
    async def main() -> None:
        async with Client(api.server.url) as endpoint:
            session = await endpoint.session(cost=100, lifetime=60)
            try:
                result = await session.request("/echo", {"input": {"prompt": "hello"}})
                assert result["response"]["got"] == {"input": {"prompt": "hello"}}
            finally:
                await session.close()
            async with await endpoint.session(cost=100, lifetime=60) as session:
                result = await session.request("/echo", {"input": {"prompt": "hello"}})
                assert result["ok"]

    asyncio.run(main())


def test_is_open_guarded_as_the_page_has_it(api: Api) -> None:
    async def still_running(session: Any) -> bool:
        try:
            return bool(await session.is_open())
        except Exception:
            return False

    async def main() -> None:
        async with Client(api.server.url) as endpoint:
            session = await endpoint.session()
            assert await still_running(session)
            await session.close()
            assert not await still_running(session)

    asyncio.run(main())


def test_pinning_a_conversation(api: Api) -> None:
    async def main() -> None:
        async with Client(api.server.url) as endpoint:
            messages: list[Any] = [{"role": "system", "content": "You are a contract analyst."}]
            pids = set()
            session = await endpoint.session(cost=512, lifetime=300)
            try:
                for turn in ("one", "two", "three"):
                    messages.append({"role": "user", "content": turn})
                    result = await session.request("/echo", {"messages": messages, "max_tokens": 512})
                    if not result["ok"]:
                        raise RuntimeError(f"turn failed: {result['status']} {result['text']}")
                    messages.append({"role": "assistant", "content": "ok"})
                    pids.add(result["response"]["pid"])
                    await endpoint.close()  # a new connection for each turn
            finally:
                await session.close()
            assert len(pids) == 1

    asyncio.run(main())


def test_fanning_out_across_workers(api: Api) -> None:
    async def run_one(endpoint: Client, prompt: str) -> Any:
        session = await endpoint.session(cost=100, lifetime=30)
        try:
            return await session.request("/slow", {"s": 0.3, "prompt": prompt})
        finally:
            await session.close()

    async def main() -> None:
        async with Client(api.server.url) as endpoint:
            results = await asyncio.gather(*(run_one(endpoint, str(n)) for n in range(12)))
            assert {result["status"] for result in results} == {200}
            assert len({result["response"]["pid"] for result in results}) == 4

    asyncio.run(main())


def test_running_asynchronous_tasks(queue: Api) -> None:
    async def run_task(endpoint: Client, epochs: int) -> Any:
        session = await endpoint.session(cost=100, lifetime=120, on_close_route="/cancel_task")
        try:
            started = await session.request("/start_task", {"epochs": epochs, "session_id": session.session_id})
            status = started["response"]["status"]
            while status["state"] not in ("completed", "failed", "canceled"):
                await asyncio.sleep(0.1)
                try:
                    polled = await session.request("/status", {}, retry=False)
                except Exception:
                    break
                status = polled["response"]["status"]
            return status
        finally:
            await session.close()

    async def main() -> None:
        async with Client(queue.server.url) as endpoint:
            results = await asyncio.gather(*(run_task(endpoint, 3) for _ in range(3)))
            assert [status["state"] for status in results] == ["completed"] * 3

    asyncio.run(main())


def test_resuming_a_session(queue: Api) -> None:
    async def main() -> None:
        async with Client(queue.server.url) as endpoint:
            session = await endpoint.session(lifetime=30)
            await session.request("/start_task", {"epochs": 1000})
            stored_session_id, stored_auth_data = session.session_id, session.auth_data
        async with Client(queue.server.url) as endpoint:
            session = await endpoint.get_session(session_id=stored_session_id, session_auth=stored_auth_data)
            status = await session.request("/status", {})
            assert status["response"]["status"]["state"] == "running"
            await session.close()
            with pytest.raises(ValueError):
                await endpoint.get_session(session_id=stored_session_id, session_auth=stored_auth_data)

    asyncio.run(main())


def test_a_job_that_ends_its_own_session(queue: Api) -> None:
    async def main() -> None:
        async with Client(queue.server.url) as endpoint:
            session = await endpoint.session(cost=100, lifetime=30)
            result = await session.request("/start_task", {"epochs": 2, "seconds": 0.1, "finish": True})
            assert result["ok"]
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                try:
                    await session.request("/status", {})
                except ValueError:
                    return
                await asyncio.sleep(0.05)
            raise AssertionError("the session was not closed by the completion webhook")

    asyncio.run(main())
