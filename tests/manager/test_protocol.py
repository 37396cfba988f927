"""What worker and manager say to each other."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from sessionworkers.manager.protocol import MAX_LINE, Lines, ManagerLink, encode, parse_state
from tests.harness import ROOT, wait_for


@pytest.mark.parametrize(
    ("pieces", "messages"),
    [
        ([b'{"beat": 1}\n'], [{"beat": 1}]),
        ([b'{"be', b'at": 1}', b"\n"], [{"beat": 1}]),
        ([b'{"beat": 1}\n{"state": "leaving"}\n{"x'], [{"beat": 1}, {"state": "leaving"}]),
        ([b"nonsense\n[1]\n\xff\n", b'{"a": 2}\n'], [{"a": 2}]),
        ([b"x" * (MAX_LINE + 1), b'\n{"a": 3}\n'], [{"a": 3}]),
    ],
)
def test_lines(pieces: list[bytes], messages: list[dict[str, Any]]) -> None:
    lines = Lines()
    assert [message for piece in pieces for message in lines.feed(piece)] == messages


@pytest.mark.parametrize(
    ("message", "parsed"),
    [
        ({"beat": 1}, ("beat", ())),
        ({"state": "leaving"}, ("leaving", ())),
        ({"state": "serving", "pid": 1}, ("serving", [])),
        ({"state": "serving", "pid": 1, "lines": ["a", 2]}, ("serving", ["a"])),
        ({"state": "of a later release"}, ("", ())),
        ({}, ("", ())),
    ],
)
def test_unknown_messages_are_left_alone(message: dict[str, Any], parsed: tuple[str, Any]) -> None:
    assert parse_state(message) == parsed


def received(sock: socket.socket, lines: Lines) -> list[dict[str, Any]]:
    return lines.feed(sock.recv(65_536)) if select.select([sock], [], [], 5.0)[0] else []


def test_a_link_beats_by_itself_tells_its_state_and_closes() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        link = ManagerLink(theirs.detach())
        link.serving(["a line"])
        link.leaving()
        lines, messages = Lines(), []
        deadline = time.monotonic() + 5.0
        while messages.count({"beat": 1}) < 2 and time.monotonic() < deadline:
            messages += received(ours, lines)
        assert messages.count({"beat": 1}) == 2
        assert [m for m in messages if "state" in m] == [
            {"state": "serving", "pid": os.getpid(), "lines": ["a line"]},
            {"state": "leaving"},
        ]
        link.beat()  # no more than once in an interval
        link.close()
        link.close()
        wait_for(lambda: not link._thread.is_alive(), 2.0)
        while data := ours.recv(65_536):
            assert json.loads(data) == {"beat": 1}


def test_a_manager_that_does_not_read_blocks_nobody() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        link = ManagerLink(theirs.detach())
        big = ["x" * 50_000]
        for _ in range(20):
            link.serving(big)
        link.leaving()
        lines, messages = Lines(), []
        deadline = time.monotonic() + 10.0
        while {"state": "leaving"} not in messages and time.monotonic() < deadline:
            messages += received(ours, lines)
        assert sum(message.get("lines") == big for message in messages) == 20  # late, but nothing is lost
        link.close()


def test_messages_and_the_end_are_told_on_the_loop() -> None:
    async def scenario() -> list[Any]:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        told: list[Any] = []
        gone = asyncio.Event()
        link = ManagerLink(theirs.detach())

        def parent_gone() -> None:
            told.append("gone")
            link.close()  # or the link would end this process
            gone.set()

        await link.start(loop, parent_gone, told.append)
        ours.send(encode({"do": "drain"}))
        ours.close()
        await asyncio.wait_for(gone.wait(), 5.0)
        return told

    assert asyncio.run(scenario()) == [{"do": "drain"}, "gone"]


CHILD = """
import asyncio, socket, sys, time
from sessionworkers.manager.protocol import ManagerLink
link = ManagerLink(int(sys.argv[1]), grace=0.3)
async def main():
    await link.start(asyncio.get_running_loop(), lambda: time.sleep(60))
    print("started", flush=True)
    time.sleep(60)
if sys.argv[2] == "early":
    print("started", flush=True)
    time.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_process_that_cannot_stop_itself_ends_with_its_manager(when: str) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(theirs.fileno()), when],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        ours.close()
        try:
            assert process.wait(5.0) == 1
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
