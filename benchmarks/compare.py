"""``python -m benchmarks compare``: each request's cost under sessionworkers, plain uvicorn, nginx and HAProxy.

All set-ups run side by side, those that are not measured are stopped (SIGSTOP). A round measures every row of a
scenario once, in shuffled order, in short slots; ratios are taken within the round and their medians and quartiles
reported, so that what else the machine does falls on all rows alike. The row "again" is the base measured twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import report, setups
from benchmarks.setups import Setup

METRICS = ("p50", "p99", "cpu", "rps")


@dataclass(frozen=True)
class Row:
    """One way to serve. ``door``: the worker whose own port is used, None for the public port; ``owners``: whose
    sessions are asked for."""

    name: str
    setup: str
    door: int | None = None
    owners: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Scenario:
    """Load of one kind; the first row is the base of all ratios."""

    name: str
    title: str
    load: tuple[str, ...]
    rows: tuple[Row, ...]
    each: int = 1
    """Replies in one counted request (events of a stream), for CPU per 1,000."""


def build(folder: str) -> str:
    """Compile the load generator; its path."""
    out = os.path.join(folder, "loadgen")
    source = Path(__file__).parent / "loadgen.c"
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", out, str(source), "-lm"], check=True)
    return out


def scenarios(workers: int) -> list[Scenario]:
    """The list of the README, for ``workers`` workers."""
    one = ("-c", "1", "-m", "sticky")
    last = workers - 1
    plain, again = Row("plain uvicorn", "plain"), Row("plain uvicorn again", "plain")
    local = Row("ours, local", "shipped", 0)
    frames, raw = Row("ours, ASGI frames", "frames", 0, (last,)), Row("ours, raw frames", "raw", 0, (last,))
    shipped = Row("ours, as shipped", "shipped", 0, (last,))
    nginx, haproxy = Row("nginx", "nginx"), Row("haproxy", "haproxy")
    every = tuple(range(workers))
    mixed = (
        plain, again, Row("no affinity", "spread", None, every), Row("ours, as shipped", "shipped", None, every),
        Row("ours, raw frames", "raw", None, every), Row("ours, ASGI frames", "frames", None, every),
        Row("nginx", "nginx", None, every), Row("haproxy", "haproxy", None, every),
    )  # fmt: skip
    foreign = (plain, again, local, frames, raw, shipped, nginx, haproxy)
    found = [
        Scenario("one", "one kept-alive connection", one, foreign),
        Scenario("varied", "one kept-alive connection, each request with a query of its own", (*one, "-Q"), foreign),
        Scenario("random", "32 connections, a random session per request", ("-c", "32", "-m", "rand"), mixed),
        Scenario("queries", "the same, each request with a query of its own", ("-c", "32", "-m", "rand", "-Q"), mixed),
        Scenario("sticky", "32 connections, one session each", ("-c", "32", "-m", "sticky"), mixed),
        Scenario("new", "a new connection per request", (*one, "-r", "1"), foreign),
        Scenario("rate", "3,000 requests a second, 32 connections", ("-c", "32", "-t", "10600"), foreign),
        Scenario("big", "500 KB replies", (*one, "-P", "/big"), foreign),
        Scenario("upload", "100 KB uploads", (*one, "-P", "/upload", "-B", "100000"), foreign),
        Scenario("events", "streams of 200 events", (*one, "-P", "/events", "-A", "text/event-stream"), foreign, 200),
        Scenario("websocket", "WebSocket messages there and back", (*one, "-P", "/echo", "-W"), foreign),
    ]
    return found


@dataclass
class Bench:
    """Set-ups that run, and what was measured: scenario → row → metric → values by round."""

    loadgen: str
    running: dict[str, Setup]
    slot: float
    results: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    wrong: int = 0
    errors: int = 0

    def measure(self, scenario: Scenario, row: Row, seed: int) -> dict[str, float]:
        """One slot."""
        setup = self.running[row.setup]
        port = setup.port if row.door is None else setup.doors[row.door]
        command = [self.loadgen, "-p", str(port), "-f", setup.file(list(row.owners)), "-S", str(seed)]
        command += ["-w", "0", *scenario.load]
        setup.go()
        try:
            subprocess.run([*command, "-d", "0.15"], check=True, capture_output=True)
            before = setup.cpu()
            done = subprocess.run([*command, "-d", str(self.slot)], check=True, capture_output=True, text=True)
            used = setup.cpu() - before
        finally:
            setup.hold()
        got: dict[str, Any] = json.loads(done.stdout)
        self.wrong += got["wrong"]
        self.errors += got["errors"]
        if got["wrong"] or got["errors"]:
            print(f"  {scenario.name}, {row.name}: {got}", file=sys.stderr)
        return {
            "p50": got["p50"],
            "p99": got["p99"],
            "rps": got["rps"] * scenario.each,
            "cpu": used * 1e6 / max(1, got["n"] * scenario.each),
        }

    def run(self, scenario: Scenario, rounds: int) -> None:
        """All rounds of a scenario."""
        rows = [row for row in scenario.rows if row.setup in self.running]
        table = self.results.setdefault(scenario.name, {row.name: {} for row in rows})
        for number in range(rounds):
            for row in random.sample(rows, len(rows)):
                values = self.measure(scenario, row, number + 1)
                for metric in METRICS:
                    table[row.name].setdefault(metric, []).append(values[metric])


_SPIN = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"


@contextlib.contextmanager
def kept_busy() -> Iterator[None]:
    """No CPU falls idle meanwhile: waking one up, in a virtual machine above all, would cost more than most requests.

    One loop per CPU, of the class that runs only where nothing else would.
    """
    spinning = []
    try:
        for cpu in os.sched_getaffinity(0):
            spinning.append(subprocess.Popen([sys.executable, "-c", _SPIN]))
            os.sched_setaffinity(spinning[-1].pid, {cpu})
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def machine() -> str:
    """The machine in one line."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    import uvicorn

    return (
        f"{os.cpu_count()} × {model}, Linux {platform.release()}, Python {platform.python_version()}, "
        f"uvicorn {uvicorn.__version__}, load average {os.getloadavg()[0]:.1f}"
    )


