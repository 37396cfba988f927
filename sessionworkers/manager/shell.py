"""The manager's process: carries out the plan.

One thread, one poll() without a period: signals and ended children wake it by a descriptor, workers by their links,
the plan by :meth:`Fleet.due`. Handlers only append; nothing waits for a worker, so TERM and INT are obeyed at once.

======  ==================================================================
signal  what the manager does
======  ==================================================================
TERM    workers stop gracefully, with --shutdown-timeout once their sessions are over; exit code 0
INT     workers stop gracefully, without waiting for sessions; another INT, half a second later or more, kills them at
        once, exit code 130
QUIT    workers have QUICK seconds; exit code 0
HUP     restart every worker, one at a time, the new one first; the old ones drain
TTIN    one worker more
TTOU    one worker less, never below one: the one with the fewest sessions drains
USR1    ignored, as are USR2 and WINCH (uvicorn's manager does the same)
======  ==================================================================
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sessionworkers.manager.actions import Drain, Finish, Kill, Note, Start, Terminate, Yield
from sessionworkers.manager.control import NAME, ControlSocket
from sessionworkers.manager.orders import Orders
from sessionworkers.manager.plan import QUICK, Fleet
from sessionworkers.manager.process import Process, WorkerOptions, launch, reap
from sessionworkers.manager.protocol import Lines, encode, parse_report, parse_state
from sessionworkers.manager.slots import State
from sessionworkers.manager.wakeup import wakeups
from sessionworkers.members.identity import Roster
from sessionworkers.members.runtime import RuntimeDir
from sessionworkers.observe.http import Request

# uvicorn's logger, so that --log-config and --log-level hold for the manager as they do under uvicorn.
logger = logging.getLogger("uvicorn.error")

_GAP = 0.25
"""The loop woke this much later than it asked for: the manager was stopped (docker pause, say), not the workers."""

_TWICE = 0.5
"""Seconds within which a second INT is the first one again: a terminal sends Ctrl-C to the whole group, and what runs
us in it (timeout, npm, uv) passes it on once more."""
_LONGEST_WAIT = 3_600.0  # poll() counts milliseconds in an int


@dataclasses.dataclass
class _Worker:
    process: Process
    lines: Lines = dataclasses.field(default_factory=Lines)
    uid: str | None = None
    drains: bool = False
    """It knows the messages of a drain."""


class Manager:
    """Runs ``fleet`` with workers started by ``command`` (see :func:`process.launch`) until told to stop.

    ``on_serving`` is called once, when the first worker serves, before the lines it sent are shown. In ``runtime``
    there is a control socket, and what dead workers leave there is removed.
    """

    def __init__(
        self,
        fleet: Fleet,
        command: Sequence[str],
        options: WorkerOptions,
        *,
        on_serving: Callable[[], None] = lambda: None,
        runtime: RuntimeDir | None = None,
    ) -> None:
        self._runtime = runtime
        self._roster = Roster(runtime) if runtime is not None else None
        self._orders = Orders(fleet, self._about, time.monotonic())
        self._control: ControlSocket | None = None
        self._fleet = fleet
        self._command = command
        self._options = options
        self._on_serving: Callable[[], None] | None = on_serving
        self._workers: dict[int, _Worker] = {}
        self._signals: collections.deque[int] = collections.deque()
        self._shown: Sequence[str] = ()
        self._poll = select.poll()
        self._by_fd: dict[int, int] = {}
        self._told = 0.0

    def run(self) -> int:
        """Run until every worker is gone; the exit code. To be called in the main thread."""
        with wakeups(self._signals) as wake, self._controlled():
            self._poll.register(wake, select.POLLIN)
            while (code := self._act()) is None:
                for fd in self._wait():
                    if fd == wake:
                        with contextlib.suppress(BlockingIOError):
                            while os.read(wake, 4096):
                                pass
                    elif fd in self._by_fd:
                        self._read(self._by_fd[fd])
                    elif self._control is not None:
                        self._control.handle(fd)
                while self._signals:
                    self._handle(self._signals.popleft())
        return code

    @contextlib.contextmanager
    def _controlled(self) -> Iterator[None]:
        """With the control socket, if there is a place for it. A server that cannot have one serves all the same."""
        if self._runtime is not None:
            try:
                path = os.path.join(self._runtime.path, NAME)
                self._control = ControlSocket(path, self._answer, self._poll)
                if self._control.displaced:
                    logger.warning(
                        "Another server runs in %s: commands (status, reload, stop …) reach this one alone",
                        self._runtime.path,
                    )
            except OSError as error:
                logger.warning("No control socket: %s", error)
        try:
            yield
        finally:
            if self._control is not None:
                self._control.close()

    def _answer(self, request: Request) -> tuple[int, dict[str, Any]]:
        status, value = self._orders.answer(request, time.monotonic())
        if request.method == "POST":
            logger.info("Control socket: %s %s: %s", request.path.removeprefix("/v1/"), request.body or "", status)
        return status, value

    def _about(self, key: int) -> dict[str, Any]:
        worker = self._workers.get(key)
        return {"pid": None, "uid": None} if worker is None else {"pid": worker.process.pid, "uid": worker.uid}

    def _act(self) -> int | None:
        """Do what the plan says until it says nothing more; the exit code at the end."""
        while actions := self._fleet.step(time.monotonic()):
            for action in actions:
                if isinstance(action, Start):
                    self._start(action.key)
                elif isinstance(action, Terminate):
                    self._send(action.key, signal.SIGTERM)
                elif isinstance(action, Yield):
                    self._tell(action.key, {"do": "yield" if action.on else "resume"})
                elif isinstance(action, Drain):
                    self._drain(action)
                elif isinstance(action, Kill):
                    logger.error("Killing worker [%s]: %s.", self._about(action.key)["pid"], action.reason)
                    self._send(action.key, signal.SIGKILL)
                elif isinstance(action, Note):
                    logger.log(logging.ERROR if action.bad else logging.INFO, action.text)
                elif isinstance(action, Finish):
                    return action.code
        return None

    def _wait(self) -> list[int]:
        asked = time.monotonic()
        due = self._fleet.due(asked)
        limit = None if due is None else min(max(0.0, due - asked), _LONGEST_WAIT)
        ready = [fd for fd, _ in self._poll.poll(None if limit is None else limit * 1000 + 1)]
        now = time.monotonic()
        if limit is not None and now - asked > limit + _GAP:
            self._fleet.slept(now)
        return ready

    def _start(self, key: int) -> None:
        try:
            process = launch(self._command, self._options)
        except OSError as error:
            logger.error("Cannot start a worker: %s", error)
            self._fleet.exited(key, 1, time.monotonic())  # the plan may have more to say about it: see `_send`
            return
        self._workers[key] = _Worker(process)
        self._by_fd[process.link.fileno()] = key
        self._poll.register(process.link, select.POLLIN)

    def _drain(self, action: Drain) -> None:
        worker = self._workers.get(action.key)
        if worker is not None and not worker.drains:
            self._fleet.ending(action.key)  # of another release: it stops as uvicorn's workers do
            self._send(action.key, signal.SIGTERM)
            return
        timeout = None if action.timeout == math.inf else action.timeout
        self._tell(action.key, {"do": "drain", "timeout": timeout, "all": action.all})

    def _tell(self, key: int, message: dict[str, Any]) -> None:
        worker = self._workers.get(key)
        if worker is not None and worker.drains:
            with contextlib.suppress(OSError):  # it is just ending; or stopped, with a full buffer: then it is killed
                worker.process.link.send(encode(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _send(self, key: int, number: signal.Signals) -> None:
        worker = self._workers.get(key)
        if worker is None:
            return  # it could not even be started
        # Not reaped yet, or it would not be in the table: the pid is still this worker's.
        pid = worker.process.pid
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(pid, number)  # what it has started would otherwise be left without anyone to stop it
            else:
                os.kill(pid, number)

    def _read(self, key: int) -> None:
        worker = self._workers[key]
        now = time.monotonic()
        while True:
            try:
                data = worker.process.link.recv(65_536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:  # its end is near; the end itself is told by SIGCHLD
                self._poll.unregister(worker.process.link)
                return
            for message in worker.lines.feed(data):
                self._heard(key, worker, message, now)

    def _heard(self, key: int, worker: _Worker, message: dict[str, Any], now: float) -> None:
        kind, lines = parse_state(message)
        if kind == "serving":
            does, uid = message.get("does"), message.get("uid")
            worker.drains = isinstance(does, list) and "drain" in does
            worker.uid = uid if isinstance(uid, str) else None
            self._serving(key, lines, now)
        elif kind == "worn":
            logger.info("Worker [%d] %s, its successor is due.", worker.process.pid, "".join(lines) or "has aged")
            self._fleet.worn(key, "".join(lines) or "worn")
        elif kind == "leaving":
            self._fleet.leaving(key, now)
        elif kind == "ending":
            self._fleet.ending(key)
        elif kind == "report":
            self._fleet.reported(key, parse_report(message))
        elif kind == "beat":
            self._fleet.heard(key, now)

    def _serving(self, key: int, lines: Sequence[str], now: float) -> None:
        self._fleet.serving(key, now)
        if self._on_serving is not None:
            self._on_serving()
            self._on_serving = None
        if lines != self._shown:  # the same from every worker, but a restart may bring others
            self._shown = lines
            for line in lines:
                logger.info("%s", line)

    def _reap(self) -> None:
        ended = dict(reap())
        for key, worker in list(self._workers.items()):
            code = ended.get(worker.process.pid)
            if code is None:
                continue
            with contextlib.suppress(KeyError):
                self._read(key)  # what it said last
                self._poll.unregister(worker.process.link)
            del self._workers[key], self._by_fd[worker.process.link.fileno()]
            worker.process.link.close()
            slot = self._fleet.slots[key]
            if not self._fleet.stopping and slot.state is not State.DRAINING:
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                logger.warning("Worker [%d] %s.", worker.process.pid, how)
            self._fleet.exited(key, code, time.monotonic())
            self._bury()

    def _bury(self) -> None:
        """What a worker that was killed could not remove itself; its claims stay: their sessions are gone."""
        if self._roster is not None:
            with contextlib.suppress(OSError):  # the next one's end has it once more
                self._roster.bury()

    def _handle(self, number: int) -> None:
        now = time.monotonic()
        fleet = self._fleet
        if number == signal.SIGCHLD:
            self._reap()
            return
        name = signal.Signals(number).name
        if number == signal.SIGINT and fleet.stopping:
            if now - self._told < _TWICE:
                return
            logger.warning("Received SIGINT again, killing the workers.")
            fleet.stop_at_once(now, code=128 + signal.SIGINT)
        elif number in (signal.SIGINT, signal.SIGTERM):
            if not fleet.stopping:
                logger.info("Received %s, exiting.", name)
                self._told = now
            fleet.stop(now, wait=number == signal.SIGTERM)
        elif number == signal.SIGQUIT:
            logger.info("Received SIGQUIT, exiting within %g s.", QUICK)
            fleet.stop(now, limit=QUICK)
        elif number == signal.SIGHUP:
            logger.info("Received SIGHUP, restarting the workers.")
            fleet.restart()
        elif number in (signal.SIGTTIN, signal.SIGTTOU):
            changed = fleet.resize(1 if number == signal.SIGTTIN else -1)
            logger.info("Received %s, %d workers wanted%s.", name, fleet.target, "" if changed else " already")
