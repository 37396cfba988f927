"""``python -m sessionworkers``: the command line; with ``_worker FD`` a worker that a manager started."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["_worker"]:
        from sessionworkers.cli.worker import main as worker

        sys.exit(worker(int(sys.argv[2])))
    from sessionworkers.cli.main import main

    main()
