"""``sessionworkers run``: uvicorn's command line, then one worker in this process, a manager with several, or reload.

Exit codes: 0 after INT, TERM or QUIT (130 after a second INT); with one worker TERM ends the process by that signal,
as it does with uvicorn. 2: the command line or the settings are wrong. 3: app, socket or workers did not start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import click
import uvicorn
from click.core import ParameterSource

from sessionworkers.cli.early import check_options, check_tls
from sessionworkers.cli.options import ServerCommand, all_params, config_kwargs, overrides_of
from sessionworkers.errors import ConfigError, StartupError
from sessionworkers.manager.plan import Fleet
from sessionworkers.manager.process import WorkerOptions, worker_command
from sessionworkers.manager.scaling import Scaling
from sessionworkers.manager.shell import Manager
from sessionworkers.manager.sockets import NO_PORT, Listening, bind, bind_loopback
from sessionworkers.members.runtime import RuntimeDir
from sessionworkers.settings import Settings

logger = logging.getLogger("uvicorn.error")

_PARENT_ONLY = ("env_file", "reload", "reload_dirs", "reload_includes", "reload_excludes", "reload_delay")
"""Done by this process, once; a worker inherits the environment."""


def run_command() -> click.Command:
    """The command, made from the uvicorn that is installed."""
    return ServerCommand(
        "run",
        params=all_params(),
        callback=click.pass_context(run),
        context_settings={"auto_envvar_prefix": "UVICORN"},
        help="Serve APP, such as main:app, as uvicorn does: same options, and sessions that reach their worker.",
    )


def run(ctx: click.Context, **_: Any) -> None:
    """Serve as the parsed options of ``ctx`` say; ends the process with the exit code."""
    _open_standard_streams()
    kwargs = config_kwargs(ctx)
    if kwargs.get("env_file"):
        from dotenv import load_dotenv

        load_dotenv(kwargs["env_file"])  # before the settings, which may stand in it
    settings = Settings.load(overrides_of(ctx))
    config = _parent_config(kwargs)
    worker_kwargs = {name: value for name, value in kwargs.items() if name not in _PARENT_ONLY}
    worker_kwargs["workers"] = 1 if config.should_reload else config.workers
    options = WorkerOptions(
        config=worker_kwargs,
        settings=settings.to_json(),
        app_dir=ctx.params.get("app_dir"),
        argv=sys.argv,
    )
    if config.should_reload:
        from sessionworkers.cli.reload import run_reloading

        given = ctx.get_parameter_source("timeout_graceful_shutdown") is not ParameterSource.DEFAULT
        with _listening(config) as listening, _local(config, settings, listening) as local:
            _running(listening)
            run_reloading(config, options, listening.sockets, local, graceful_given=given)
        return
    # As PID 1 of a container somebody must bury orphans and pass signals on: that is the manager's work.
    if config.workers > 1 or settings.max_workers is not None or os.getpid() == 1:
        chosen = ctx.get_parameter_source("workers")
        by = "" if chosen is ParameterSource.COMMANDLINE else " (UVICORN_WORKERS)"
        if kwargs["workers"] is None:
            by = " (WEB_CONCURRENCY)"  # the only other way to more than one
        sys.exit(_run_manager(config, settings, options, by))
    sys.exit(_run_here(config, settings, options))


def _open_standard_streams() -> None:
    """Started with one of them closed (``<&-``), the public socket would get its number, and a worker's input."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


def _parent_config(kwargs: dict[str, Any]) -> uvicorn.Config:
    """uvicorn's configuration for this process: sets logging up, reads WEB_CONCURRENCY and the env file, warns."""
    check_options(kwargs)
    try:
        config = uvicorn.Config(**kwargs)
    except (ValueError, KeyError, OSError, ImportError) as error:  # a log file
        if kwargs.get("workers") is None and "invalid literal for int()" in str(error):
            value = str(error).rpartition(": ")[2]
            raise click.UsageError(f"WEB_CONCURRENCY is {value}, no number of workers") from error
        raise click.UsageError(f"uvicorn does not take this configuration: {error}") from error
    if config.workers < 1:
        raise click.UsageError(f"WEB_CONCURRENCY asks for {config.workers} workers; 1 or more")
    check_tls(config)
    return config


