"""The connection of a client that may move to another worker, and its keep-alive timer.

A connection is followed byte by byte only while it may be handed over: from its start, and after a request that
belonged elsewhere. One that serves sessions of this worker pays a look at a flag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from sessionworkers.affinity.found import Found
from sessionworkers.hosts.cycle import Base
from sessionworkers.hosts.first import FirstTransport
from sessionworkers.hosts.handover import MOST_BYTES, Channel, Handover, let_go

if TYPE_CHECKING:
    from sessionworkers.hosts.raw import Accepting

USES = 3
SESSION_COUNTS = 8
IN_A_ROW = USES * SESSION_COUNTS
"""Requests for one other worker after which their connection moves there: three of one session, or seventeen of some. A
hand-over costs what four forwards do; two are forwarded before it is known that more will come, and who asks for many
sessions (a proxy, a test) will soon ask for another worker's. It doubles with each move."""
MOST_DOUBLINGS = 8
MOST_RUNS = 32
"""A run must also have as many requests of one session as there were runs before it, up to so many: a connection that
goes from worker to worker will not stay with the next one either."""
STAYED = 5.0
"""Seconds after which a connection's moves are forgotten: one that uses long sessions one after the other may move with
each of them, and one move in so long a time costs nothing."""


class MovingProtocol(Base):
    """What of a connection is about its moving; `sessionworkers.hosts.protocol` reads it."""

    accepting: Accepting | None = None
    first: FirstTransport | None = None
    """The transport that does until the loop has made its own."""
    _follow = False
    _between = True  # no part of a request's body is outstanding
    _begun: bytes | None = None  # the head that has come in part
    _heads = 0  # heads that the present packet completed
    _chunk: bytes | None = None  # what a new owner would have to be told; None: more than one request, or none
    _moving: tuple[Channel, RequestResponseCycle | None] | None = None
    _last_owner = ""
    _last_key = ""
    _streak = 0
    _runs = 0  # of requests for one other worker each, that have ended
    _uses = 0  # of one explicit session of another worker, in a row
    _last_used = ("", "")
    _late = False  # it should have moved by now
    _moves_so_far = 0
    _came_at = 0.0  # with the last of them, on the loop's clock
    _idle_since = 0.0  # on the loop's clock; 0 while a request is under way
    _seen: Any = None  # the scope of the last head that was complete
    _shut = False
    _arrived: tuple[bytes, Callable[[], None] | None] | None = None  # of a connection that was handed over to here

    # moving to another worker

    def _way(self, owner: str, found: Found, events: bool) -> Channel | None:
        """The way to ``owner``, if with this request of its session the connection is to go there, and can."""
        self._late = self._goes(owner, found, events)
        return self._channel(owner) if self._late else None

    def _goes(self, owner: str, found: Found, events: bool) -> bool:
        """Count a request of another worker's session. True if the connection is to go there: at once for an event
        stream, else by how many requests in a row went there."""
        self._follow = True
        if owner != self._last_owner:
            if self._last_owner:
                self._runs += 1
            self._last_owner, self._last_key, self._streak = owner, found.primary.key, SESSION_COUNTS
        elif found.primary.key == self._last_key:
            self._streak += SESSION_COUNTS
        else:
            self._last_key = found.primary.key
            self._streak += 1
        return events or (self._streak >= IN_A_ROW and self._streak >= self._due())

    def _due(self) -> int:
        """How long a run is after which this connection is to go."""
        return max(IN_A_ROW << self._moves(), SESSION_COUNTS * min(self._runs, MOST_RUNS))

    def _moves(self) -> int:
        """How often what is asked of the next move is doubled."""
        if self.loop.time() - self._came_at >= STAYED:
            self._moves_so_far = 0
        return min(self._moves_so_far, MOST_DOUBLINGS)

    def _stays(self) -> None:
        """A request of this worker: nothing is in a row any more."""
        if self._last_owner:
            self._runs += 1
            self._last_owner = ""
        self._follow = self._late = False

    def _channel(self, owner: str) -> Channel | None:
        """The way to ``owner``, if this connection can go there with the packet that was read last."""
        accepting = self.accepting
        assert accepting is not None
        if accepting.handover is None or self._arrived is not None or self.scheme != "http":
            return None  # what has just come is not sent on: two workers may know differently
        if self._heads != 1 or self._chunk is None or len(self._chunk) > MOST_BYTES or self.pipeline:
            return None
        if not self._still() or self.transport.get_extra_info("sslcontext"):
            return None
        return accepting.handover.channel(owner)

    def _still(self) -> bool:
        """Whether nothing of this connection is on its way in here."""
        if self.first is not None and self.first.promoting:
            return False  # what is read meanwhile would be lost
        return not self.transport.is_closing() and not self.transport.get_write_buffer_size()

    def _move(self) -> None:
        """The packet is parsed: now it goes, or the request is served as it would have been."""
        assert self._moving is not None
        channel, cycle = self._moving
        chunk, self._chunk = self._chunk, None
        if chunk is not None and channel.send(self._fileno(), chunk, self._moves_so_far):
            self._moving = (channel, None)
            self._leave()
            return
        self._moving = None
        self._streak = 0
        if cycle is not None:
            self._start_asgi_task(cycle, self.app)
        else:
            self._upgrade()

    def _upgrade(self) -> None:
        """Serve the WebSocket whose handshake was read last."""
        raise NotImplementedError

    def arrive(self, data: bytes, moves: int, acknowledge: Callable[[], None] | None) -> None:
        """This connection comes from another worker; call it before the connection is made."""
        self._moves_so_far, self._came_at = moves, self.loop.time()
        self._arrived = (data, acknowledge)
        self._shut = True

    def _move_idle(self) -> None:
        """Move between two requests what could not move with one: the body was too long to travel."""
        accepting, self._late = self.accepting, False
        if accepting is not None and accepting.handover is not None:
            self.hand_over(accepting.handover, self._last_owner)

    def hand_over(self, handover: Handover, owner: str) -> None:
        """Move to ``owner``, if no request is under way and there is a way; with what has come of the next head."""
        if not self._between or self.pipeline or self.scheme != "http" or not self._still():
            return
        begun = b"" if self.scope is self._seen else self._begun
        if begun is None:
            return  # not all of it was kept
        channel = handover.channel(owner)
        if channel is not None and channel.send(self._fileno(), begun, self._moves_so_far):
            self._leave()

    def follow(self) -> None:
        """From now on this connection can move with a part of a head, too."""
        self._follow = True

    def _go_after(self, owner: str, session: str | None) -> None:
        """``owner`` has answered for its explicit ``session``, or taken what this connection has just begun (None):
        move there, now or with a later request, if this is the third use in a row; it doubles with each move, too."""
        if session is not None:
            self._uses = self._uses + 1 if (owner, session) == self._last_used else 1
            self._last_used = (owner, session)
            if self._uses < USES << self._moves():
                if self.accepting is not None and self.accepting.handover is not None:
                    self.accepting.handover.channel(owner)  # so that it is there when it is due
                return
        self._last_owner, self._streak, self._follow = owner, IN_A_ROW << MOST_DOUBLINGS, True
        if self._idle_since:
            self._move_idle()

    def _fileno(self) -> int:
        fd: int = self.transport.get_extra_info("socket").fileno()
        return fd

    def _leave(self) -> None:
        self.connections.discard(self)
        self._forget_timer()
        let_go(self.transport)
        self._drop()

    def _drop(self) -> None:
        """Nothing more will be read here: let go of what names this connection in turn. Left to the garbage collector
        they took a third of a millisecond from every 85th connection."""
        self.parser = None  # type: ignore[assignment]
        self.cycle = None  # type: ignore[assignment]
        self.pipeline.clear()

    # the keep-alive timer

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = 0.0

    def _arm(self, delay: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(delay, self._look_idle)

    def _forget_timer(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _look_idle(self) -> None:
        """One timer for the whole connection: when it comes up, it is seen how long nothing has come."""
        self.timeout_keep_alive_task = None
        if self._idle_since:
            left = self._idle_since + self.timeout_keep_alive - self.loop.time()
            if left > 0:
                self._arm(left)
            else:
                self.timeout_keep_alive_handler()
