"""Presets: what frameworks do on the wire, as data. Each turns itself on when the app has imported its framework.

The order of `PRESETS` is the order of their rules: narrow before wide, headers and tokens before cookies (the official
MCP client also sends a cookie, which names another session). What a number or a path comes from stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from sessionworkers.affinity.carriers import (
    EngineIO,
    Header,
    Json,
    Only,
    Path,
    Query,
    Shaped,
    StarletteCookie,
    Token,
)
from sessionworkers.affinity.handles import Arguments, FromResult, ParamHeaders
from sessionworkers.affinity.learners import (
    FromEngineIO,
    FromEventUrl,
    FromHeader,
    FromHtml,
    FromJson,
    FromStarletteCookie,
    OnlyTo,
)
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.rules import Gone, Mint, RequestPattern, Rule
from sessionworkers.affinity.signed import COOKIE_MAX_AGE

SMALL_BODY = 64 * 1024
MCP_IDLE = 30 * 60.0
"""Seconds; the MCP SDK ends idle sessions after 30 minutes."""
GRADIO_IDLE = 3600.0
"""Seconds; Gradio frees a session's state one hour after its heartbeat dropped."""
ENGINEIO_IDLE = 300.0
"""Seconds; an Engine.IO session always has a poll or a WebSocket open, and dies some 45 s after the last one."""
NICEGUI_IDLE = 300.0


@dataclass(frozen=True)
class PresetContext:
    """What was read from the loaded app and from the settings.

    ``cookies``: cookie name, secret and max age in seconds (None: browser session) of each ``SessionMiddleware``.
    ``secrets``: more secrets that may have signed a cookie. Times in seconds.
    """

    cookies: tuple[tuple[str, str, int | None], ...] = ()
    secrets: tuple[str, ...] = ()
    retry_window: float = 300.0
    return_window: float = 300.0
    idle: float = 86_400.0


@dataclass(frozen=True)
class Preset:
    """``modules``: any of them in ``sys.modules`` turns it on."""

    name: str
    modules: tuple[str, ...]
    rules: Callable[[PresetContext], tuple[Rule, ...]]


def _to(*words: str) -> tuple[RequestPattern, ...]:
    """``POST:/path``: a method and a path that must match whole."""
    patterns = []
    for word in words:
        method, _, path = word.partition(":")
        patterns.append(RequestPattern(PathTemplate(path, exact=True), frozenset({method})))
    return tuple(patterns)


def _paths(*texts: str) -> tuple[PathTemplate, ...]:
    return tuple(PathTemplate(text) for text in texts)


def _mcp(context: PresetContext) -> tuple[Rule, ...]:
    gone = Gone(
        404,
        body=b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}',
        jsonrpc=True,
    )
    return (
        Rule(
            "mcp",
            (Header("mcp-session-id"),),
            (FromHeader("mcp-session-id"),),
            ends=_to("DELETE:/**"),
            gone=gone,
            retry_window=context.retry_window,
            return_window=context.return_window,
            idle=MCP_IDLE,
            owns_replies=True,
        ),
        # The path to post to is the app's choice (/messages/ by default), so the value counts wherever it is claimed.
        Rule(
            "mcp-sse",
            (Query("session_id"), Query("sessionId")),
            (FromEventUrl(Query("session_id")), FromEventUrl(Query("sessionId"))),
            gone=Gone(404, "text/plain", b"Could not find session"),
            return_window=context.return_window,
            idle=MCP_IDLE,
            tentative=True,
            owns_replies=True,
        ),
        Rule(
            "mcp-handles",
            (Arguments(), ParamHeaders()),
            (FromResult(),),
            return_window=context.return_window,
            idle=min(context.idle, 86_400.0),
            tentative=True,
            inferred=True,
            owns_replies=True,
        ),
    )


def _gradio(context: PresetContext) -> tuple[Rule, ...]:
    # Its API may stand below /gradio_api or not, and the whole app below any mount.
    bodies = _paths(
        "/**/queue/join", "/**/run/*", "/**/api/*", "/**/call/*", "/**/call/v2/*", "/**/cancel", "/**/reset",
        "/**/component_server", "/**/process_recording", "/**/stream/*",
    )  # fmt: skip
    joins = _paths("/**/queue/join", "/**/call/*", "/**/call/v2/*")
    return (
        Rule(
            "gradio",
            (
                Only(Json("session_hash"), bodies),
                Query("session_hash"),
                Path(PathTemplate("/**/heartbeat/{id}", exact=True)),
                Path(PathTemplate("/**/stream/{id}/*/*/*", exact=True)),
            ),
            mint=Mint.CLIENT,
            idle=GRADIO_IDLE,
            owns_replies=True,
        ),
        Rule(
            "gradio-event",
            (
                Path(PathTemplate("/**/call/v2/*/{id}", exact=True)),
                Shaped(Path(PathTemplate("/**/call/*/{id}", exact=True)), "[0-9a-f]{32}"),
                Shaped(Path("/**/stream/{id}"), "[0-9a-f]{32}"),
                Only(Json("event_id"), _paths("/**/reset", "/**/cancel")),
            ),
            (OnlyTo(FromJson("event_id"), joins),),
            return_window=context.return_window,
            idle=GRADIO_IDLE,
            owns_replies=True,
        ),
        Rule(
            "gradio-upload",
            (Only(Query("upload_id"), _paths("/**/upload", "/**/upload_progress")),),
            mint=Mint.CLIENT,
            idle=GRADIO_IDLE,
            owns_replies=True,
        ),
    )


