"""Every setting of this package, declared once.

The command line, the ``SESSIONWORKERS_*`` variables, ``[tool.sessionworkers]`` in ``pyproject.toml`` (or the top level
of ``sessionworkers.toml``), the error texts and the table in the README are all made from the fields of
:class:`Settings`. Nothing else in this package reads the environment.

Order: command line, environment, TOML file, default. A list is replaced as a whole, never joined across sources.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from sessionworkers.errors import ConfigError
from sessionworkers.settings.checks import (
    check_cookie_name,
    check_grant_key,
    check_hook_allow,
    check_hook_base,
    check_path,
    check_prefix,
    check_preset,
    check_preset_or_all,
    check_request_cost,
    check_rule,
    check_table,
    conflicts,
)
from sessionworkers.settings.option import Option, splitter
from sessionworkers.settings.rules import rule_texts
from sessionworkers.settings.sources import EnvironSource, Source, TomlSource, problem_texts
from sessionworkers.settings.units import (
    DURATION_ALLOWED,
    LIMIT_ALLOWED,
    SIZE_ALLOWED,
    parse_duration,
    parse_limit,
    parse_size,
)

_lines = BeforeValidator(splitter("\n;"))
_names = BeforeValidator(splitter("\n;, "))
_secrets = BeforeValidator(splitter("\n"))
_seconds = BeforeValidator(parse_duration)

Seconds = Annotated[float, _seconds, Option("SECONDS", DURATION_ALLOWED)]
Limit = Annotated[float, BeforeValidator(parse_limit), Option("SECONDS", LIMIT_ALLOWED)]
Size = Annotated[int, BeforeValidator(parse_size), Option("SIZE", SIZE_ALLOWED)]

_sources: ContextVar[tuple[Source, ...]] = ContextVar("sessionworkers_settings_sources", default=())


class Settings(BaseSettings):
    """The settings in force. ``Settings()`` holds the defaults; :meth:`load` reads the sources.

    Frozen; times are seconds, sizes bytes.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=False, ser_json_inf_nan="constants")

    session_id: Annotated[
        list[Annotated[str, AfterValidator(check_rule)]],
        _lines,
        Option("RULE", "carriers such as header:NAME, cookie:NAME, path:/a/{id} or json:a.b, then KEY=VALUE words"),
    ] = Field(
        default=[],
        description="One session rule: where the session ID travels, separated by spaces, then its lifetime, "
        'such as "path:/v1/sessions/{id} json:session_id idle=3600". Repeat for more rules; the first that matches '
        "wins.",
    )
    rules: Annotated[
        list[Annotated[dict[str, Any], AfterValidator(check_table)]],
        BeforeValidator(splitter("\n")),
        Option("TABLES", "tables with name, session_id and the other keys of a rule", cli=False),
    ] = Field(
        default=[],
        description="Session rules as TOML tables (`[[tool.sessionworkers.rules]]`), with the words of a "
        "--session-id rule as keys, its carriers under `session_id`, and a `name`. They come after "
        "those of --session-id.",
    )
    preset: Annotated[
        list[Annotated[str, AfterValidator(check_preset)]], _names, Option("NAME", "the name of a preset")
    ] = Field(
        default=[],
        description="Use this preset although its framework was not recognised. Repeat for more.",
    )
    no_preset: Annotated[
        list[Annotated[str, AfterValidator(check_preset_or_all)]],
        _names,
        Option("NAME", 'the name of a preset, or "all"'),
    ] = Field(
        default=[],
        description='Never use this preset; "all" refuses those that would turn themselves on.',
    )
    auto: Annotated[bool, Option("", "true or false")] = Field(
        default=True,
        description="Learn session IDs that replies hand out, where no rule or preset finds one.",
    )
    no_routing: Annotated[
        list[Annotated[str, AfterValidator(check_path)]],
        _lines,
        Option("PATH", "a path that begins with /, `{id}` or `*` for any one segment"),
    ] = Field(
        default=[],
        description="Handle requests below this path where they arrive, whatever ID they carry. Repeat for more.",
    )
    session_secret: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        _secrets,
        Option("SECRET", "secrets that are not empty, one a line", cli=False, secret=True),
    ] = Field(
        default=[],
        repr=False,
        description="Secrets of the app's signed session cookies or tokens, the newest first, where they cannot be "
        "taken from the loaded app.",
    )
    affinity_cookie: Annotated[
        Annotated[str, AfterValidator(check_cookie_name)] | None, Option("NAME", "the name of a cookie")
    ] = Field(
        default=None,
        description="Set a cookie of this name on clients, and route by it where no other ID is found.",
    )
    retry_window: Seconds = Field(
        default=300.0,
        description="How long a claim outlives its session's end, so that retried and late requests reach its worker.",
    )
    session_idle: Annotated[Seconds, Field(gt=0)] = Field(
        default=86_400.0,
        description="Forget a session without explicit end after this long without a request; rules may say otherwise.",
    )
    return_window: Annotated[Seconds, Field(gt=0)] = Field(
        default=300.0,
        description="Forget an ID that a reply told and no request has used within this time.",
    )
    max_claims: Annotated[int, Field(ge=0), Option("N", "a whole number, 0 or more")] = Field(
        default=100_000,
        description="Most session IDs that one worker may own; further new sessions get 503. 0: no limit.",
    )
    max_body: Annotated[Size, Field(gt=0)] = Field(
        default=64 * 2**20,
        description="Most bytes of a request body that are read to find a session ID in it.",
    )
    runtime_dir: Annotated[str | None, Option("DIR", "a local directory that only this user may use")] = Field(
        default=None,
        description="Directory for the workers' sockets and claims. Default: a fresh one in $XDG_RUNTIME_DIR, "
        "/dev/shm or the temporary directory, removed at exit.",
    )
    handover: Annotated[bool, Option("", "true or false")] = Field(
        default=True,
        description="Hand a kept-alive connection over to the worker that owns its session, instead of forwarding each "
        "of its requests.",
    )
    hop_connect_timeout: Annotated[Seconds, Field(gt=0)] = Field(
        default=2.0,
        description="How long to try to reach the worker that owns a session before answering 503.",
    )

    placement: Annotated[
        Literal["least-sessions", "least-load", "accept"], Option("HOW", "least-sessions, least-load or accept")
    ] = Field(
        default="least-sessions",
        description="Where a session begins whose start a rule recognises: on the worker with the fewest sessions, "
        "with the least load, or where it arrives. A kept-alive connection moves there with it; one that cannot "
        "(TLS, --no-handover, HTTP other than uvicorn's httptools, a WebSocket) begins its sessions where it arrives.",
    )
    drain_timeout: Limit = Field(
        default=300.0,
        description="Longest time that a worker which is replaced or scaled away serves its sessions on. 0: none.",
    )
    drain_idle: Seconds = Field(
        default=120.0,
        description="A session that was not used for this long does not hold a draining worker back, unless it is "
        "open under a rule with start and end.",
    )
    shutdown_timeout: Annotated[Limit | None, Option("SECONDS", LIMIT_ALLOWED)] = Field(
        default=None,
        description="When the whole server is told to stop, serve its sessions on for up to this long; new ones get "
        "503. Default: only open requests are waited for, as uvicorn does.",
    )
    max_worker_lifetime: Seconds = Field(
        default=0.0,
        description="Replace a worker at this age, spread by a tenth; its sessions are served to their end. 0: never.",
    )
    max_workers: Annotated[int | None, Field(ge=1), Option("N", "a whole number, 1 or more")] = Field(
        default=None,
        description="Start more workers, up to this many, while all are full or at their load target; drain them "
        "again when they hold nothing. Default: always --workers.",
    )
    load_target: Annotated[float, Field(gt=0, le=1), Option("SHARE", "a number over 0, up to 1")] = Field(
        default=0.8,
        description="With --max-workers: the share of one CPU at which a worker counts as full.",
    )
    probes: Annotated[bool, Option("", "true or false")] = Field(
        default=True,
        description="Answer /-/ready and /-/live. Off: those paths are the app's.",
    )

    # Explicit sessions: everything below needs --session-api.
    session_api: Annotated[bool, Option("", "true or false")] = Field(
        default=False,
        description="Serve the routes of explicit worker sessions: create, end, get, health, load.",
    )
    session_prefix: Annotated[
        str, AfterValidator(check_prefix), Option("PATH", "a path that begins with / and holds no braces")
    ] = Field(
        default="/session",
        description="Where the session routes are.",
    )
    session_envelope: Annotated[
        list[Annotated[str, AfterValidator(check_path)]],
        _lines,
        Option("PATH", "a path that begins with /, `{id}` or `*` for any one segment"),
    ] = Field(
        default=[],
        description="Look for session_id in JSON bodies below this path only. Repeat for more. Default: everywhere.",
    )
    unwrap: Annotated[
        list[Annotated[str, AfterValidator(check_path)]],
        _lines,
        Option("PATH", "a path that begins with /, `{id}` or `*` for any one segment"),
    ] = Field(
        default=[],
        description="Give the app only the payload of an envelope, below this path. Repeat for more.",
    )
    max_sessions: Annotated[int, Field(ge=0), Option("N", "a whole number, 0 or more")] = Field(
        default=10,
        description="Most explicit sessions that one worker holds; with all workers full a create gets 429. "
        "0: no limit.",
    )
    session_lifetime: Annotated[Seconds, Field(gt=0)] = Field(
        default=60.0,
        description="Idle time that an explicit session is allowed, where its create does not say.",
    )
    session_max_lifetime: Annotated[Seconds, Field(gt=0)] = Field(
        default=604_800.0,
        description="Longest idle time that a create may ask for; more is refused with 422.",
    )
    session_extend: Annotated[Literal["idle", "add"], Option("HOW", "idle or add")] = Field(
        default="idle",
        description="How a request moves an explicit session's deadline: idle, to a lifetime after its end; add, by a "
        "whole lifetime more.",
    )
    session_max_age: Seconds = Field(
        default=0.0,
        description="End explicit sessions at this age, in use or not. 0: never.",
    )
    hook_base_url: Annotated[
        Annotated[str, AfterValidator(check_hook_base)] | None, Option("URL", "an http or https URL")
    ] = Field(
        default=None,
        description="Server that relative close hooks are posted to. Default: this app, on the session's worker.",
    )
    hook_allow: Annotated[
        list[Annotated[str, AfterValidator(check_hook_allow)]],
        _names,
        Option("HOST", "a host name, host:port, an address or a network such as 10.0.0.0/8"),
    ] = Field(
        default=[],
        description="Host or network that close hooks with an absolute URL may be posted to. Repeat for more. "
        "Default: none.",
    )
    hook_timeout: Annotated[Seconds, Field(gt=0)] = Field(
        default=10.0,
        description="Time limit of a close hook, its retries included.",
    )
    hook_concurrency: Annotated[int, Field(ge=1), Option("N", "a whole number, 1 or more")] = Field(
        default=64,
        description="Most close hooks that one worker posts at once.",
    )
    local_port: Annotated[int | None, Field(ge=0, le=65_535), Option("PORT", "a port, or 0 for none")] = Field(
        default=None,
        description="Port on 127.0.0.1 where processes of this machine end explicit sessions, in plain HTTP. "
        "Default: the public port + 1. 0: none.",
    )
    request_cost: Annotated[
        list[Annotated[str, AfterValidator(check_request_cost)]],
        _lines,
        Option("COST", "a number or module:function, for one route as /route=COST"),
    ] = Field(
        default=[],
        description="Workload of a request: a number, or a function of its payload. Repeat for routes of their own. "
        "Default: 100.",
    )
    max_queue_time: Annotated[Annotated[Seconds, Field(gt=0)] | None, Option("SECONDS", DURATION_ALLOWED)] = Field(
        default=None,
        description="Refuse requests with 429 while the work in flight on their worker would take longer than this. "
        "Default: never.",
    )
    grant_public_key: Annotated[
        Annotated[str, AfterValidator(check_grant_key)] | None, Option("FILE", "a file with an RSA public key (PEM)")
    ] = Field(
        default=None,
        description="Check the signature of the platform's grants (auth_data) with this key.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only :meth:`load` adds sources: a plain ``Settings(...)`` reads nothing."""
        return (init_settings, *_sources.get())

    @classmethod
    def load(
        cls,
        overrides: Mapping[str, Any] = {},
        *,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Settings:
        """Read all sources: ``overrides`` (the command line, by field name), ``environ``, the TOML file in ``cwd``.

        Raises ConfigError with every problem found: the value, what is allowed and where it came from. Unknown
        variables and TOML keys are problems too.
        """
        place = os.getcwd() if cwd is None else cwd
        sources = (EnvironSource(cls, os.environ if environ is None else environ), TomlSource(cls, place))
        problems = [problem for source in sources for problem in source.problems]
        token = _sources.set(sources)
        try:
            settings = cls(**overrides)
        except ValidationError as error:
            problems += problem_texts(cls, error, overrides, sources)
        else:
            problems += conflicts(settings.preset, settings.no_preset, [name for name, _ in settings.rule_texts()])
        finally:
            _sources.reset(token)
        if problems:
            raise ConfigError(problems)
        if settings.runtime_dir is not None:
            absolute = os.path.abspath(os.path.join(place, os.path.expanduser(settings.runtime_dir)))
            settings = settings.model_copy(update={"runtime_dir": absolute})
        return settings

    def rule_texts(self) -> list[tuple[str, str]]:
        """All rules of ``session_id`` and ``rules`` in force, in order, as (name, words): what parse_rule takes."""
        return rule_texts(self.session_id, self.rules)

    def to_json(self) -> str:
        """Everything as JSON, secrets included: for a worker's inherited descriptor, never for a log."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Settings of :meth:`to_json`, perhaps of an older or newer release: keys unknown here are left out."""
        return cls(**{name: value for name, value in json.loads(text).items() if name in cls.model_fields})
