"""``--max-workers``: a server grows while all its workers are full, and gives back the one that holds nothing."""

from __future__ import annotations

import sys

from tests.drain.world import serving, state, workers
from tests.harness import wait_for
from tests.hosts.client import start

SHRINKS_AFTER = 1.5
QUICK = (
    *(sys.executable, "-c"),
    "from sessionworkers.manager import scaling\n"
    f"scaling.SHRINK_AFTER = {SHRINKS_AFTER}\n"
    "from sessionworkers.cli.main import main\n"
    "main()",
    *("run", "{app}", "--host", "127.0.0.1", "--port", "{port}", "--workers", "{workers}", "--no-access-log"),
)
"""`sessionworkers run` that does not wait a minute before it shrinks."""
CAP = 2


def test_it_grows_when_all_are_full_and_shrinks_by_the_idle_one() -> None:
    env = {"SESSIONWORKERS_MAX_CLAIMS": str(CAP), "SESSIONWORKERS_RETRY_WINDOW": "0.5"}
    with serving(2, "--max-workers", "3", "--drain-idle", "0.5", command=QUICK, env=env) as running:
        first = workers(running)
        made: dict[str, int] = dict(start(running) for _ in range(2 * CAP))
        assert sorted(made.values()) == sorted([*first] * CAP), "all are at their cap"
        wait_for(lambda: len(workers(running)) == 3 and running.started == 3, 20, "a third one came")
        (third,) = workers(running) - first
        wait_for(lambda: {each["pid"]: each["state"] for each in state(running)}[third] == "serving", 5)
        sid, pid = start(running)
        made[sid] = pid
        assert pid == third, "the only one with room"

        asked = dict.fromkeys(made, 0)

        def all_right() -> bool:
            for sid, pid in made.items():
                asked[sid] += 1
                assert running.fetch("GET", f"/s/{sid}/n").json == {"n": asked[sid], "pid": pid}
            return True

        all_right()
        leaver, other = sorted(first)
        for sid in [each for each, pid in made.items() if pid == leaver] + [
            next(each for each, pid in made.items() if pid == other)
        ]:
            assert running.fetch("POST", f"/s/{sid}/end").status == 200
            del made[sid]
        assert sorted(made.values()) == sorted([other, third])
        wait_for(lambda: all_right() and leaver not in workers(running), 20, "the idle one went", interval=0.05)
        assert workers(running) == {other, third} and running.started == 3
        assert "3 workers wanted" in running.log and "2 workers wanted" in running.log
        assert f"Worker [{leaver}] has drained: nothing holds it back" in running.log
        assert running.log.count("drains") == 1, "no other one was told to go"
        all_right()
