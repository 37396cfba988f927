"""``gr.State`` through the protocol of Gradio's own page: join the queue, read its stream, three times."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.frameworks.cases import LAUNCHERS, launched, needs, run_sessions
from tests.harness import Server

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(180)]
needs("gradio")


@pytest.fixture(scope="module", params=LAUNCHERS)
def running(request: pytest.FixtureRequest) -> Iterator[Server]:
    env = {"GRADIO_ANALYTICS_ENABLED": "False"}
    with launched(request.param, "tests.frameworks.gradio.app:app", workers=2, env=env) as server:
        yield server


async def queue_state(s: Server) -> None:
    """The page makes up ``session_hash`` and sends it in the body of the join and in the query of the stream."""
    config = (await s.afetch("GET", "/config")).json
    function = next(d["id"] for d in config["dependencies"] if d.get("api_name") == "incr")
    session = uuid.uuid4().hex[:11]
    for want in (1, 2, 3):
        joined: dict[str, Any] = {
            "data": [None],
            "fn_index": function,
            "session_hash": session,
            "trigger_id": None,
            "event_data": None,
        }
        reply = await s.afetch("POST", "/gradio_api/queue/join", joined)
        assert reply.status == 200, f"join: {reply.status} {reply.text}"
        reply = await s.afetch("GET", f"/gradio_api/queue/data?session_hash={session}")
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        done = [event for event in events if event.get("msg") == "process_completed"]
        assert done, f"data: {reply.status} {events[-1:] or reply.text[:200]}"
        numbers = [value for value in done[0]["output"]["data"] if isinstance(value, (int, float))]
        assert numbers[:1] == [want], f"gr.State is {numbers[:1]}, not {want}"


def test_every_session_is_right(running: Server) -> None:
    run_sessions(running, queue_state)