def _run_here(config: uvicorn.Config, settings: Settings, options: WorkerOptions) -> int:
    """One worker: no manager, no runtime directory, no other process; uvicorn itself binds host and port."""
    from sessionworkers.cli.worker import serve

    if config.uds is None and config.fd is None:
        with _local(config, settings, None) as local:
            return serve(options, settings, None, local)
    with _listening(config) as listening, _local(config, settings, listening) as local:
        _running(listening)
        return serve(options, settings, listening.sockets, local)


def _run_manager(config: uvicorn.Config, settings: Settings, options: WorkerOptions, by: str) -> int:
    scaling = _scaling(config.workers, settings)
    with (
        _listening(config) as listening,
        _local(config, settings, listening) as local,
        _runtime_dir(settings) as runtime,
    ):
        logger.info("Started parent process [%d]", os.getpid())
        logger.info("%d workers%s, runtime directory %s", config.workers, by, runtime.path)
        fleet = Fleet(
            config.workers,
            graceful=config.timeout_graceful_shutdown,
            healthcheck=config.timeout_worker_healthcheck,
            drain=settings.drain_timeout,
            shutdown=settings.shutdown_timeout,
            scaling=scaling,
        )
        told = options.with_(
            runtime_dir=runtime.path,
            sockets=[sock.fileno() for sock in listening.sockets],
            local=local.fileno() if local is not None else None,
        )
        code = Manager(fleet, worker_command(), told, on_serving=lambda: _running(listening), runtime=runtime).run()
        logger.info("Stopping parent process [%d]", os.getpid())
    return code


def _scaling(workers: int, settings: Settings) -> Scaling | None:
    if settings.max_workers is None:
        return None
    if settings.max_workers < workers:
        raise ConfigError([f"--max-workers is {settings.max_workers}, fewer than the {workers} workers of --workers"])
    return Scaling(workers, settings.max_workers, settings.load_target)


def _running(listening: Listening) -> None:
    # uvicorn's words: scripts wait for them.
    text = "Uvicorn running on %s (Press CTRL+C to quit)"
    color = "Uvicorn running on " + click.style("%s", bold=True) + " (Press CTRL+C to quit)"
    logger.info(text, listening.address, extra={"color_message": color})


@contextlib.contextmanager
def _listening(config: uvicorn.Config) -> Iterator[Listening]:
    try:
        listening = bind(host=config.host, port=config.port, uds=config.uds, fd=config.fd, tls=config.is_ssl)
    except StartupError as error:
        logger.error("%s", error)
        sys.exit(error.exit_code)
    try:
        yield listening
    finally:
        listening.close()


@contextlib.contextmanager
def _local(config: uvicorn.Config, settings: Settings, listening: Listening | None) -> Iterator[socket.socket | None]:
    """The loopback port where sessions are ended, bound once for all workers; None where it is not wanted."""
    port = settings.local_port if settings.session_api else 0
    if port == 0:
        yield None
        return
    if port is None:
        if config.uds is not None or config.fd is not None:
            raise ConfigError([NO_PORT])
        public = listening.sockets[0].getsockname()[1] if listening is not None else config.port
        port = public + 1 if public else 0  # uvicorn itself is to choose a port: so here, any that is free
    elif port == config.port and config.uds is None and config.fd is None:
        raise ConfigError([f"--local-port is {port}, which is the public port (--port)"])
    try:
        sock = bind_loopback(port)
    except StartupError as error:
        logger.error("%s", error)
        sys.exit(error.exit_code)
    logger.info("Sessions can be ended on http://127.0.0.1:%d", sock.getsockname()[1])
    with sock:
        yield sock


@contextlib.contextmanager
def _runtime_dir(settings: Settings) -> Iterator[RuntimeDir]:
    named = settings.runtime_dir
    runtime = RuntimeDir.create() if named is None else RuntimeDir.at(named)
    try:
        yield runtime
    finally:
        runtime.remove()
