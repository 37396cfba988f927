"""``python -m benchmarks scale``: what sessions cost as they become many, and what workers cost.

Claims made, looked up for the first time and again, memory per session, the longest that the loop is held while they
are made and swept (CPU time, so that what else the machine does is left out); 10² to 10⁶ sessions. Start-up time for 1
to 8 workers. Claims are on tmpfs where there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

from benchmarks import setups
from benchmarks.compare import machine


def _ids(count: int) -> list[str]:
    return [f"{number:032x}" for number in range(count)]


def sessions(count: int) -> dict[str, float]:
    """Figures for ``count`` sessions of one worker; microseconds, bytes and milliseconds."""
    from sessionworkers.affinity.ids import claim_key
    from sessionworkers.affinity.lifecycle import State
    from sessionworkers.affinity.words import parse_rule
    from sessionworkers.claims.directory import DirectoryStore
    from sessionworkers.ledger.book import Book
    from sessionworkers.ledger.ledger import STEP
    from sessionworkers.members.identity import Member
    from sessionworkers.members.runtime import RuntimeDir

    now = 0.0
    with setups.scratch() as folder:
        runtime = RuntimeDir.create(str(folder))
        mine, other = Member.enlist(runtime), Member.enlist(runtime)
        store = DirectoryStore(runtime, mine)
        book = Book(store, clock=lambda: now)
        rule = parse_rule("cookie:sid mint=client idle=60", "bench")
        keys = [claim_key("bench", id) for id in _ids(count)]
        found: dict[str, float] = {"sessions": count}
        gc.collect()
        times: list[float] = []
        begin = time.perf_counter()
        for key in keys:
            one = time.thread_time()
            book.settle(book.open(rule, State.IMPLICIT, key, carrier=0))
            times.append(time.thread_time() - one)
        found["session made, µs"] = (time.perf_counter() - begin) / count * 1e6
        found["longest, ms"] = max(times) * 1e3
        found["again, µs"] = _per(lambda key: book.get(key), keys)
        reader = DirectoryStore(runtime, other)
        found["first look, µs"] = _per(reader.owner, keys)
        known = dict.fromkeys(keys, "owner")
        found["later look, µs"] = _per(known.get, keys)
        found["claim made, µs"] = _per(lambda key: store.claim("f" + key[1:]), keys[: min(count, 50_000)])
        for key in keys[: min(count, 50_000)]:
            store.release("f" + key[1:])
        now = 120.0
        held: list[float] = []
        begin = time.perf_counter()
        while len(book):
            one = time.thread_time()
            for record in book.expired(now, STEP):
                book.forget(record)
            held.append(time.thread_time() - one)
        found["swept, s"] = time.perf_counter() - begin
        found["held by a sweep, ms"] = max(held) * 1e3
        store.close()
        reader.close()
        mine.retire()
        other.retire()
        runtime.remove()
    return found


def _per(call: Any, keys: list[str]) -> float:
    """Median over slices of the mean time of a call, in microseconds."""
    means = []
    size = max(1, len(keys) // 20)
    for at in range(0, len(keys), size):
        part = keys[at : at + size]
        begin = time.perf_counter()
        for key in part:
            call(key)
        means.append((time.perf_counter() - begin) / len(part) * 1e6)
    return statistics.median(means)


def memory(count: int) -> float:
    """Bytes of the owner's memory per idle session."""
    from sessionworkers.affinity.ids import claim_key
    from sessionworkers.affinity.lifecycle import State
    from sessionworkers.affinity.words import parse_rule
    from sessionworkers.claims.memory import MemoryStore
    from sessionworkers.ledger.book import Book

    class Nothing(MemoryStore):
        def claim(self, key: str, worker: str | None = None) -> str:
            return self.me

    book = Book(Nothing("me"), clock=lambda: 0.0)
    rule = parse_rule("cookie:sid mint=client idle=60", "bench")
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for id in _ids(count):
        book.settle(book.open(rule, State.IMPLICIT, claim_key("bench", id), carrier=0))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / count


