"""Which names are session-like: one closed list, since ``*_id`` also learned the IDs of components, users and files."""

from __future__ import annotations

import re
from functools import lru_cache

_THINGS = (
    "session sess chat conversation thread run task job event game room kernel episode rollout execution operation "
    "stream upload context sandbox env environment instance worker browser connection response workspace notebook "
    "request_state agent_session resources_session interaction"
)
SESSION_KEYS = frozenset(
    {"session", "sid", "sessid", "sessionhash", "sessionkey", "sessiontoken", "sessionuuid", "previousresponseid"}
    | {thing.replace("_", "") + "id" for thing in _THINGS.split()}
)
"""Names in lower case without ``_``, ``-`` and dots."""

_SIGHT_KEYS = frozenset(
    {"session", "sid", "sessid", "sessionid", "sessionhash", "sessionkey", "sessionuuid", "chatid"}
    | {"conversationid", "threadid", "interactionid"}
)

_COLLECTION_WORDS = (
    "session sessions thread threads job jobs run runs task tasks conversation conversations chat chats game games "
    "room rooms kernel kernels episode episodes execution executions operation operations stream streams sandbox "
    "sandboxes env envs environment environments instance instances workspace workspaces notebook notebooks browser "
    "browsers response responses rollout rollouts build builds"
)
_COLLECTIONS = frozenset(_COLLECTION_WORDS.split())
_NO_SESSION = re.compile(r"csrf|xsrf|nonce|request-?id|trace|span|correlation|consent|locale|theme|_ga|analytics")
_PUNCTUATION = re.compile(r"[_\-.\s]+")


@lru_cache(maxsize=4096)
def normal_key(name: str) -> str:
    """``sessionId``, ``session_id`` and ``Session-Id`` are one."""
    return _PUNCTUATION.sub("", name.lower())


@lru_cache(maxsize=4096)
def is_session_key(name: str) -> bool:
    """True for a session-like key of JSON, query or a cookie's payload."""
    normal = normal_key(name[:64])
    return normal in SESSION_KEYS or normal.endswith("sessionid")


@lru_cache(maxsize=4096)
def is_sight_key(name: str) -> bool:
    """True for the names under which clients bring IDs of their own making. Narrower: a job or a run is minted by the
    app, and an environment or a room is shared by many."""
    normal = normal_key(name[:64])
    return normal in _SIGHT_KEYS or normal.endswith("sessionid")


@lru_cache(maxsize=4096)
def is_session_header(name: bytes) -> bool:
    """True for ``session-id``, ``x-session-id``, ``x-job-id``, ``marimo-session-id`` and the like."""
    text = name.decode("latin-1").lower()
    if text.startswith("x-"):
        text = text[2:]
    return "-" in text and is_session_key(text) and not is_no_session(text)


@lru_cache(maxsize=1024)
def is_no_session(name: str) -> bool:
    """True for names of values that are random but no session: CSRF tokens, request and trace IDs."""
    return _NO_SESSION.search(name.lower()) is not None


@lru_cache(maxsize=1024)
def is_collection(segment: str) -> bool:
    """True for a path segment that holds sessions: ``/threads``, ``/sessions``, ``/jobs``."""
    return segment.lower() in _COLLECTIONS
