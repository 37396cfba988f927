"""sessionworkers: in-memory session state on any number of uvicorn or gunicorn workers.

``sessionworkers run app:app --workers 8`` in place of ``uvicorn app:app --workers 8``, or ``gunicorn -k
sessionworkers.Worker``. The app need not change; these names are for an app that wants to know of its session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessionworkers.errors import SessionworkersError
from sessionworkers.ledger.current import Session, claim, current_session, live_sessions

if TYPE_CHECKING:
    from sessionworkers.hosts.asgi import SessionRouter
    from sessionworkers.hosts.gunicorn import Worker

__version__ = "0.1.0"

__all__ = [
    "Session",
    "SessionRouter",
    "SessionworkersError",
    "Worker",
    "__version__",
    "claim",
    "current_session",
    "live_sessions",
]

_LAZY = {"SessionRouter": "sessionworkers.hosts.asgi", "Worker": "sessionworkers.hosts.gunicorn"}


def __getattr__(name: str) -> Any:
    """`Worker` needs gunicorn, which is an extra; `SessionRouter` pulls in the whole worker. Both on demand."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        if name == "Worker" and error.name in ("gunicorn", "uvicorn_worker", "gunicorn.arbiter"):
            raise ImportError("sessionworkers.Worker needs gunicorn: pip install 'sessionworkers[gunicorn]'") from error
        raise
