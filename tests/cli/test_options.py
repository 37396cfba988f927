"""The options of ``run``: uvicorn's own, as uvicorn reads them, and ours."""

from __future__ import annotations

import sys
from typing import Any

import click
import pytest
import uvicorn
from click.testing import CliRunner

from sessionworkers.cli import options
from sessionworkers.cli.main import cli
from sessionworkers.errors import StartupError
from sessionworkers.settings import Settings

UVICORN: Any = sys.modules["uvicorn.main"]


def ours(args: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a run with ``args`` would give to uvicorn.Config."""
    taken: dict[str, Any] = {}

    def callback(ctx: click.Context, **_: Any) -> None:
        taken.update(options.config_kwargs(ctx), overrides=options.overrides_of(ctx))

    command = options.ServerCommand(
        "run",
        params=options.all_params(),
        callback=click.pass_context(callback),
        context_settings={"auto_envvar_prefix": "UVICORN"},
    )
    command.main(args, standalone_mode=False)
    return taken


def theirs(args: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What uvicorn's own command gives to uvicorn.run with ``args``."""
    taken: dict[str, Any] = {}
    monkeypatch.setattr(UVICORN, "run", lambda app, **kwargs: taken.update(kwargs, app=app))
    UVICORN.main.main(args, standalone_mode=False)
    return taken


@pytest.mark.parametrize(
    "args",
    [
        ["a:b"],
        ["a:b", "--host", "::", "--port", "0", "--workers", "3", "--loop", "asyncio", "--no-access-log"],
        ["a:b", "--header", "X-A:b:c", "--header", "server:", "--ws-ping-interval", "3.5", "--use-colors"],
        ["a:b", "--reload", "--reload-dir", ".", "--reload-include", "*.x", "--reload-exclude", "*.y", "--factory"],
        ["a:b", "--ssl-certfile", "c", "--ssl-keyfile-password", "p", "--timeout-graceful-shutdown", "7"],
        ["a:b", "--uds", "/tmp/x", "--timeout-keep-alive", "5", "--limit-max-requests", "10"],
    ],
)
def test_uvicorns_options_mean_what_they_mean_to_uvicorn(args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    mine, plain = ours(args, monkeypatch), theirs(args, monkeypatch)
    assert mine.pop("overrides") == {}
    assert plain.pop("app_dir") == ""
    if plain["log_config"] is uvicorn.config.LOGGING_CONFIG:
        del plain["log_config"]
    plain["headers"] = [list(header) for header in plain["headers"]]
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
    for name, value in options.OTHER_DEFAULTS.items():
        if f"--{name.replace('_', '-')}" not in args:
            assert mine.pop(name) == value
            del plain[name]
    assert mine == plain


def test_every_option_of_this_uvicorn_is_there() -> None:
    assert {param.name for param in UVICORN.main.params} <= {param.name for param in options.all_params()}
    assert options.OTHER_DEFAULTS.keys() <= {param.name for param in UVICORN.main.params}


def test_uvicorns_own_command_stays_as_it_is() -> None:
    before = {param.name: param.default for param in UVICORN.main.params}
    options.uvicorn_params()
    assert {param.name: param.default for param in UVICORN.main.params} == before
    assert before["timeout_keep_alive"] == 5


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UVICORN_PORT", "1234")
    monkeypatch.setenv("UVICORN_SESSION_IDLE", "1")  # ours is no option of uvicorn's
    monkeypatch.setenv("SESSIONWORKERS_SESSION_IDLE", "1")  # read by the settings, not here
    taken = ours(["a:b"], monkeypatch)
    assert taken["port"] == 1234
    assert taken["overrides"] == {}


def test_our_options(monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["a:b", "--session-id", "header:x idle=3", "--session-id", "query:y", "--no-auto", "--max-body", "1MiB"]
    assert ours(args, monkeypatch)["overrides"] == {
        "session_id": ["header:x idle=3", "query:y"],
        "auto": False,
        "max_body": "1MiB",
    }


@pytest.mark.parametrize("declared", [["--auto"], ["--other", "preset"], ["--auto/--no-auto"]])
def test_an_option_that_uvicorn_also_has_is_refused(declared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    param = click.Option(declared)
    monkeypatch.setattr(UVICORN.main, "params", [*UVICORN.main.params, param])
    with pytest.raises(StartupError, match="has an option"):
        options.all_params()


def test_an_option_of_the_next_uvicorn_reaches_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    class Next(uvicorn.Config):
        def __init__(self, app: Any, http4: bool = False, **kwargs: Any) -> None: ...

    new = [click.Option(["--http4"], is_flag=True), click.Option(["--daemon"], is_flag=True)]
    monkeypatch.setattr(UVICORN.main, "params", [*UVICORN.main.params, *new])
    monkeypatch.setattr(uvicorn, "Config", Next)
    assert ours(["a:b", "--http4"], monkeypatch)["http4"] is True
    with pytest.raises(click.UsageError, match="--daemon is an option of uvicorn's own start"):
        ours(["a:b", "--daemon"], monkeypatch)


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["run", "a:b", "--wokers", "3"], "--workers"),
        (["run", "a:b", "--session-ids", "x"], "--session-id"),
        (["run"], "Missing argument 'APP'"),
        (["run", "a:b", "--port", "x"], "'x' is not a valid integer"),
        (["run", "a:b", "--header", "nonsense"], "is not a Name:Value pair"),
        (["run", "a:b", "--workers", "-1"], "must be 1 or more"),
        (["run", "a:b", "--workers", "0"], "must be 1 or more"),
        (["run", "a:b", "--workers", "four"], "'four' is neither a number of workers nor auto"),
        (["run", "a:b", "--port", "80000"], "80000 is no port"),
        (["run", "a:b", "--http", "h5"], "'h5' is none of auto, h11, httptools"),
        (["run", "a:b", "--ssl-keyfile", "none.pem"], "--ssl-keyfile needs --ssl-certfile"),
        (["run", "a:b", "--ssl-certfile", "none.pem"], "'none.pem' cannot be read: No such file"),
        (["run", "a:b", "--ssl-certfile", __file__], "cannot be used: [SSL]"),
        (["a:b", "--workers", "3"], "sessionworkers run a:b --workers 3"),
        (["runn"], "No such command 'runn'"),
        (["check", "a:b", "--reqest", "-"], "--request"),
    ],
)
def test_what_is_asked_wrongly_exits_2_with_a_hint(args: list[str], part: str) -> None:
    result = CliRunner().invoke(cli, args, prog_name="sessionworkers")
    assert result.exit_code == 2
    assert part in result.stderr and "Traceback" not in result.stderr


def test_help_has_two_parts_and_no_secret_option() -> None:
    result = CliRunner().invoke(cli, ["run", "--help"])
    assert result.exit_code == 0
    sessions, _, server = result.stdout.partition(f"Server options (uvicorn {uvicorn.__version__})")
    assert "--session-id RULE" in sessions and "--host" not in sessions
    assert "--workers" in server and "[default: 75]" in server and "--help" in server
    assert "secret" not in result.stdout
    for name in Settings.model_fields:
        assert f"SESSIONWORKERS_{name.upper()}" in result.stdout or name in ("rules", "session_secret")


def test_the_commands_are_imported_when_they_are_called() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert all(f"\n  {name} " in result.stdout for name in ("run", "check", "demo"))


def test_version() -> None:
    import sessionworkers

    assert CliRunner().invoke(cli, ["--version"], prog_name="sessionworkers").stdout == (
        f"sessionworkers {sessionworkers.__version__}\n"
    )
