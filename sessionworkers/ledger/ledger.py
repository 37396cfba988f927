"""The owner's side: the app wrapped wherever a request runs, whether it came by the public or the private socket.

One request, step by step (the numbers stand again in the code):

1. Admit: find the session that the request names; claim it on sight where the rule says so; refuse two IDs of two
   sessions and late starts. Losing a claim here raises `NotMine`: the handler has not run, so the router can hop.
2. Run the app, its reply going through `Reply`.
3. Reply head: the outcome of a start or end, the proof that the app used an ID, IDs in headers and cookies. Every claim
   is made before the first byte of the reply that tells it leaves.
4. Reply body, first messages: IDs that stand there.
5. Leave: the session is in use no more; its deadline is set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import Any

from sessionworkers.affinity import lifecycle
from sessionworkers.affinity.decide import Arrival, claims_on_sight, refuses_late_start
from sessionworkers.affinity.ids import MAX_TOKEN, claim_key, valid_id
from sessionworkers.affinity.lifecycle import Event, State
from sessionworkers.affinity.rules import Rule
from sessionworkers.affinity.ruleset import Found, Learned, Named, ReplyWatch, RuleSet
from sessionworkers.affinity.views import RequestView
from sessionworkers.claims.store import ClaimStore
from sessionworkers.errors import ClaimConflict, ClaimError, NotMine
from sessionworkers.ledger.answers import Refused
from sessionworkers.ledger.book import FOUNDING, LATER, UNSENT, Book, Record
from sessionworkers.ledger.cookie import AffinityCookie
from sessionworkers.ledger.current import Session, _visit
from sessionworkers.ledger.reply import Reply

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

STEP, STEPS = 200, 10
"""Sessions that the sweeper ends without letting go of the loop (some 3 ms), and how often it goes on at once."""


class Ledger:
    """The app with its sessions counted, learned, claimed and ended. One per worker."""

    def __init__(
        self,
        app: App,
        rules: RuleSet,
        store: ClaimStore,
        *,
        max_claims: int = 0,
        cookie: AffinityCookie | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.app = app
        self.rules = rules
        self.book = Book(store, max_claims=max_claims, clock=clock)
        self.cookie = cookie
        self._closing: set[asyncio.Task[None]] = set()

    async def serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        request: RequestView,
        found: Found | None,
        arrival: Arrival = Arrival.PUBLIC,
    ) -> None:
        """Run the app for one request.

        Raises `NotMine` or `Refused` before the app has seen anything; what the app raises passes through.
        """
        start_rule = None if found is not None else self.rules.start_without_id(request)
        watch = self.rules.watch(request, found)
        if found is None and watch is None and start_rule is None and self.cookie is None:
            await self.app(scope, receive, send)
            return
        visit = Visit(self, scope, request, found, start_rule, watch)
        visit.admit(arrival)  # 1
        token = _visit.set(visit)
        try:
            await self.app(scope, receive, Reply(visit, send).send)  # 2, and 3 and 4 in the reply
        finally:
            _visit.reset(token)
            visit.leave()  # 5

    # the app's own words

    def end_by_app(self, session: Session, event: Event) -> None:
        """Apply `Session.end` or `Session.discard`."""
        record = self.book.get(session.key) if session.key else None
        if record is None:
            return
        if record.term is not None:
            record.term.end("app")
        record.step(event)
        if event is Event.ENDED_BY_APP:
            self.close(record)
        self.book.settle(record)

    def claim_for_app(self, id: str, rule_name: str | None, visit: Visit | None) -> None:
        """Claim ``id`` under the named rule, or under all and for `auto`. Raises as `sessionworkers.claim` says."""
        if not valid_id(id, MAX_TOKEN):
            raise ValueError("a session ID is 1 to 4096 visible ASCII characters")
        rules = [rule for rule in self.rules.rules if rule_name in (None, rule.name)]
        if rule_name is not None and not rules:
            names = ", ".join(rule.name for rule in self.rules.rules) or "none"
            raise ValueError(f"no rule is named {rule_name!r}; the rules are: {names}")
        if self.rules.auto is not None and rule_name is None:
            rules.append(self.rules.auto.announce(id))
        for rule in {rule.key_space: rule for rule in rules}.values():
            self.adopt(rule, id, claim_key(rule.key_space, id), visit)

    def adopt(self, rule: Rule, id: str, key: str, visit: Visit | None) -> Record:
        """Hold ``key`` as a session of ``rule``; the session of ``visit`` if that has no name yet."""
        record = self.book.get(key)
        if record is not None:
            return record
        record = self.book.open(rule, State.LEARNED, key)
        if visit is not None and visit.record is None:
            visit.take(record, id, key)
        else:
            self.book.settle(record)
        return record

    # closing

    def close(self, record: Record) -> None:
        """Start the close callbacks of ``record``, if it has any that have not run."""
        if record.handle is not None and record.handle.has_callbacks:
            record.handle.close()

    async def sweep(self, now: float) -> None:
        """End every session whose time has come; one whose callback raises stays for another window.

        In small steps, between which requests have their turn: ending one takes a system call.
        """
        for _ in range(STEPS):
            due = self.book.expired(now, STEP)
            self._end_expired(due)
            if self.book.next_deadline() > now:
                return
            await asyncio.sleep(0)

    def _end_expired(self, due: list[Record]) -> None:
        for record in due:
            if record.term is not None and record.state is State.OPEN:
                record.term.end("expired")  # the session ends; its claim stays for the window
                continue
            if record.handle is not None and record.handle.has_callbacks:
                task = asyncio.get_running_loop().create_task(self._close_expired(record, record.handle))
                self._closing.add(task)  # side by side: one slow callback holds nobody else up
                task.add_done_callback(self._closing.discard)
            else:
                self.book.forget(record)

    async def _close_expired(self, record: Record, handle: Session) -> None:
        record.state = State.ENDED
        closed = await handle.close()
        if not closed:
            record.last = self.book.clock()
        if not closed or record.in_use or record.deadline() > self.book.clock():
            self.book.settle(record)  # kept for another window, or a request came while the callback ran
        else:
            self.book.forget(record)

    async def closed(self) -> None:
        """Wait until the callbacks of sessions that have expired so far are through."""
        while self._closing:
            await asyncio.wait(self._closing)


class Visit:
    """One request on its owner's side."""

    start_rule: Rule | None = None
    watch: ReplyWatch | None = None
    record: Record | None = None
    pending: Named | None = None
    """An unclaimed ID that is claimed only when the reply shows that the app used it."""
    outcome_known = False
    sighted = False
    """This request had its inferred ID claimed on sight: dropped again if the app did not use it."""
    _session: Session | None = None

    def __init__(
        self,
        ledger: Ledger,
        scope: Scope,
        request: RequestView,
        found: Found | None,
        start_rule: Rule | None,
        watch: ReplyWatch | None,
    ) -> None:
        self.ledger = ledger
        self.scope = scope
        self.request = request
        self.found = found
        self.start_rule = start_rule
        self.watch = watch

    # 1

    def admit(self, arrival: Arrival) -> None:
        """Find or claim the session. Raises `NotMine`, `Refused`."""
        found = self.found
        if found is None:
            return
        book = self.ledger.book
        primary = found.primary
        record = book.get(primary.key)
        others = [(named, book.get(named.key)) for named in found.also]
        if found.start or found.end:
            record = self._one_session(record, primary, others)
        if record is None:
            record = self._admit_unknown(found, arrival)
        if record is None:
            self.pending = primary
            return
        if refuses_late_start(found) and record.state is State.ENDED:
            raise Refused(409, "session ended", "this session was ended; a late start is refused")
        record.in_use += 1
        record.requests += 1
        record.step(Event.USED)
        self.record = record
        self._session = record.handle
        book.sent_back(record, primary.key, primary.carrier)
        for named, other in others:
            if other is record:
                book.sent_back(record, named.key, named.carrier)
        self._join(found, record)

    def _one_session(
        self, record: Record | None, primary: Named, others: list[tuple[Named, Record | None]]
    ) -> Record | None:
        """The session that all IDs of a start or end name. Raises `Refused` (409) if they name two."""
        book = self.ledger.book
        for _, other in others:
            if other is None:
                continue
            if record is not None and other is not record:
                raise Refused(409, "session mismatch", "the request names two different sessions")
            if record is None:
                if other.carriers >> primary.carrier & 1:
                    # That session has another ID of this kind already: the two cannot be one session.
                    raise Refused(409, "session mismatch", "the request names two different sessions")
                # The first typed ID of a session that so far was known by another carrier alone.
                self._claim_or_hop(partial(book.alias, other, primary.key, FOUNDING, carrier=primary.carrier))
                record = other
        return record

    def _admit_unknown(self, found: Found, arrival: Arrival) -> Record | None:
        """Claim an ID that this worker does not hold, or leave it for the reply to decide (None)."""
        book = self.ledger.book
        primary = found.primary
        on_sight = claims_on_sight(found, primary)
        if not on_sight and arrival is Arrival.PRIVATE:
            try:
                owner = book.store.owner(primary.key)
            except ClaimError as error:
                raise Refused(error.status, "claims unavailable", str(error), retry_after=1) from error
            if owner == book.store.me:
                on_sight = True  # placed here by the worker that accepted the request: claim and reservation in one
            elif owner is not None:
                raise NotMine(owner)
        if not on_sight:
            return None
        state = State.STARTING if found.start else State.ENDING if found.end else State.IMPLICIT
        made: list[Record] = []
        self._claim_or_hop(
            lambda: made.append(book.open(found.rule, state, primary.key, carrier=primary.carrier)),
            inferred=found.rule.inferred,
        )
        if not made:
            return None
        self.sighted = found.rule.inferred
        for named in found.also:
            if book.get(named.key) is None and claims_on_sight(found, named):
                self._claim_or_hop(partial(book.alias, made[0], named.key, FOUNDING, carrier=named.carrier))
        return made[0]

    def _claim_or_hop(self, make: Callable[[], Any], *, inferred: bool = False) -> None:
        """Run ``make``. A lost race becomes `NotMine` (the handler has not run), a full store a 503."""
        try:
            make()
        except ClaimConflict as lost:
            raise NotMine(lost.owner) from None
        except ClaimError as full:
            if not inferred:  # an inferred ID never refuses
                raise Refused(full.status, "no room for sessions", str(full), retry_after=5) from None

    def _join(self, found: Found, record: Record) -> None:
        """IDs that clients mint, first seen on a request that another ID routed here, join that owner."""
        for rule, named in found.joins:
            if self.ledger.book.get(named.key) is None:
                try:
                    if rule.key_space == record.rule.key_space:
                        self.ledger.book.alias(record, named.key, LATER, carrier=named.carrier)
                    else:
                        self.ledger.book.settle(
                            self.ledger.book.open(rule, State.IMPLICIT, named.key, carrier=named.carrier)
                        )
                except ClaimError:
                    continue  # another worker's, or no room: the request is served by its first ID all the same

    # 3 and 4

    def head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The reply begins. Raises `ClaimError` where the reply must not leave."""
        watch = self.watch
        learned: tuple[Learned, ...] = watch.head(status, headers) if watch is not None else ()
        ok = 200 <= status < 300 or status == 101
        if self.pending is not None and watch is not None and watch.used:
            self._claim_used(self.pending, ok)
        for item in learned:
            self.learn(item)
        found = self.found
        if found is not None and (found.start or found.end):
            confirmed = found.primary.verified or (watch is not None and watch.confirmed)
            self.outcome(ok and confirmed, failed=not ok)

    def _claim_used(self, named: Named, ok: bool) -> None:
        """The app used an ID that nobody claims: its claim ended, or it comes from before a restart."""
        found = self.found
        assert found is not None
        self.pending = None
        state = State.STARTING if found.start and ok else State.IMPLICIT
        try:
            record = self.ledger.book.open(found.rule, state, named.key, carrier=named.carrier)
        except ClaimError:
            if found.rule.inferred:
                return
            raise
        self.take(record, named.value, named.key)
        self._join(found, record)

    def learn(self, item: Learned) -> None:
        """The reply hands out an ID. Raises `ClaimError` if it must not, which only a rule's own place says."""
        book = self.ledger.book
        known = book.get(item.key)
        if known is not None:
            if self.record is None:
                self._known_again(known, item)
            return
        record = self.record
        same = record is not None and record.rule.key_space == item.rule.key_space
        try:
            if same:
                assert record is not None
                made_here = self.found is not None and (self.found.start or record.requests == 1)
                book.alias(record, item.key, FOUNDING if made_here else UNSENT)
            else:
                starts = self.start_rule is not None and self.start_rule.key_space == item.rule.key_space
                fresh = book.open(item.rule, State.STARTING if starts else State.LEARNED, item.key)
                if starts:
                    fresh.step(Event.START_OK)
                if record is None:
                    self.take(fresh, item.value, item.key)
                else:
                    book.settle(fresh)
        except ClaimConflict:
            if item.strict:
                raise
            if self.ledger.rules.auto is not None:
                self.ledger.rules.auto.report_conflict(item)
        except ClaimError:
            if item.strict:
                raise

    def _known_again(self, known: Record, item: Learned) -> None:
        """A reply to a request without an ID names a session that lives here: a repeated start, a resumed login."""
        if self.start_rule is not None and self.start_rule.key_space == item.rule.key_space:
            known.step(Event.START_OK)
            self.take(known, item.value, item.key)

    def take(self, record: Record, value: str, key: str) -> None:
        """The request turns out to belong to ``record``: it is in use until `leave`."""
        self.record = record
        record.in_use += 1
        record.requests += 1
        if self._session is not None and record.handle is None:
            record.handle = self._session
            self._session.id, self._session.key = value, key
        elif record.handle is not None:
            self._session = record.handle

    def outcome(self, ok: bool, *, failed: bool = True) -> None:
        """The outcome of a start or end is known, once."""
        found, record = self.found, self.record
        if self.outcome_known or found is None or record is None:
            return
        if not ok and not failed:
            return  # answered 2xx, but an unverified ID was not confirmed: neither start nor end
        self.outcome_known = True
        if found.start:
            record.step(lifecycle.start_outcome(ok, failed_start=found.rule.failed_start, alone=record.requests == 1))
        elif found.end:
            ended = self.ledger.book.end(record, found.primary.key, Event.END_OK if ok else Event.END_REFUSED)
            if ended is not record:
                record.in_use -= 1
                ended.in_use += 1
                self.ledger.book.settle(record)
                self.record = ended
            if ended.state is State.ENDED:
                self.ledger.close(ended)

    # 5

    def leave(self) -> None:
        """The request is over, however it went."""
        self.outcome(False)  # no reply was begun: the start failed, the end was refused
        record = self.record
        if record is None:
            return
        self.record = None
        record.in_use -= 1
        record.last = self.ledger.book.clock()
        if self.sighted and record.requests == 1 and not (self.watch is not None and self.watch.used):
            record.step(Event.DISCARDED)
        self.ledger.book.settle(record)

    def session(self) -> Session | None:
        """The app's view of the session; made when it is first asked for."""
        rules = self.ledger.rules
        watched = self.watch is not None or (self.request is None and bool(rules.auto is not None or rules.learners))
        if self._session is None and (self.found is not None or self.start_rule is not None or watched):
            self._session = Session(self.ledger)
            if self.record is not None and self.found is not None:
                self._session.id, self._session.key = self.found.primary.value, self.found.primary.key
                self.record.handle = self._session
        return self._session
