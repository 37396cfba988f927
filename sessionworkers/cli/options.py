"""Options of ``run``: uvicorn's own, taken from its click command at run time, and one for each setting of ours.

So a new option of the next uvicorn release is there without a change here. uvicorn's keep their ``UVICORN_*``
variables; ours are read by ``settings`` alone, which also reports what is wrong with them.
"""

from __future__ import annotations

import copy
import inspect
import sys
from typing import Any

import click
import uvicorn
import uvicorn.main
from click.core import ParameterSource

from sessionworkers.errors import StartupError
from sessionworkers.manager.cores import usable_cores
from sessionworkers.settings import ENV_PREFIX, Settings, flag_of, option_of
from sessionworkers.settings.table import default_text

OTHER_DEFAULTS: dict[str, Any] = {
    # Beyond the idle time of common clients and proxies (15 to 60 s): a pooled connection must not die as it is used,
    # and a session's next request stays on the connection that leads to its worker.
    "timeout_keep_alive": 75,
    # gunicorn's. uvicorn's is none, and one endless event stream then holds its shutdown up for ever.
    "timeout_graceful_shutdown": 30,
}
"""Where the default here is not uvicorn's."""


class SettingOption(click.Option):
    """One of our settings. Never reads the environment: Settings.load does, and knows what came from where."""

    def resolve_envvar_value(self, ctx: click.Context) -> None:
        return None


class ServerCommand(click.Command):
    """Help in two parts: our options, then uvicorn's."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        ours: list[tuple[str, str]] = []
        theirs: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                (ours if isinstance(param, SettingOption) else theirs).append(record)
        with formatter.section("Session options"):
            formatter.write_dl(ours)
        with formatter.section(f"Server options (uvicorn {uvicorn.__version__})"):
            formatter.write_dl(theirs)


def setting_options() -> list[click.Parameter]:
    """One option for each setting that has one."""
    options: list[click.Parameter] = []
    for name, field in Settings.model_fields.items():
        option = option_of(field)
        if not option.cli:
            continue
        default = default_text(option.metavar, field.default)
        text = (field.description or "") + ("" if default == "–" else f"  [default: {default}]")
        common: dict[str, Any] = {"help": text, "envvar": ENV_PREFIX + name.upper(), "show_envvar": True}
        if isinstance(field.default, bool):
            declared = f"{flag_of(name)}/{flag_of('no_' + name)}"
            options.append(SettingOption([declared], default=field.default, **common))
        else:
            # Texts, whatever the setting's type: settings find every problem at once, click stops at the first.
            multiple = isinstance(field.default, list)
            options.append(
                SettingOption([flag_of(name)], type=str, metavar=option.metavar, multiple=multiple, **common)
            )
    return options


def overrides_of(ctx: click.Context) -> dict[str, Any]:
    """The settings that stand on the command line, by name."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in ctx.params.items()
        if name in Settings.model_fields and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


class WorkersType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of workers, or ``auto``: as many as this process may use cores."""

    name = "integer or auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and value.strip().lower() == "auto":
            return usable_cores()
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number of workers nor auto", param, ctx)


def uvicorn_params() -> list[click.Parameter]:
    """uvicorn's arguments and options, copied, with OTHER_DEFAULTS."""
    params = []
    for original in sys.modules["uvicorn.main"].main.params:
        param = copy.copy(original)
        if param.name in OTHER_DEFAULTS:
            param.default = OTHER_DEFAULTS[param.name]
            param.show_default = True
        if param.name == "workers":
            param.type = WorkersType()
        params.append(param)
    return params


def all_params() -> list[click.Parameter]:
    """uvicorn's and ours. Raises StartupError if this uvicorn has an option of the same name as one of ours."""
    theirs, ours = uvicorn_params(), setting_options()
    taken = {name for param in theirs for name in (param.name, *param.opts, *param.secondary_opts)}
    for param in ours:
        both = taken.intersection((param.name, *param.opts, *param.secondary_opts))
        if both:
            raise StartupError(f"uvicorn {uvicorn.__version__} has an option {min(map(str, both))} of its own")
    return [*theirs, *ours]


def config_kwargs(ctx: click.Context) -> dict[str, Any]:
    """uvicorn's values as keywords of uvicorn.Config, ``app`` included, the way ``uvicorn.main`` passes them on."""
    known = inspect.signature(uvicorn.Config.__init__).parameters
    kwargs: dict[str, Any] = {}
    for name, value in ctx.params.items():
        if name in Settings.model_fields or name == "app_dir":
            continue
        if name not in known:
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
                raise click.UsageError(f"{flag_of(name)} is an option of uvicorn's own start, not known here")
            continue
        kwargs[name] = list(value) if isinstance(value, tuple) else value
    for name in ("reload_dirs", "reload_includes", "reload_excludes"):
        kwargs[name] = kwargs.get(name) or None
    if kwargs.get("log_config") is None:
        kwargs.pop("log_config", None)  # uvicorn's own, of the release that runs
    headers = [header.partition(":") for header in kwargs.get("headers", [])]
    for header, colon, _ in headers:
        if not colon:
            raise click.BadParameter(f"{header!r} is not a Name:Value pair", ctx=ctx, param_hint="'--header'")
    kwargs["headers"] = [[header, value] for header, _, value in headers]
    return kwargs
