"""What the control socket answers: the plan as JSON, and orders to it. No I/O: the plan and ``now`` come in.

::

    GET  /v1/status                          the server and its workers
    POST /v1/reload                          as HUP
    POST /v1/scale   {"workers": 4}          as TTIN and TTOU
    POST /v1/drain   {"pid": 123}            replace one worker, its sessions served to their end
    POST /v1/drain   {"timeout": 60}         the whole server: no new sessions, then the end
    POST /v1/stop    {"now": false}          as TERM; now: as QUIT
    GET  /-/ready, /-/live                   200 or 503, as on the public port

An order is answered when it is noted, with 202; what becomes of it shows in the status.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from sessionworkers import __version__
from sessionworkers.manager.plan import QUICK, Fleet
from sessionworkers.manager.slots import Slot, State
from sessionworkers.observe.http import VERSION, Request

MOST_WORKERS = 1_024

Answer = tuple[int, dict[str, Any]]


class Orders:
    """Requests to the control socket, applied to ``fleet``. ``about(key)``: pid and uid of a worker."""

    def __init__(self, fleet: Fleet, about: Callable[[int], Mapping[str, Any]], started: float) -> None:
        self._fleet = fleet
        self._about = about
        self._started = started

    def answer(self, request: Request, now: float) -> Answer:
        """Status and JSON of the reply."""
        routes: dict[tuple[str, str], Callable[[dict[str, Any], float], Answer]] = {
            ("GET", "/v1/status"): lambda _, now: (200, self.status(now)),
            ("POST", "/v1/reload"): self._reload,
            ("POST", "/v1/scale"): self._scale,
            ("POST", "/v1/drain"): self._drain,
            ("POST", "/v1/stop"): self._stop,
            ("GET", "/-/live"): lambda _, now: (200, {"live": True}),
            ("GET", "/-/ready"): self._ready,
        }
        order = routes.get((request.method, request.path))
        if order is not None:
            return order(request.body, now)
        if any(path == request.path for _, path in routes):
            return 405, {"error": f"not with {request.method}"}
        return 404, {"error": f"nothing is at {request.path} in version {VERSION}"}

    def status(self, now: float) -> dict[str, Any]:
        """The server and its workers, ages in seconds."""
        fleet = self._fleet
        state = "stopping" if fleet.stopping else "restarting" if self._restarting() else "serving"
        return {
            "version": VERSION,
            "release": __version__,
            "pid": os.getpid(),
            "state": state,
            "age": round(now - self._started, 1),
            "wanted": fleet.target,
            "most": fleet.scaling.ceiling if fleet.scaling is not None else None,
            "generation": fleet.generation,
            "gave_up": fleet.gave_up,
            "workers": [self._worker(slot, now) for slot in fleet.slots.values()],
        }

    def _worker(self, slot: Slot, now: float) -> dict[str, Any]:
        report = slot.report
        return {
            **self._about(slot.key),
            "state": slot.state.value,
            "generation": slot.generation,
            "age": round(now - slot.started, 1),
            "draining_for": None if slot.drained is None else round(now - slot.drained, 1),
            "killed_in": None if slot.stop_by is None else round(slot.stop_by - now, 1),
            "worn": slot.worn or None,
            "sessions": report.sessions,
            "requests": report.requests,
            "busy": report.busy,
        }

    def _restarting(self) -> bool:
        fleet = self._fleet
        return any(s.generation != fleet.generation and s.state is not State.DRAINING for s in fleet.slots.values())

    def _ready(self, body: dict[str, Any], now: float) -> Answer:
        serving = sum(slot.state is State.SERVING for slot in self._fleet.slots.values())
        ready = serving > 0 and not self._fleet.stopping
        return (200 if ready else 503), {"ready": ready, "workers": serving}

    def _reload(self, body: dict[str, Any], now: float) -> Answer:
        if self._fleet.stopping:
            return 409, {"error": "the server is stopping"}
        self._fleet.restart()
        return 202, {"generation": self._fleet.generation}

    def _scale(self, body: dict[str, Any], now: float) -> Answer:
        wanted = body.get("workers")
        if type(wanted) is not int or not 1 <= wanted <= MOST_WORKERS:
            return 422, {"error": f"workers is a number from 1 to {MOST_WORKERS}"}
        if self._fleet.stopping:
            return 409, {"error": "the server is stopping"}
        self._fleet.scale(wanted)
        return 202, {"wanted": wanted}

    def _drain(self, body: dict[str, Any], now: float) -> Answer:
        if "pid" not in body:
            timeout = body.get("timeout", self._fleet.drain)
            if type(timeout) not in (int, float) or timeout < 0:
                return 422, {"error": "timeout is a number of seconds"}
            self._fleet.shutdown = float(timeout)
            self._fleet.stop(now)
            return 202, {"timeout": timeout}
        for key in self._fleet.slots:
            if self._about(key).get("pid") == body["pid"]:
                if self._fleet.replace(key):
                    return 202, {"pid": body["pid"]}
                return 409, {"error": "this worker is not serving"}
        return 404, {"error": "no worker has this pid"}

    def _stop(self, body: dict[str, Any], now: float) -> Answer:
        quick = bool(body.get("now"))
        self._fleet.stop(now, limit=QUICK if quick else None)
        return 202, {"within": QUICK if quick else self._fleet.shutdown or self._fleet.graceful}
