"""The accepting side: one link to each owner, made when it is first needed, and the requests carried over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from sessionworkers.errors import FrameError, HopError, HopRefused, OwnerBusy, OwnerGone
from sessionworkers.hop.carried import Carried, Receive, Send
from sessionworkers.hop.codec import (
    BYE,
    GOAWAY,
    HELLO,
    LAID,
    LAST_STREAM,
    OLDEST,
    RING,
    SHARED,
    VERSION,
    Hello,
    Unreadable,
    header,
    packed,
    read_bye,
    read_hello,
    read_shared,
)
from sessionworkers.hop.dial import dial
from sessionworkers.hop.ring import Mapped
from sessionworkers.hop.wire import Descriptor, Link, logger

HELLO_CHECK: Final = 0.25  # seconds between two looks at whether a silent owner lives
TICK: Final = 0.02  # seconds: a request that has lasted one to two of them is watched for its client's leaving
PATIENCE: Final = 50e-6  # seconds: a piece is laid on another processor before this one could go to sleep
LOOK: Final = 0.001  # seconds between two looks for a piece of shared memory that is being laid
CLOSE_LIMIT: Final = 1.0  # seconds in which the last frames may go out


class AcceptorLink(Link[Any]):
    """The link to one owner. ``hello`` is done when the owner has taken it, or has its refusal as exception."""

    def __init__(self, links: Links, owner: str) -> None:
        super().__init__()
        self.links = links
        self.owner = owner
        self.hello: asyncio.Future[None] = self.loop.create_future()
        self.raw = False  # the owner takes raw streams
        self.leaving = False  # open no more streams, close with the last one
        self._ring: Mapped | None = None
        self._held: list[tuple[int, int, bytes]] = []  # frames from one on whose piece is not laid yet
        self._look: asyncio.TimerHandle | None = None
        self._next = 1
        self._clock: asyncio.TimerHandle | None = None

    def connected(self) -> None:
        self.links.all.add(self)
        self.write(packed(HELLO, 0, Hello(self.links.me, self.owner, VERSION, OLDEST)))

    def connection_lost(self, error: Exception | None) -> None:
        self._go_on()  # the owner has ended after it laid the last piece
        super().connection_lost(error)

    def disconnected(self) -> None:
        self.links.forget(self)
        self.links.all.discard(self)
        if self._clock is not None:
            self._clock.cancel()
        if self._look is not None:
            self._look.cancel()
        if self._ring is not None:
            self._ring.close()
        self._refuse(OwnerGone("the owner closed the link before it had said hello"))

    def frame(self, kind: int, stream: int, payload: bytes) -> None:
        if self._held:
            if kind != LAID:
                self._held.append((kind, stream, payload))
            self._go_on()
            return
        carried = self.streams.get(stream)
        if kind == SHARED:
            if self._ring is not None and not self._ring.laid(PATIENCE):
                self._hold(kind, stream, payload)
            else:
                self._shared(carried, payload)
        elif carried is not None:
            try:
                carried.frame(kind, payload)
            except Unreadable as error:
                raise FrameError(f"a reply cannot be read: {error}") from error
        elif stream == 0:
            if kind != LAID:  # it has looked by itself meanwhile
                self._control(kind, payload)
        elif stream >= self._next or not self.greeted:
            raise FrameError(f"a frame of kind {kind} for a stream that was never opened")
        # else: the stream has ended here, the owner did not know it yet

    def _shared(self, carried: Any, payload: bytes) -> None:
        ring = self._ring
        if ring is None:
            raise FrameError("a frame about shared memory before there is any")
        kind, at, size = read_shared(payload)
        if carried is not None:
            with ring.piece(at, size) as piece:
                carried.shared(kind, piece)
        ring.took()

    def _hold(self, kind: int, stream: int, payload: bytes) -> None:
        """A piece that is not laid yet: all waits for it that comes after it."""
        self._held.append((kind, stream, payload))
        if self._look is None:
            self._look = self.loop.call_later(LOOK, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._go_on()
        if self._held and not self.closed:
            self._look = self.loop.call_later(LOOK, self._look_again)

    def _go_on(self) -> None:
        """Act on what waits, if the piece is laid by now."""
        ring = self._ring
        if self._held and not self.closed and ring is not None and ring.laid():
            held, self._held = self._held, []
            self.take(held)

    def _map(self, offer: bytes) -> None:
        """Share the owner's memory, if that is possible."""
        try:
            self._ring = Mapped(offer)
        except (OSError, ValueError) as error:
            logger.debug("large replies go through the socket: %s", error)
            return
        self.write(header(RING, 0, 0))

    def _control(self, kind: int, payload: bytes) -> None:
        try:
            if kind == HELLO and not self.greeted:
                hello = read_hello(payload)
                if hello.uid != self.owner:
                    raise FrameError("another worker answers on the owner's private socket")
                self.raw = hello.raw
                self.trust()
                if not self.hello.done():
                    self.hello.set_result(None)
            elif kind == BYE and not self.greeted:
                bye = read_bye(payload)
                self._refuse(HopRefused(bye.text) if bye.why == "version" else OwnerGone(bye.text))
                self.abort()
            elif kind == GOAWAY and self.greeted:
                self.leave()
            elif kind == RING and self.greeted and self._ring is None:
                self._map(payload)
            else:
                raise FrameError(f"a frame of kind {kind} from an owner")
        except Unreadable as error:
            raise FrameError(f"an owner's hello cannot be read: {error}") from error

    def _refuse(self, error: HopError) -> None:
        if not self.hello.done():
            self.hello.set_exception(error)
            self.hello.exception()  # seen: perhaps nobody waits any more

    def leave(self) -> None:
        """Opens no more streams on this link; the next request makes a new one."""
        self.leaving = True
        self.links.forget(self)
        if not self.streams:
            self.close()

    def carry(self, websocket: bool, receive: Receive, send: Send) -> Carried:
        """The next stream. It is in `streams` once it has written its OPEN frame."""
        number = self.number()
        if self._clock is None:
            self._clock = self.loop.call_later(TICK, self._tick)
        return Carried(self, number, websocket, receive, send)

    def number(self) -> int:
        """Of the next stream."""
        number = self._next
        self._next = number + 1
        if number == LAST_STREAM:
            self.leaving = True
            self.links.forget(self)
        return number

    def release(self, stream: int) -> None:
        self.streams.pop(stream, None)
        if self.leaving and not self.streams:
            self.close()

    def _tick(self) -> None:
        again = False
        for carried in list(self.streams.values()):
            again = carried.tick() or again
        self._clock = self.loop.call_later(TICK, self._tick) if again else None


