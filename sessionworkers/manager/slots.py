"""A worker process as the plan sees it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from sessionworkers.manager.scaling import Report


class State(enum.Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(slots=True)
class Slot:
    """One worker process as the plan sees it. ``told``: to drain or stop; ``stop_by``: then it is killed."""

    key: int
    generation: int
    started: float
    state: State = State.STARTING
    served: float | None = None
    heard: float | None = None
    drained: float | None = None
    """When it began to drain."""
    told: bool = False
    stopping: bool = False
    """Told to stop with the whole server."""
    yielding: bool = False
    """Told to take no new sessions."""
    worn: str = ""
    """Why it wants a successor."""
    ending: bool = False
    """It runs the app's shutdown and may be silent."""
    stop_by: float | None = None
    killed: bool = False
    report: Report = field(default_factory=Report)
