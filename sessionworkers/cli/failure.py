"""What an app raised while it was loaded, shown from the app's own code on."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import traceback
from types import TracebackType

import uvicorn

import sessionworkers

_OURS = tuple(
    os.path.dirname(str(module.__file__)) + os.sep for module in (sessionworkers, uvicorn, asyncio, importlib)
)
_COMPILED = ("<frozen importlib", "uvloop/")


def show(error: Exception) -> None:
    """Print the traceback without the frames that lead to the app: its author has no use for them.

    An error that never reached other code than ours and uvicorn's is shown whole: it is no fault of the app.
    """
    first = error.__traceback__
    while first is not None and _leads_there(first):
        first = first.tb_next
    lines = []
    if first is not None or isinstance(error, SyntaxError):  # a SyntaxError names file and line itself
        lines = ["The app cannot be loaded:\n"]
    else:
        first = error.__traceback__
    lines += traceback.format_exception(type(error), error, first)
    sys.stderr.write("".join(lines))  # at once: all workers say it in one moment


def _leads_there(entry: TracebackType) -> bool:
    name = entry.tb_frame.f_code.co_filename
    return name.startswith((*_OURS, *_COMPILED))