class Links:
    """The links of one worker to all others.

    ``me``: this worker's uid. ``socket_path(uid)``: the path of a worker's private socket. ``alive(uid)``: whether it
    lives, asked only when it does not answer. ``connect_timeout``: seconds for connecting;
    ``hello_patience``: seconds that a live owner may then take, since its loop may be busy.
    """

    def __init__(
        self,
        me: str,
        socket_path: Callable[[str], str],
        alive: Callable[[str], bool],
        *,
        connect_timeout: float = 2.0,
        hello_patience: float = 30.0,
    ) -> None:
        self.me = me
        self.all: set[AcceptorLink] = set()
        self._socket_path = socket_path
        self._alive = alive
        self._timeout = connect_timeout
        self._patience = hello_patience
        self._ready: dict[str, AcceptorLink] = {}
        self._dialing: dict[str, asyncio.Task[AcceptorLink]] = {}
        self._closed = False

    async def carry(
        self,
        owner: str,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
        meta: dict[str, Any],
    ) -> None:
        """Runs one HTTP request or WebSocket on ``owner``.

        ``meta`` (what msgpack can carry) goes to the owner's handler. Returns when the owner's app is through with the
        request as far as the client is concerned, or when the client is gone; the owner's app is then told so.

        Raises before anything went to ``send``: OwnerGone, OwnerBusy, NotMine, HopRefused; with a ``replay`` if the
        owner's app has not seen the request, which may then be handled elsewhere with it in place of ``receive``.
        AppFailed: the owner's app raised before its reply, let the host answer 500. After the reply has begun:
        HopBroken, end the client's connection. Whatever the host's own ``receive`` and ``send`` raise passes through.
        """
        link = self._ready.get(owner)
        if link is None:
            try:
                link = await self._reach(owner)
            except HopError as error:
                error.replay = receive
                raise
        await link.carry(scope["type"] == "websocket", receive, send).run(scope, meta)

    def raw_link(self, owner: str) -> AcceptorLink | None:
        """A link that is ready for raw streams now; None also where the owner's host takes none."""
        link = self._ready.get(owner)
        return link if link is not None and link.raw else None

    async def _reach(self, owner: str) -> AcceptorLink:
        """A link that is ready; all requests that come meanwhile share the attempt."""
        if self._closed:
            raise HopRefused("this worker's links are closed")
        dialing = self._dialing.get(owner)
        if dialing is None:
            dialing = self._dialing[owner] = asyncio.get_running_loop().create_task(self._dial(owner))
            dialing.add_done_callback(lambda _: self._dialing.pop(owner, None))
        await asyncio.wait((dialing,))
        if dialing.cancelled():
            raise HopRefused("this worker's links are closed")
        error = dialing.exception()
        if isinstance(error, HopError):
            raise type(error)(*error.args) from error  # each waiter its own: they put their `replay` on it
        link = dialing.result()
        if link.closed or link.leaving:
            raise OwnerGone("the owner closed the link")
        return link

    async def _dial(self, owner: str) -> AcceptorLink:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        link: AcceptorLink | None = None
        try:
            sock = await dial(self._socket_path(owner), deadline)
            descriptor = Descriptor(sock)
            try:
                _, link = await loop.create_unix_connection(lambda: AcceptorLink(self, owner), sock=sock)
            except BaseException:
                descriptor.close()
                raise
            descriptor.check()
            # It has taken the connection, or its backlog has: a busy owner lives and will answer. Only one that does
            # not live, or whose loop stands for very long, is given up.
            patience = loop.time() + self._patience
            while not link.hello.done() and loop.time() < patience:
                await asyncio.wait((link.hello,), timeout=min(HELLO_CHECK, patience - loop.time()))
                if not link.hello.done() and not self._alive(owner):
                    break
            if not link.hello.done():
                raise OwnerBusy("the owner did not say hello in time")
            link.hello.result()
        except OwnerBusy as error:
            if link is not None:
                link.abort()
            if not self._alive(owner):  # a child of it may still hold its socket open
                raise OwnerGone("the owner no longer lives") from error
            raise
        except BaseException:
            if link is not None:
                link.abort()
            raise
        self._ready[owner] = link
        return link

    def forget(self, link: AcceptorLink) -> None:
        if self._ready.get(link.owner) is link:
            del self._ready[link.owner]

    async def close(self) -> None:
        """Closes all links. Requests that are still being carried end as if their owners had died."""
        self._closed = True
        dialing = list(self._dialing.values())
        for task in dialing:
            task.cancel()
        if dialing:
            await asyncio.wait(dialing)
        for link in list(self.all):
            link.close()
        deadline = asyncio.get_running_loop().time() + CLOSE_LIMIT
        while self.all and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0)
        for link in list(self.all):
            link.abort()
        while self.all:
            await asyncio.sleep(0)
