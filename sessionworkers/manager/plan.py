"""Who should run: the plan of the manager, without processes, signals or a clock.

A worker is STARTING until it says that it serves, SERVING, then DRAINING from the moment it was told to stop (or said
that it leaves) until its process is gone. The target counts what is not draining; a generation is one "restart" (HUP).

==================  =====================================================================================
what is             what follows
==================  =====================================================================================
fewer than target   start the missing ones, once the pause after failures is over
more than target    drain the surplus: those still starting first, then the newest (it has the fewest sessions)
older generation    start one new worker beside them; when it serves drain the oldest; repeat
told to stop        killed after the graceful timeout and KILL_MARGIN; never, if there is no such timeout (as uvicorn)
silent              killed and replaced, see ``protocol``
==================  =====================================================================================

Failures (an exit before serving, or a crash within STABLE seconds of serving) are answered by pauses that double up to
MAX_PAUSE; Erlang/OTP's supervisors bound restarts the same way. A generation of which no worker ever served is given
up when one says so itself (exit code 3, as uvicorn's workers do when the app cannot be loaded) or at ``target + 4``
failures: the old workers are kept if there are any, else the server stops with exit code 3.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

STARTUP_FAILURE = 3
"""Exit code of a worker that could not start, and of the server then (uvicorn's)."""
STABLE = 10.0
FIRST_PAUSE = 0.25
MAX_PAUSE = 5.0
KILL_MARGIN = 10.0
"""Time of a worker to run the app's own shutdown once its graceful timeout has passed."""
QUICK = 3.0
"""Time that a quick stop (QUIT) leaves."""
BEAT_MARGIN = 1.0
"""One interval between beats: silence is counted from when the next beat was due."""


class State(enum.Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(slots=True)
class Slot:
    """One worker process as the plan sees it. ``told``: it was sent TERM; ``stop_by``: then it is killed."""

    key: int
    generation: int
    started: float
    state: State = State.STARTING
    served: float | None = None
    heard: float | None = None
    told: bool = False
    stop_by: float | None = None
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    key: int


@dataclass(frozen=True, slots=True)
class Terminate:
    key: int


@dataclass(frozen=True, slots=True)
class Kill:
    key: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something to log; ``bad`` as an error."""

    text: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    code: int


Action = Start | Terminate | Kill | Note | Finish


@dataclass
class Fleet:
    """The workers and what is wanted of them. Events come in by methods, :meth:`step` says what to do.

    ``graceful``: seconds a stopping worker has, None for no limit; ``healthcheck``: seconds of silence it may keep.
    All ``now`` are seconds of one monotonic clock.
    """

    target: int
    graceful: float | None = None
    healthcheck: float = 5.0
    slots: dict[int, Slot] = field(default_factory=dict)
    generation: int = 1
    served: bool = False
    """A worker of this generation has served."""
    stopping: bool = False
    code: int = 0
    _next_key: int = 1
    _failures: int = 0
    _streak: int = 0
    _not_before: float = 0.0
    _out: list[Action] = field(default_factory=list)

    # What happened

    def serving(self, key: int, now: float) -> None:
        slot = self.slots[key]
        slot.heard = now
        if slot.state is State.STARTING:
            slot.state, slot.served = State.SERVING, now
            self.served = self.served or slot.generation == self.generation

    def heard(self, key: int, now: float) -> None:
        self.slots[key].heard = now

    def leaving(self, key: int) -> None:
        """The worker stops by itself: it no longer counts."""
        self.slots[key].state = State.DRAINING

    def exited(self, key: int, code: int, now: float) -> None:
        """The process ended with ``code`` (negative: a signal's number)."""
        slot = self.slots.pop(key)
        if self.stopping or slot.state is State.DRAINING:
            return
        if slot.served is None:
            self._failed_to_start(code, now)
        elif code == 0 or now - slot.served >= STABLE:
            self._streak, self._not_before = 0, now
        else:
            self._pause(now)

    # What is wanted

    def stop(self, now: float, *, code: int = 0, limit: float | None = None) -> None:
        """Stop all workers; in at most ``limit`` seconds if given, else as their graceful timeout allows."""
        if not self.stopping:
            self.stopping, self.code = True, code
        for slot in self.slots.values():
            self._drain(slot, now)
            if limit is not None:
                slot.stop_by = now + limit if slot.stop_by is None else min(slot.stop_by, now + limit)

    def stop_at_once(self, now: float, *, code: int) -> None:
        """Kill what still runs."""
        self.stop(now, limit=0.0)
        self.code = code

    def restart(self) -> None:
        """Replace every worker by one of a new generation, new ones first."""
        if not self.stopping:
            self.generation += 1
            self.served, self._failures, self._streak, self._not_before = False, 0, 0, 0.0

    def resize(self, change: int) -> bool:
        """Change the target; False if it would fall below one."""
        if self.target + change < 1:
            return False
        self.target += change
        return True

    def slept(self, now: float) -> None:
        """The manager itself did not run until ``now``: nobody's silence before counts."""
        for slot in self.slots.values():
            if slot.heard is not None:
                slot.heard = now

    # What to do

    def step(self, now: float) -> list[Action]:
        """What to do now, in order; each action is given once. To be called after each event and at :meth:`due`."""
        for slot in self.slots.values():
            silent_at = self._silent_at(slot)
            if slot.stop_by is not None and slot.stop_by <= now:
                self._kill(slot, "it did not stop in time")
            elif silent_at is not None and silent_at <= now:
                self._kill(slot, f"it gave no sign of life for {now - (slot.heard or 0.0):.0f} s")
        if self.stopping:
            if not self.slots:
                self._out.append(Finish(self.code))
        else:
            self._reconcile(now)
        out, self._out = self._out, []
        return out

    def due(self, now: float) -> float | None:
        """When :meth:`step` must be called although nothing happened; None: not by itself."""
        alive = [slot for slot in self.slots.values() if not slot.killed]
        times = [slot.stop_by for slot in alive if slot.stop_by is not None]
        times += [silent_at for slot in alive if (silent_at := self._silent_at(slot)) is not None]
        if not self.stopping and self._not_before > now:
            times.append(self._not_before)
        return min(times, default=None)

    def _reconcile(self, now: float) -> None:
        counted = [slot for slot in self.slots.values() if slot.state is not State.DRAINING and not slot.killed]
        old = [slot for slot in counted if slot.generation != self.generation]
        replacing = any(slot.state is State.STARTING for slot in counted if slot.generation == self.generation)
        wanted = self.target + (1 if old and (replacing or len(counted) <= self.target) else 0)
        if len(counted) < wanted and now >= self._not_before:
            for _ in range(wanted - len(counted)):
                self.slots[self._next_key] = Slot(self._next_key, self.generation, started=now)
                self._out.append(Start(self._next_key))
                self._next_key += 1
        elif len(counted) > wanted:
            order = sorted(counted, key=lambda slot: (slot.state is State.SERVING, -slot.key))
            if old:
                order = sorted(old, key=lambda slot: (slot.state is State.SERVING, slot.key))
            for slot in order[: len(counted) - wanted]:
                self._drain(slot, now)

    def _drain(self, slot: Slot, now: float) -> None:
        slot.state = State.DRAINING
        if not slot.told and not slot.killed:
            slot.told = True
            self._out.append(Terminate(slot.key))
            if self.graceful is not None:
                slot.stop_by = now + self.graceful + KILL_MARGIN

    def _kill(self, slot: Slot, reason: str) -> None:
        if not slot.killed:
            slot.killed = True
            self._out.append(Kill(slot.key, reason))

    def _silent_at(self, slot: Slot) -> float | None:
        # Not while draining: the end of an interpreter stops the beating thread, and may take its time.
        if slot.heard is None or slot.killed or slot.state is State.DRAINING:
            return None
        return slot.heard + max(self.healthcheck, BEAT_MARGIN) + BEAT_MARGIN

    def _failed_to_start(self, code: int, now: float) -> None:
        self._failures += 1
        if self.served or (code != STARTUP_FAILURE and self._failures < self.target + 4):
            self._pause(now)
            return
        old = [slot for slot in self.slots.values() if slot.generation != self.generation]
        keep = [slot for slot in old if slot.state is State.SERVING]
        if not keep:
            self._out.append(Note("No worker could start, stopping.", bad=True))
            self.stop(now, code=STARTUP_FAILURE, limit=QUICK)
            return
        self._out.append(
            Note(f"The new workers cannot start: restart given up, {len(keep)} stay as they are.", bad=True)
        )
        for slot in self.slots.values():
            if slot.generation == self.generation:
                self._drain(slot, now)
        for slot in old:
            slot.generation = self.generation
        self.served = True
        self._pause(now)

    def _pause(self, now: float) -> None:
        """The first failure in a row is answered at once, further ones by pauses that double."""
        pause = min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** (self._streak - 1)) if self._streak else 0.0
        self._streak += 1
        self._not_before = max(self._not_before, now + pause)
