"""What a rule is: which requests it reads, where the ID stands, what opens and ends a session, what *gone* answers.

Pure data (DESIGN: carriers, rules, presets). A rule groups carriers that spell the same ID. Rules are tried in order
and the first that finds an ID wins; only IDs of the same rule can disagree.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from sessionworkers.affinity.carriers import Carrier
from sessionworkers.affinity.learners import Learner
from sessionworkers.affinity.paths import PathTemplate
from sessionworkers.affinity.views import RequestView


class Mint(enum.Enum):
    """Who makes the ID up: decides whether an unclaimed ID is claimed on sight."""

    APP = "app"
    CLIENT = "client"


class FailedStart(enum.Enum):
    """What a start that the app refused (no 2xx) leaves behind."""

    KEEP = "keep"
    """The claim stays for the retry window: the caller's clean-up close must reach the same worker."""
    RELEASE = "release"
    """The claim ends at once, if nothing else came for it."""


@dataclass(frozen=True)
class RequestPattern:
    """A kind of request: HTTP methods (empty: any) and a path template; optionally a text the body must hold."""

    path: PathTemplate
    methods: frozenset[str] = frozenset()
    body_contains: bytes | None = None
    kind: str = "http"

    def matches(self, request: RequestView) -> bool:
        """True if ``request`` is of this kind. A pattern with ``body_contains`` never matches an unread body."""
        if request.kind != self.kind or (self.methods and request.method not in self.methods):
            return False
        if self.path.match(request) is None:
            return False
        return self.body_contains is None or (request.body is not None and self.body_contains in request.body)


@dataclass(frozen=True)
class Gone:
    """The reply to a request whose owner no longer lives. ``content_type`` and ``body`` are sent as they are."""

    status: int = 410
    content_type: str = "application/json"
    body: bytes = b'{"error":"session gone","detail":"the worker that held this session is no longer running"}'
    jsonrpc: bool = False
    """Answer with a JSON-RPC error that echoes the request's ``id`` when the body was read (MCP)."""


@dataclass(frozen=True)
class Rule:
    """One rule. All times are seconds."""

    name: str
    carriers: tuple[Carrier, ...]
    learners: tuple[Learner, ...] = ()
    space: str = ""
    """Key space: two rules with one space name the same sessions. Empty: the rule's own name."""
    only: tuple[RequestPattern, ...] = ()
    """The requests that the rule reads; empty: all."""
    starts: tuple[RequestPattern, ...] = ()
    ends: tuple[RequestPattern, ...] = ()
    ends_unless_header: bytes | None = None
    """Lower-case name of a request header whose presence (any value but empty, 0 or false) suspends ``ends``."""
    mint: Mint = Mint.APP
    failed_start: FailedStart = FailedStart.KEEP
    refuse_late_start: bool = False
    gone: Gone = field(default_factory=Gone)
    retry_window: float = 300.0
    return_window: float = 300.0
    idle: float = 86_400.0
    learn_any_status: bool = False
    """Learn from 4xx and 5xx too (NiceGUI's 404 page is a live client)."""
    inferred: bool = False
    """Found without a rule (``auto``): routes while its owner lives and never refuses."""
    strict: bool = True
    """An ID that a reply hands out here and that another worker holds was minted twice: 409. Otherwise it passes."""
    tentative: bool = False
    """What its carriers read is an ID only if it is claimed: the first that is decides, else the next rule does."""
    owns_replies: bool = False
    """``auto`` learns nothing from replies to its requests: the rule knows its protocol better."""

    @property
    def key_space(self) -> str:
        return self.space or self.name

    @property
    def has_lifetime(self) -> bool:
        """True under a rule with start and end: its open sessions do not idle out."""
        return bool(self.starts and self.ends)
