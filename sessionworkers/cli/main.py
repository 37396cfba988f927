"""The ``sessionworkers`` command. Commands are imported when they are called: ``--help`` costs no server."""

from __future__ import annotations

import importlib
import sys

import click

from sessionworkers import __version__
from sessionworkers.errors import ConfigError, SessionworkersError

COMMANDS = {
    "run": (
        "sessionworkers.cli.run",
        "run_command",
        "Serve an ASGI app, as uvicorn does, with sessions kept together.",
    ),
    "check": (
        "sessionworkers.cli.check",
        "check_command",
        "Show the session rules in force, and what a request meets.",
    ),
    "status": ("sessionworkers.cli.control", "status_command", "Show a running server and its workers."),
    "sessions": ("sessionworkers.cli.sessions", "sessions_command", "List, show, end or drain its sessions."),
    "explain": ("sessionworkers.cli.sessions", "explain_command", "Say where a request would go now, and why."),
    "reload": ("sessionworkers.cli.control", "reload_command", "Restart its workers, new ones first."),
    "scale": ("sessionworkers.cli.control", "scale_command", "Set its number of workers."),
    "drain": ("sessionworkers.cli.control", "drain_command", "Drain one worker, or the whole server."),
    "stop": ("sessionworkers.cli.control", "stop_command", "Stop it."),
    "demo": ("sessionworkers.demo.cli", "demo", "Show sessions break under plain workers, and hold under these."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when one of them is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        found = getattr(importlib.import_module(module), name)
        command: click.Command = found if isinstance(found, click.Command) else found()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and ":" in args[0] and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. To serve that app: {ctx.command_path} run {' '.join(args)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """In-memory sessions of an unmodified ASGI app on any number of workers."""


def main() -> None:
    """Run the command line; the exit codes are 2 for what was asked wrongly, 3 for what could not start."""
    try:
        cli(prog_name="sessionworkers")
    except ConfigError as error:
        count = len(error.problems)
        click.echo(f"sessionworkers: {count} problem{'s' if count > 1 else ''} with the settings:", err=True)
        for problem in error.problems:
            click.echo(f"  {problem}", err=True)
        sys.exit(error.exit_code)
    except SessionworkersError as error:
        click.echo(f"sessionworkers: {error}", err=True)
        sys.exit(error.exit_code)
