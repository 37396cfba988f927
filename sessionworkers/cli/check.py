"""``sessionworkers check``: the rules in force for an app, and what happens to a request, without serving."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Any

import click
import uvicorn

from sessionworkers.affinity.presets import PRESETS
from sessionworkers.affinity.ruleset import RuleSet
from sessionworkers.cli.explain import request_lines, rule_lines
from sessionworkers.cli.failure import show
from sessionworkers.cli.options import overrides_of, setting_options
from sessionworkers.cli.pasted import parse_request
from sessionworkers.errors import SessionworkersError
from sessionworkers.hosts.uvicorn import refuse_what_cannot_be_called
from sessionworkers.manager.plan import STARTUP_FAILURE
from sessionworkers.settings import Settings
from sessionworkers.worker.rules import build_rules, presets_on

MAX_REQUEST = 128 * 2**20


def check_command() -> click.Command:
    """The command."""
    params: list[click.Parameter] = [
        click.Argument(["app"]),
        click.Option(
            ["--request"],
            type=click.File("rb"),
            help="A file with a raw HTTP request, - for standard input: say what happens to it, and why.",
        ),
        click.Option(["--factory"], is_flag=True, help="APP is a function that makes the app."),
        click.Option(["--app-dir"], default="", help="Look for APP in this directory. Default: the current one."),
        click.Option(["--env-file"], type=click.Path(exists=True), help="Environment configuration file."),
        click.Option(["--root-path"], default="", help="The root path that the app is served with."),
        *setting_options(),
    ]
    return click.Command(
        "check",
        params=params,
        callback=click.pass_context(check),
        help="Load APP, show the session rules in force and, with --request, what happens to that request.",
    )


def check(
    ctx: click.Context,
    app: str,
    request: IO[bytes] | None,
    factory: bool,
    app_dir: str,
    env_file: str | None,
    root_path: str,
    **_: Any,
) -> None:
    """Print it; ends the process with 3 if the app cannot be loaded."""
    if env_file is not None:
        from dotenv import load_dotenv

        load_dotenv(env_file)
    settings = Settings.load(overrides_of(ctx))
    sys.path.insert(0, app_dir)
    rules = build_rules(settings, _load(app, factory), None)
    for line in _rules_text(rules, settings):
        click.echo(line)
    if request is not None:
        try:
            view = parse_request(request.read(MAX_REQUEST), root_path)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx=ctx, param_hint="'--request'") from error
        click.echo()
        for line in request_lines(rules, view, settings.max_body):
            click.echo(line)


def _load(app: str, factory: bool) -> Any:
    config = uvicorn.Config(app, factory=factory, lifespan="off", proxy_headers=False, log_level="warning")
    try:
        config.load()
        refuse_what_cannot_be_called(config)
    except SessionworkersError:
        raise
    except Exception as error:
        show(error)
        sys.exit(STARTUP_FAILURE)
    return config.loaded_app


def _rules_text(rules: RuleSet, settings: Settings) -> Iterator[str]:
    own = {name for name, _ in settings.rule_texts()}
    on = presets_on(settings)
    if rules.rules:
        yield "Session rules, the first that finds an ID decides:"
    else:
        yield "No session rules."
    for number, rule in enumerate(rules.rules, 1):
        if rule.name in own:
            origin = "from the settings"
        else:
            preset = next((name for name in on if rule.name.startswith(name)), None)
            origin = "of the router" if preset is None else f"preset {preset}, {_why(preset, settings)}"
        yield from rule_lines(number, rule, origin)
    for name in (name for name in on if not any(rule.name.startswith(name) for rule in rules.rules)):
        yield f"preset {name} ({_why(name, settings)}) has no rules for this app"
    yield f"auto: {'on, learns IDs where no rule finds one' if rules.auto is not None else 'off'}"
    for path in settings.no_routing:
        yield f"not routed: {path} and all below"


def _why(preset: str, settings: Settings) -> str:
    if preset in settings.preset:
        return "asked for"
    module = next((name for name in PRESETS[preset].modules if name in sys.modules), "")
    return f"because {module} was imported"
