"""The command ``sessionworkers demo``."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType

import click

from sessionworkers.demo import client, servers

HEADINGS = ("server", "right", "wrong", "what wrong looked like")


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the demo as Ctrl-C does: with its servers."""
    raise KeyboardInterrupt


def table(outcomes: dict[str, client.Outcome]) -> str:
    """The results, one line per server, under headings."""
    rows = [HEADINGS]
    for label, outcome in outcomes.items():
        seen = ", ".join(f"{text} ({count})" for text, count in outcome.wrong.most_common(3))
        rows.append((label, str(outcome.right), str(sum(outcome.wrong.values())), seen or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip() for row in rows
    )


@click.command()
@click.option("--workers", type=click.IntRange(1, 64), default=4, show_default=True, help="Workers of each server.")
@click.option(
    "--sessions", type=click.IntRange(1, 10_000), default=200, show_default=True, help="Sessions, all at once."
)
def demo(workers: int, sessions: int) -> None:
    """Run one in-memory app under plain uvicorn and under sessionworkers, and count the sessions that went right.

    Each session makes a counter, counts to five and ends it, every request on a new connection. Loopback only.
    Exits 0 if every session under sessionworkers was right and every process is gone.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    outcomes: dict[str, client.Outcome] = {}
    left: list[int] = []
    try:
        for label, command in servers.commands(workers).items():
            with servers.serve(command, workers) as running:
                with click.progressbar(length=sessions, label=f"{label:<34}", width=30) as bar:
                    outcomes[label] = asyncio.run(client.run(running.port, sessions, bar.update))
            left += running.left
    except servers.DemoError as error:
        raise click.ClickException(str(error)) from error
    finally:
        signal.signal(signal.SIGTERM, before)
    click.echo(f"\n{table(outcomes)}")
    if left:
        click.echo(f"\n{len(left)} processes did not end by themselves and were killed.", err=True)
    if left or list(outcomes.values())[-1].right != sessions:
        raise SystemExit(1)
