"""A manager for tests: ``parent.py WORKERS BEHAVIOUR [GRACEFUL [HEALTHCHECK]]`` on a free port, which it prints."""

from __future__ import annotations

import ctypes
import logging
import pathlib
import sys

from sessionworkers.manager.plan import Fleet
from sessionworkers.manager.process import WorkerOptions
from sessionworkers.manager.shell import Manager
from sessionworkers.manager.sockets import bind


def main(workers: str, behaviour: str, graceful: str = "2", healthcheck: str = "5") -> int:
    if behaviour == "orphan":  # have their orphans, as PID 1 does
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        assert prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER, prctl(2)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    listening = bind(host="127.0.0.1", port=0, uds=None, fd=None, tls=False)
    fleet = Fleet(int(workers), graceful=float(graceful), healthcheck=float(healthcheck))
    options = WorkerOptions(
        config={"behaviour": behaviour}, sockets=[sock.fileno() for sock in listening.sockets], argv=sys.argv
    )
    command = [sys.executable, str(pathlib.Path(__file__).with_name("stand_in.py"))]
    manager = Manager(fleet, command, options, on_serving=lambda: print(listening.address, flush=True))
    return manager.run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