def _nicegui(context: PresetContext) -> tuple[Rule, ...]:
    return (
        Rule(
            "nicegui",
            (
                Only(Query("client_id"), _paths("/**/_nicegui_ws/**")),
                Path(PathTemplate("/**/_nicegui/client/{id}", exact=False)),
            ),
            (FromHtml(r"['\"]client_id['\"]\s*:\s*['\"]([0-9a-f\-]{36})['\"]", (b"x-nicegui-content", "page")),),
            return_window=context.return_window,
            idle=NICEGUI_IDLE,
            learn_any_status=True,
            owns_replies=True,
        ),
    )


def _socketio(context: PresetContext) -> tuple[Rule, ...]:
    gone = Gone(400, "application/json", b'{"code":1,"message":"Session ID unknown"}')
    return (
        Rule(
            "socketio",
            (EngineIO(),),
            (FromEngineIO(),),
            gone=gone,
            return_window=context.return_window,
            idle=ENGINEIO_IDLE,
            owns_replies=True,
        ),
        # An app's own API may name the socket that its answer goes to (open-webui does).
        Rule(
            "socketio-named",
            (Json("session_id", most=SMALL_BODY), Json("sid", most=SMALL_BODY), Query("sid")),
            space="socketio",
            idle=ENGINEIO_IDLE,
            tentative=True,
            inferred=True,
        ),
    )


def _nemo_gym(context: PresetContext) -> tuple[Rule, ...]:
    # One string is cookie name and secret: "<server class>___<name in the configuration>".
    names = [(name, age) for name, secret, age in context.cookies if name == secret and "___" in name]
    secrets = tuple(name for name, _ in names) + (context.secrets if names else ())
    token = Token("x-nemo-gym-session-token", "sid", secrets, "nemo-gym-mcp-session-token")
    field = "agent_session_id|session_id"
    cookies = tuple(StarletteCookie(name, field, (name, *context.secrets), age) for name, age in names)
    return (
        Rule(
            "nemo-gym",
            (
                Only(token, _paths("/**/mcp/**")),
                Only(Json("resources_session_id"), _paths("/**/seed_session", "/**/close_session")),
                Only(Json("agent_session_id"), _paths("/**/v1/agent_sessions", "/**/v1/agent_sessions/close")),
                *cookies,
                token,
            ),
            tuple(FromStarletteCookie(name, field) for name, _ in names),
            starts=_to("POST:/**/seed_session", "POST:/**/reset", "POST:/**/v1/agent_sessions"),
            ends=_to("POST:/**/close_session", "POST:/**/verify", "POST:/**/v1/agent_sessions/close", "POST:/**/close"),
            ends_unless_header=b"x-ng-checkpoint-close-follows",
            refuse_late_start=True,
            retry_window=context.retry_window,
            return_window=context.return_window,
            idle=context.retry_window,
            owns_replies=True,
        ),
    )


def _starlette(context: PresetContext) -> tuple[Rule, ...]:
    cookies: tuple[tuple[str, str, int | None], ...] = tuple(
        each for each in context.cookies if not (each[0] == each[1] and "___" in each[0])
    )
    if not context.cookies:
        cookies = (("session", "", COOKIE_MAX_AGE),)
    rules = []
    for name, secret, age in cookies:
        secrets = tuple(each for each in (secret, *context.secrets) if each)
        rules.append(
            Rule(
                f"starlette:{name}",
                (StarletteCookie(name, "*", secrets, age),),
                (FromStarletteCookie(name),),
                retry_window=context.retry_window,
                return_window=context.return_window,
                idle=context.idle if age is None else min(context.idle, float(age)),
                strict=False,  # a login may well hand out a session that was made before, elsewhere
            )
        )
    return tuple(rules)


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "mcp",
            ("mcp.server.streamable_http_manager", "mcp.server.streamable_http", "mcp.server.sse", "fastmcp.server"),
            _mcp,
        ),
        Preset("gradio", ("gradio",), _gradio),
        Preset("nicegui", ("nicegui",), _nicegui),
        Preset("socketio", ("socketio", "engineio"), _socketio),
        Preset("nemo-gym", ("nemo_gym",), _nemo_gym),
        Preset("starlette", ("starlette.middleware.sessions",), _starlette),
    )
}


def recognised(loaded: Container[str]) -> list[str]:
    """The presets whose framework is in ``loaded`` (``sys.modules``), in order."""
    return [preset.name for preset in PRESETS.values() if any(module in loaded for module in preset.modules)]