def main(arguments: list[str]) -> int:
    """Run; 1 if any reply was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare")
    parser.add_argument("--workers", type=int, default=2, help="workers of every set-up (2)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds per scenario (9)")
    parser.add_argument("--slot", type=float, default=0.5, help="seconds per slot (0.5)")
    parser.add_argument("--only", nargs="*", default=[], help="scenarios: one varied random queries sticky new …")
    parser.add_argument("--setups", nargs="*", default=[], help="plain spread shipped raw frames nginx haproxy")
    parser.add_argument("--app", default="app", choices=("app", "starlette"))
    parser.add_argument("--loop", default="auto", choices=("auto", "asyncio", "uvloop"))
    parser.add_argument("--rules", default="cookie", choices=("cookie", "auto"), help="a rule of one's own, or none")
    parser.add_argument("--busy", action="store_true", help="keep all CPUs from falling idle")
    parser.add_argument("--out", default="", help="directory for results.json, results.md and the plots")
    options = parser.parse_args(arguments)
    wanted = options.setups or ["plain", "spread", "shipped", "raw", "frames", "nginx", "haproxy"]
    with tempfile.TemporaryDirectory() as binary, setups.scratch() as folder, contextlib.ExitStack() as stack:
        bench = Bench(build(binary), {}, options.slot)
        common = (folder, options.workers, options.app, options.loop)
        for name in wanted:
            setup: Setup | None
            if name in ("plain", "spread"):
                setup = setups.plain(name, folder, 1 if name == "plain" else options.workers, *common[2:])
            elif name in ("nginx", "haproxy", "caddy"):
                setup = setups.proxy(name, *common)
            else:
                setup = setups.ours(name, *common, "handover" if name == "shipped" else name, options.rules)
            if setup is not None:
                stack.callback(setup.stop)
                setup.hold()
                bench.running[name] = setup
        if options.busy:
            stack.enter_context(kept_busy())
        chosen = [each for each in scenarios(options.workers) if not options.only or each.name in options.only]
        if options.app == "starlette":
            chosen = [each for each in chosen if each.name in ("one", "random", "sticky", "new", "rate")]
        if "one" not in options.only or len(chosen) > 1:
            print(machine(), file=sys.stderr)
        for scenario in chosen:
            bench.run(scenario, options.rounds)
            print(report.table(scenario.title, bench.results[scenario.name]), flush=True)
    print(f"{bench.errors} errors, {bench.wrong} wrong owners")
    if options.out:
        titles = {each.name: each.title for each in chosen}
        report.write(Path(options.out), bench.results, titles, machine(), " ".join(sys.argv[1:]))
    return 1 if bench.wrong or bench.errors else 0


def ratio(values: list[float], base: list[float]) -> tuple[float, float, float]:
    """Median and quartiles of the ratios per round."""
    ratios = sorted(value / under for value, under in zip(values, base, strict=True) if under)
    if len(ratios) < 2:
        return (ratios[0],) * 3 if ratios else (0.0,) * 3
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return middle, low, high