def sweeping(count: int) -> float:
    """Longest time in ms that the loop was held while ``count`` sessions ran out under the real sweeper."""
    from sessionworkers.affinity.lifecycle import State
    from sessionworkers.affinity.ruleset import RuleSet
    from sessionworkers.affinity.words import parse_rule
    from sessionworkers.claims.memory import MemoryStore
    from sessionworkers.ledger.ledger import Ledger
    from sessionworkers.ledger.sweeper import Sweeper

    clock = [0.0]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """No app."""

    async def run() -> float:
        rule = parse_rule("cookie:sid mint=client idle=60", "bench")
        ledger = Ledger(app, RuleSet([rule]), MemoryStore("me"), clock=lambda: clock[0])
        for id in _ids(count):
            ledger.book.settle(ledger.book.open(rule, State.IMPLICIT, id, carrier=0))
        gc.collect()
        sweeper = Sweeper(ledger)
        sweeper.start()
        clock[0] = 120.0
        longest, last = 0.0, time.thread_time()
        while len(ledger.book):
            await asyncio.sleep(0)
            here = time.thread_time()
            longest, last = max(longest, here - last), here
        await sweeper.stop()
        return longest * 1e3

    return asyncio.run(run())


def starts(workers: int) -> float:
    """Seconds until all of ``workers`` answer."""
    with setups.scratch() as folder:
        begin = time.perf_counter()
        setup = setups.ours("start", folder, workers, "app", "auto", "handover")
        took = time.perf_counter() - begin
        setup.stop()
    return took


def main(arguments: list[str]) -> int:
    """Print the tables; with ``--out`` write them, the raw figures and the plots."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale")
    parser.add_argument("--most", type=int, default=1_000_000, help="most sessions (1,000,000)")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--out", default="")
    options = parser.parse_args(arguments)
    rows = []
    size = 100
    while size <= options.most:
        row = sessions(size)
        row["memory, bytes"] = memory(min(size, 100_000))
        row["loop held, ms"] = sweeping(size)
        rows.append(row)
        print(json.dumps({name: round(value, 2) for name, value in row.items()}), flush=True)
        size *= 10
    boots = {workers: starts(workers) for workers in options.workers}
    print(json.dumps({f"{workers} workers ready, s": round(took, 2) for workers, took in boots.items()}))
    if options.out:
        _write(Path(options.out), rows, boots)
    return 0


def _write(folder: Path, rows: list[dict[str, float]], boots: dict[int, float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = list(rows[0])
    lines = [machine(), "", "| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(f"{row[name]:,.2f}" for name in names) + " |" for row in rows]
    lines += ["", "| workers | " + " | ".join(map(str, boots)) + " |", "|" + "---|" * (len(boots) + 1)]
    lines += ["| ready after, s | " + " | ".join(f"{took:.2f}" for took in boots.values()) + " |", ""]
    (folder / "scale.md").write_text("\n".join(lines))
    (folder / "scale.json").write_text(json.dumps({"rows": rows, "boots": boots}, indent=1))
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6))
    sizes = [row["sessions"] for row in rows]
    for axis, shown in (
        (axes[0], ("session made, µs", "claim made, µs", "first look, µs", "again, µs")),
        (axes[1], ("longest, ms", "held by a sweep, ms", "loop held, ms")),
    ):
        for name in shown:
            axis.plot(sizes, [row[name] for row in rows], marker="o", label=name)
        axis.set_xscale("log")
        axis.set_xlabel("sessions")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)
    axes[2].plot(list(boots), list(boots.values()), marker="o")
    axes[2].set_xlabel("workers")
    axes[2].set_ylabel("ready after, s")
    axes[2].set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(folder / "scale.png", dpi=110)


if __name__ == "__main__":
    os.chdir(Path(__file__).parent.parent)
    sys.exit(main(sys.argv[1:]))
