"""What a worker and its manager say to each other, over one inherited socket pair.

Each message is one line of JSON, at most 64 KiB, read by whoever knows it; unknown messages and unknown keys are left
alone, because two releases run side by side during a rolling restart::

    worker → manager   {"state": "serving", "pid": 123, "uid": "…", "does": ["drain"], "lines": ["…"]}
                                               it serves, and knows these messages; lines to show, once a server
                       {"state": "worn", "why": "…"}   it has done its share: replace it when there is time
                       {"state": "leaving"}    it drains by itself: start its successor now
                       {"state": "ending"}     nothing holds it back: it runs the app's shutdown
                       {"report": {"sessions": 12, …}} what it holds, when that has changed, once a second at most
                       {"beat": 1}             once a second while the process can run at all
    manager → worker   {"do": "yield"}         take no new sessions while others do
                       {"do": "resume"}        take them again
                       {"do": "drain", "timeout": 300, "all": false}   serve what it holds, then leave; null: no limit;
                                               all: with the whole server, so nobody else takes new sessions

A worker that does not say "drain" (of an older release) is sent SIGTERM in its place.

End of file is a message too: the manager is gone, and the worker leaves within :data:`PARENT_GRACE` seconds.

Beats come from a thread of the worker, not from its event loop: as with uvicorn's own health check, a handler that
blocks the loop for a while must not cost a worker, and here every session in its memory. What the check finds is a
process that is stopped or stuck outside Python.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

from sessionworkers.manager.scaling import Report

BEAT_INTERVAL = 1.0
PARENT_GRACE = 4.0
MAX_LINE = 65_536

_BEAT = b'{"beat": 1}\n'


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Lines:
    """Cuts a byte stream into messages. ``feed`` gives those completed; what is not a JSON object falls away."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Messages completed by ``data``. A line beyond MAX_LINE is dropped rather than kept growing."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self._rest = b""
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                messages.append(message)
        return messages


class ManagerLink:
    """The worker's end. Made as early as possible: from here on beats go out and the parent's end is noticed.

    Until :meth:`start` the end of the manager ends this process at once (nothing serves yet). After it,
    ``on_parent_gone`` is called on the loop, and the process ends hard ``grace`` seconds later if it has not by then.
    All methods may be called from any thread; none blocks, and none raises because the manager is gone.
    """

    def __init__(self, fd: int, *, grace: float = PARENT_GRACE) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._grace = grace
        self._lock = threading.Lock()
        self._unsent = b""
        self._next_beat = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_parent_gone: Callable[[], object] = lambda: None
        self._on_message: Callable[[dict[str, Any]], object] = lambda message: None
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="sessionworkers-link", daemon=True)
        self._thread.start()

    async def start(
        self,
        loop: asyncio.AbstractEventLoop,
        on_parent_gone: Callable[[], object],
        on_message: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        """From now on call ``on_parent_gone()`` and ``on_message(message)`` on ``loop``."""
        self._on_parent_gone = on_parent_gone
        if on_message is not None:
            self._on_message = on_message
        self._loop = loop

    def serving(self, lines: Iterable[str] = (), **about: Any) -> None:
        """Tell that this worker serves; the manager shows ``lines`` (the rules in force) once for all workers.

        ``about``: ``uid``, and ``does``, the messages that it knows.
        """
        self._send(encode({"state": "serving", "pid": os.getpid(), **about, "lines": list(lines)}))

    def worn(self, why: str) -> None:
        """Tell that this worker wants a successor; it serves until it is told to drain."""
        self._send(encode({"state": "worn", "why": why}))

    def leaving(self) -> None:
        """Tell that this worker drains by itself, so that its successor starts before it is gone."""
        self._send(encode({"state": "leaving"}))

    def ending(self) -> None:
        """Tell that this worker runs the app's shutdown, and may be silent from now on."""
        self._send(encode({"state": "ending"}))

    def report(self, **what: Any) -> None:
        """Tell what this worker holds (see ``scaling.Report``)."""
        self._send(encode({"report": what}))

    def beat(self) -> None:
        """Tell that this process runs; no more than once in an interval. The link also does it by itself."""
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_INTERVAL
        self._send(b"" if self._unsent else _BEAT)

    def close(self) -> None:
        """Stop watching and beating. Idempotent."""
        if not self._closed:
            self._closed = True
            try:
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes the socket
            except OSError:
                pass

    def _send(self, data: bytes) -> None:
        with self._lock:
            self._unsent += data
            try:
                sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._unsent = self._unsent[sent:]
            except BlockingIOError:
                pass  # the manager is stopped: kept for the next beat
            except OSError:
                self._unsent = b""  # gone or closed: the watching thread sees to it

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        lines = Lines()
        while not self._closed:
            self.beat()
            if not poll.poll(max(0.0, self._next_beat - time.monotonic()) * 1000 + 1):
                continue
            try:
                data = self._socket.recv(MAX_LINE)
            except OSError:
                data = b""
            if data:
                for message in lines.feed(data):
                    self._call(self._on_message, message)
            else:
                break
        if not self._closed:
            self._parent_gone()
        self._socket.close()

    def _parent_gone(self) -> None:
        if self._call(self._on_parent_gone):
            time.sleep(self._grace)
        if not self._closed:
            # Threads or children of the app may keep the interpreter from ending; nobody is left to kill it.
            os._exit(1)

    def _call(self, function: Callable[..., object], *args: Any) -> bool:
        if self._loop is None:
            return False
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False  # the loop is closed
        return True


def parse_state(message: dict[str, Any]) -> tuple[str, Sequence[str]]:
    """(kind, lines) of a worker's message; kind is its state, "report", "beat", or "" for what is not known here.

    ``lines``: those of "serving"; the reason of "worn".
    """
    state = message.get("state")
    if state == "serving":
        return state, _texts(message.get("lines"))
    if state == "worn":
        return state, _texts([message.get("why")])
    if state in ("leaving", "ending"):
        return str(state), ()
    return ("beat" if "beat" in message else "report" if isinstance(message.get("report"), dict) else ""), ()


def parse_report(message: dict[str, Any]) -> Report:
    """What a worker's "report" says; what is missing or of another type counts as its default."""
    found = message.get("report")
    given = found if isinstance(found, dict) else {}
    values: dict[str, Any] = {}
    for item in fields(Report):
        value = given.get(item.name, item.default)
        if type(value) is type(item.default) or (item.name == "busy" and type(value) is int):
            values[item.name] = value
    return Report(**values)


def _texts(value: object) -> list[str]:
    return [line for line in value if isinstance(line, str)] if isinstance(value, list) else []
