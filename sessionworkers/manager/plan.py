"""Who should run: the plan of the manager, without processes, signals or a clock.

A worker is STARTING until it says that it serves, SERVING, then DRAINING from the moment it was told to drain or stop
(or said that it leaves) until its process is gone. The target counts what is not draining; a generation is one
"restart" (HUP).

==================  =====================================================================================
what is             what follows
==================  =====================================================================================
fewer than target   start the missing ones, once the pause after failures is over
more than target    drain the surplus: those still starting first, then those with the fewest sessions
older generation    start one new worker beside them; from the first that serves on the old ones take no new sessions;
                    whenever a new one serves drain the oldest; repeat
worn                (it has reached its limit of requests or its age, and goes on serving) its successor first, then
                    drain it; not while as many drain as serve
draining            killed after the drain timeout and KILL_MARGIN; never, if there is no such timeout
told to stop        killed after the shutdown or graceful timeout and KILL_MARGIN; never, if there is none (as uvicorn)
silent              killed and replaced, see ``protocol``
==================  =====================================================================================

Failures (an exit before serving, or a crash within STABLE seconds of serving) are answered by pauses that double, up to
MAX_PAUSE and SERVED_PAUSE; Erlang/OTP's supervisors bound restarts the same way. A generation of which no worker ever
served is given up when one says so itself (exit code 3, as uvicorn's workers do when the app cannot be loaded) or at
``target + 4`` failures: the old workers are kept if there are any, else the server stops with exit code 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sessionworkers.manager.actions import Action, Drain, Finish, Kill, Note, Start, Terminate, Yield
from sessionworkers.manager.scaling import Report, Scaling
from sessionworkers.manager.slots import Slot, State

STARTUP_FAILURE = 3
"""Exit code of a worker that could not start, and of the server then (uvicorn's)."""
STABLE = 10.0
FIRST_PAUSE = 0.25
MAX_PAUSE = 5.0
SERVED_PAUSE = 0.5
"""The longest pause after crashes of workers that had served: a killed one is back within its boot time and a second,
however many were killed before; and what crashes only under load is no tight loop."""
KILL_MARGIN = 10.0
"""Time of a worker to run the app's own shutdown once its timeout has passed."""
QUICK = 3.0
"""Time that a quick stop (QUIT) leaves."""
BEAT_MARGIN = 1.0
"""One interval between beats: silence is counted from when the next beat was due."""


@dataclass
class Fleet:
    """The workers and what is wanted of them. Events come in by methods, :meth:`step` says what to do.

    ``graceful``: seconds that requests in flight have when the server stops, None for no limit; ``shutdown``: seconds
    that sessions have then, None: they are not waited for; ``drain``: seconds that a worker has which is replaced;
    ``healthcheck``: seconds of silence it may keep. All ``now`` are seconds of one monotonic clock.
    """

    target: int
    graceful: float | None = None
    healthcheck: float = 5.0
    drain: float = 300.0
    shutdown: float | None = None
    scaling: Scaling | None = None
    slots: dict[int, Slot] = field(default_factory=dict)
    generation: int = 1
    served: bool = False
    """A worker of this generation has served."""
    gave_up: bool = False
    """The last restart was given up: its workers could not start."""
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

    def reported(self, key: int, report: Report) -> None:
        """What the worker holds."""
        self.slots[key].report = report

    def worn(self, key: int, why: str) -> None:
        """The worker wants a successor; it goes on until it is told to drain."""
        self.slots[key].worn = why

    def leaving(self, key: int, now: float) -> None:
        """The worker drains by itself: it no longer counts."""
        slot = self.slots[key]
        if slot.state is not State.DRAINING:
            slot.state, slot.drained = State.DRAINING, now

    def ending(self, key: int) -> None:
        """Nothing holds the worker back any longer: it runs the app's shutdown."""
        self.slots[key].ending = True

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
            self._pause(now, SERVED_PAUSE)

    # What is wanted

    def stop(self, now: float, *, code: int = 0, limit: float | None = None, wait: bool = True) -> None:
        """Stop all workers; in at most ``limit`` seconds if given, else as their timeouts allow. Without ``wait``
        nothing is done for their sessions."""
        if not self.stopping:
            self.stopping, self.code = True, code
        wait = wait and limit is None
        for slot in self.slots.values():
            self._end(slot, now, wait)
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
            self.gave_up = False
            self.served, self._failures, self._streak, self._not_before = False, 0, 0, 0.0

    def resize(self, change: int) -> bool:
        """Change the target; False if it would fall below one."""
        return self.scale(self.target + change)

    def scale(self, target: int) -> bool:
        """Set the target; False if it is below one."""
        if target < 1:
            return False
        self.target = target
        if self.scaling is not None:
            self.scaling.floor = target
        return True

    def replace(self, key: int) -> bool:
        """Drain this worker, its successor first; False if it is not serving."""
        slot = self.slots.get(key)
        if slot is None or slot.state is not State.SERVING or self.stopping:
            return False
        slot.worn = slot.worn or "asked for"
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
            if self.scaling is not None:
                self._scale(self.scaling, now)
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
        if not self.stopping and self.scaling is not None and self.scaling.due is not None:
            times.append(max(now, self.scaling.due))
        return min(times, default=None)

    def _counted(self) -> list[Slot]:
        return [slot for slot in self.slots.values() if slot.state is not State.DRAINING and not slot.killed]

    def _reconcile(self, now: float) -> None:
        counted = self._counted()
        outdated = [slot for slot in counted if slot.generation != self.generation]
        self._yield(counted, outdated)
        old = outdated or self._recyclable(counted)
        replacing = any(slot.state is State.STARTING for slot in counted if slot not in old)
        wanted = self.target + (1 if old and (replacing or len(counted) <= self.target) else 0)
        if len(counted) < wanted and now >= self._not_before:
            for _ in range(wanted - len(counted)):
                self.slots[self._next_key] = Slot(self._next_key, self.generation, started=now)
                self._out.append(Start(self._next_key))
                self._next_key += 1
        elif len(counted) > wanted:
            order = sorted(counted, key=lambda slot: (slot.state is State.SERVING, slot.report.sessions, -slot.key))
            if old:
                order = sorted(old, key=lambda slot: (slot.state is State.SERVING, slot.key))
            for slot in order[: len(counted) - wanted]:
                self._drain(slot, now)

    def _yield(self, counted: list[Slot], outdated: list[Slot]) -> None:
        """Workers of an older generation leave new sessions to the new one, as long as one of it serves."""
        new = any(slot.state is State.SERVING and slot.generation == self.generation for slot in counted)
        for slot in counted:
            wanted = new and slot in outdated
            if slot.state is State.SERVING and slot.yielding is not wanted:
                slot.yielding = wanted
                self._out.append(Yield(slot.key, wanted))

    def _recyclable(self, counted: list[Slot]) -> list[Slot]:
        draining = sum(slot.state is State.DRAINING for slot in self.slots.values())
        serving = sum(slot.state is State.SERVING for slot in counted)
        if draining >= serving:
            return []
        return [slot for slot in counted if slot.worn and slot.state is State.SERVING]

    def _scale(self, scaling: Scaling, now: float) -> None:
        counted = self._counted()
        serving = [slot for slot in counted if slot.state is State.SERVING]
        change = scaling.change([slot.report for slot in serving], self.target, len(serving) == len(counted), now)
        if change:
            self.target += change
            self._out.append(Note(f"{'More' if change > 0 else 'Less'} load, {self.target} workers wanted."))

    def _drain(self, slot: Slot, now: float) -> None:
        """Take it out of service; nothing of what it holds is lost before the drain timeout."""
        if slot.state is State.STARTING:
            self._end(slot, now, False)
            return
        slot.state = State.DRAINING
        slot.drained = now if slot.drained is None else slot.drained
        if not slot.told and not slot.killed:
            slot.told = True
            self._out.append(Drain(slot.key, self.drain))
            if self.drain != math.inf:
                slot.stop_by = now + self.drain + KILL_MARGIN

    def _end(self, slot: Slot, now: float, wait: bool) -> None:
        """The whole server stops, or this worker never served."""
        waits = wait and self.shutdown is not None and slot.state is not State.STARTING
        timeout = self.shutdown if waits else self.graceful
        by = math.inf if timeout is None else now + timeout + KILL_MARGIN
        slot.state = State.DRAINING
        slot.drained = now if slot.drained is None else slot.drained
        if slot.killed or (slot.stopping and (slot.stop_by is None or by >= slot.stop_by)):
            return
        slot.told = slot.stopping = True
        self._out.append(Drain(slot.key, timeout or 0.0, all=True) if waits else Terminate(slot.key))
        if by != math.inf and (slot.stop_by is None or by < slot.stop_by):
            slot.stop_by = by

    def _kill(self, slot: Slot, reason: str) -> None:
        if not slot.killed:
            slot.killed = True
            self._out.append(Kill(slot.key, reason))

    def _silent_at(self, slot: Slot) -> float | None:
        # Not at the end: that of an interpreter stops the beating thread, and may take its time.
        if slot.heard is None or slot.killed or slot.ending or slot.stopping:
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
        self.gave_up = True
        for slot in self.slots.values():
            if slot.generation == self.generation:
                self._drain(slot, now)
        for slot in old:
            slot.generation = self.generation
        self.served = True
        self._pause(now)

    def _pause(self, now: float, most: float = MAX_PAUSE) -> None:
        """The first failure in a row is answered at once, further ones by pauses that double up to ``most``."""
        pause = min(most, FIRST_PAUSE * 2.0 ** (self._streak - 1)) if self._streak else 0.0
        self._streak += 1
        self._not_before = max(self._not_before, now + pause)
