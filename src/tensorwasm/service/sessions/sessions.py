"""`Sessions`: instances that several calls share.

What is safe when: an answer to `Sessions.open` means that the session is there after any crash, and is made anew if
nothing was saved by then. A call's effects are in memory until the session is saved: when it is idle, when somebody
asks for it, before the answer of a call that is ``durable``, and when the service ends. A crash takes the session back
to its last save, never further, and `SessionRecord.rewinds` says so. What cannot be saved is ``lost`` with its process.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from tensorwasm.database import sessions as rows
from tensorwasm.database.sessions import SessionOptions, SessionRecord
from tensorwasm.errors import InvalidRequest, NotFound, SessionElsewhere, TensorWasmError, TooManyArgs
from tensorwasm.service.clock import Clock
from tensorwasm.service.database_port import DatabasePort
from tensorwasm.service.functions.names import is_id
from tensorwasm.service.functions.options import check_environment
from tensorwasm.service.invocations.request import MAX_ARGS
from tensorwasm.service.invocations.spending import UsageLedger
from tensorwasm.service.maintenance import do
from tensorwasm.service.pages import USUAL_PAGE, checked_limit, parse_cursor
from tensorwasm.service.sessions.activation import Activation, Resolver
from tensorwasm.service.sessions.entry import Session, SessionCall, SessionEntry
from tensorwasm.service.sessions.eviction import Guests, Hold, InstanceRoom
from tensorwasm.service.sessions.instances import InstanceFactory, Live, session_name
from tensorwasm.service.sessions.leases import Leases, Sharing
from tensorwasm.service.sessions.operation_queue import Operation, OperationQueue, Work
from tensorwasm.service.sessions.persistence import SessionKeeper
from tensorwasm.values import NEVER, Deadline

if TYPE_CHECKING:
    from tensorwasm.runtime.invoke.invocation import Invocation
    from tensorwasm.runtime.snapshots.snapshot import Snapshot

_CALL_THREADS: Final = 32
_SAVE_THREADS: Final = 4
_MOST_LIVE: Final = 1024
_TEND_S: Final = 5.0
_LINGER_S: Final = 1.0
"""How long guests that were ended are waited for."""

_log = logging.getLogger(__name__)
_Value = TypeVar("_Value")


class Sessions:
    """Sessions of all tenants. For one event loop; nothing here holds it. Of several servers one has each session.

    Args:
        desk: of the database.
        functions: finds what sessions run.
        workshop: makes, saves and brings back instances.
        hold: of the tenants' quotas.
        guests: that hold memory, which calls wait for; None where there are no others than sessions.
        idle_s: how long an instance stays in memory without a call.
        most: instances in memory.
        ledger: is told what calls used; None tells nobody.
        clock: says when they were used.
        sharing: how the database is shared with other servers; None where this one has it alone.
    """

    def __init__(
        self,
        desk: DatabasePort,
        functions: Resolver,
        workshop: InstanceFactory,
        hold: Hold,
        *,
        guests: Guests | None = None,
        idle_s: float,
        most: int = _MOST_LIVE,
        ledger: UsageLedger | None = None,
        clock: Clock | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        """Start nothing yet; `start` does."""
        self._desk = desk
        self._workshop = workshop
        self._idle_s = idle_s
        self._ledger = ledger
        self._clock = clock or Clock()
        self._line = OperationQueue(self._now_ns)
        self._leases = Leases(desk, sharing, self._clock.monotonic_s, self._line.interrupt)
        self._keeper = SessionKeeper(desk, workshop, self._leases, _SAVE_THREADS)
        self.room = InstanceRoom(self._keeper, self._leases, hold, guests, most, self._line)
        self._waking = Activation(desk, functions, workshop, self._keeper, self.room, self._leases, _CALL_THREADS)
        self._ending = asyncio.Event()
        self._tending: list[asyncio.Task[None]] = []

    # ---------------------------------------------------------------- beginning and ending

    async def start(self) -> None:
        """Take sessions back to what is saved of them, and begin to look after them.

        Raises:
            DatabaseUnavailable: the rows cannot be written.
        """
        await self._leases.begin()
        pause_s = min(max(self._idle_s / 4, 0.05), _TEND_S)
        self._tending = [asyncio.create_task(self._tend(self.sweep, pause_s, "idle sessions cannot leave memory"))]
        if self._leases.pause_s is not None:
            renewing = self._tend(self.renew, self._leases.pause_s, "the lease of sessions cannot be renewed")
            self._tending.append(asyncio.create_task(renewing))

    async def close(self, within_s: float) -> None:
        """Take nothing more, let calls end, and save every session at once; then free everything.

        Calls have half of the time. What cannot be saved is lost, and its row says so; what the time was too short for
        goes on from its last save.

        Args:
            within_s: how long all of it may take.
        """
        ends = Deadline.after(within_s)
        self._line.close()
        self._ending.set()
        if self._tending:
            await asyncio.wait(self._tending, timeout=within_s / 2)
        await self._line.settle(min(within_s / 2, ends.remaining_s()))
        self._line.stop()
        await self._line.settle(min(_LINGER_S, ends.remaining_s()))
        leaving = [asyncio.create_task(self._dismiss(seat)) for seat in self._line.seats() if seat.live is not None]
        if leaving:
            _, late = await asyncio.wait(leaving, timeout=ends.remaining_s())
            for task in late:
                task.cancel()
        await do(self._leases.end, "other servers wait for this one's sessions", _log)
        self._waking.close()
        self._keeper.close()

    async def sweep(self) -> int:
        """Save what was idle for long, let it leave memory, and return how many did."""
        return await self.room.sweep(self._now_ns() - round(self._idle_s * 1e9))

    async def renew(self) -> None:
        """Show other servers that this one lives; what they took meanwhile is forgotten.

        Raises:
            DatabaseUnavailable: it does not answer.
        """
        await self._leases.renew()
        await asyncio.gather(*(self.room.evict(seat) for seat in self._line.seats() if not self._leases.holds(seat)))

    async def tidy(self, before_ns: int) -> int:
        """Take away saves that no session leads to; `SessionKeeper.tidy` says how."""
        return await self._keeper.tidy(before_ns)

    @property
    def in_memory(self) -> int:
        """How many sessions have an instance."""
        return sum(seat.live is not None for seat in self._line.seats())

    # ---------------------------------------------------------------- sessions

    async def open(
        self,
        tenant: int,
        reference: str,
        options: SessionOptions | None = None,
        *,
        deadline: Deadline = NEVER,
        snapshot: Snapshot | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Make a session. Once this returns it outlasts any crash.

        Args:
            tenant: whose it is.
            reference: what it runs; which version that is is decided now.
            options: what it is given.
            deadline: when it must be ready.
            snapshot: what it goes on from, and saves at once; None for a new instance.
            session_id: a UUID that was never used, None for one that is made now.

        Raises:
            NotFound: there is no such function, or it is another tenant's.
            NotSupported: it is granted CUDA.
            NotCapturable: the module's instances cannot be saved.
            InvalidArgs: the environment cannot be passed on.
            InvalidRequest: the ID is no UUID.
            Conflict: there is a session of that ID.
            BodyTooLarge: what it is given is longer than 1 MiB.
            QuotaExceeded: the tenant may have no more instances, or sessions.
            CapacityExhausted: nobody may.
            Draining: the service is ending.
            TensorWasmError: what starting or restoring raises, and the database.
        """
        given = options or SessionOptions()
        check_environment(given.env)
        identity = str(uuid.uuid4()) if session_id is None else checked_id(session_id)
        resolved = await self._waking.resolve(tenant, reference)
        now = self._clock.unix_ms()
        record = SessionRecord(
            id=identity,
            tenant=tenant,
            function_id=resolved.version.function_id,
            version=resolved.version.number,
            status="fresh" if snapshot is None else "lost",  # until it is saved it is never made anew
            options=given,
            save=None,
            calls=0,
            saved_calls=0,
            rewinds=0,
            created_unix_ms=now,
            used_unix_ms=now,
        )

        async def work(errand: Operation) -> Session:
            await self._waking.open(errand.seat, record, resolved, snapshot, deadline)
            return errand.seat.show()

        return await self._send(tenant, identity, work, deadline)

    async def call(self, tenant: int, session_id: str, ask: SessionCall) -> Invocation:
        """Call an export of a session, brought back first if it is not in memory.

        State stays as the guest left it, also after a trap or a timeout. A caller that is cancelled ends its guest.

        Raises:
            NotFound: there is no such session, or its function is gone, or it is another tenant's.
            Conflict: it is lost, or is being closed.
            TooManyArgs: more than 256 arguments.
            RateLimited: too many calls of it are waiting.
            InvokeTimeout: the deadline passed, before its turn came or later.
            ArtifactCorrupt: its saved state cannot be read.
            Draining: the service is ending.
            TensorWasmError: what `LiveInstance.call` raises; of a durable call, what saving raises: the call was made
                then, and its effects are in memory.
        """
        if len(ask.args) > MAX_ARGS:
            raise TooManyArgs(f"{len(ask.args)} arguments: at most {MAX_ARGS}")

        async def work(errand: Operation) -> Invocation:
            return await self._call(errand, ask)

        return await self._send(tenant, session_id, work, ask.deadline or NEVER)

    async def get(self, tenant: int, session_id: str) -> Session:
        """Return a session as it is now.

        Raises:
            NotFound: there is none, or it is another tenant's.
        """
        seat = self._line.find(tenant, session_id)
        return seat.show() if seat is not None else Session(await self._waking.read(tenant, session_id))

    async def list(self, tenant: int, after: str | None = None, limit: int = USUAL_PAGE) -> tuple[Session, ...]:
        """Return a tenant's sessions, oldest first.

        Raises:
            InvalidRequest: ``after`` is no cursor, or the limit is not 1 to 1000.
        """
        found = await self._desk.read(rows.list_sessions, tenant, parse_cursor(after), checked_limit(limit))
        pairs = ((record, self._line.find(tenant, record.id)) for record in found)
        return tuple(Session(record) if seat is None else seat.show() for record, seat in pairs)

    async def save(
        self,
        tenant: int,
        session_id: str,
        use: Callable[[SessionRecord, str], _Value],
        deadline: Deadline = NEVER,
    ) -> _Value:
        """Save a session now, unless it is, and have something done with the save, which stays until that is done.

        Args:
            tenant: whose it is.
            session_id: which; of one that is lost it is what was saved last.
            use: is given the session and the name of the save in the store, on another thread.
            deadline: when its turn must have come.

        Raises:
            NotCapturable: it holds what cannot be saved.
            TensorWasmError: what `call` raises before its guest runs, what saving raises, and what ``use`` raises.
        """

        async def work(errand: Operation) -> _Value:
            seat = errand.seat
            if (await self._waking.known(seat)).save is None:
                await self._waking.wake(seat, deadline)
            await self._keeper.persist(seat)
            record = seat.known()
            return await self._keeper.run(use, record, session_name(record.id, record.save or ""))

        return await self._send(tenant, session_id, work, deadline)

    async def end(self, tenant: int, session_id: str) -> None:
        """End a session for good: its running call too, and what waits behind it.

        Raises:
            NotFound: there is none, or it is another tenant's.
            DatabaseUnavailable: it is still there.
        """

        async def work(errand: Operation) -> None:
            await self._end(errand.seat)

        await self._send(tenant, session_id, work, NEVER, last=True)

    # ---------------------------------------------------------------- what errands do

    async def _send(
        self, tenant: int, session_id: str, work: Work[_Value], deadline: Deadline, *, last: bool = False
    ) -> _Value:
        """Have something done with a session while it is this server's; what came of it counts if it still is then."""

        async def held(errand: Operation) -> _Value:
            seat = errand.seat
            try:
                done = await work(errand)
                await self._leases.require()
            except TensorWasmError as error:
                if self._leases.holds(seat) or isinstance(error, SessionElsewhere):
                    raise
            else:
                if self._leases.holds(seat):
                    return done
            finally:
                await self.room.settle(seat)
            raise SessionElsewhere("")

        return await self._line.send(self._line.seat(tenant, session_id), held, deadline, last=last)

    async def _call(self, errand: Operation, ask: SessionCall) -> Invocation:
        seat = errand.seat
        await self._waking.wake(seat, errand.deadline)
        live, resolved = seat.require_live()
        await self._keeper.mark(seat)
        if errand.left:
            raise asyncio.CancelledError
        ends = Deadline.after(resolved.usual_ns / 1e9) if ask.deadline is None else ask.deadline
        call = partial(live.call, ask.export, ask.args, input=ask.input, deadline=ends)
        try:
            return await self._visit(errand, live, call, len(ask.input or b""))
        finally:
            if ask.durable:
                await self._keeper.persist(seat)

    async def _visit(
        self, errand: Operation, live: Live, call: Callable[[], Invocation], given_bytes: int
    ) -> Invocation:
        """Let a guest run; whatever ends it, the session can be called again."""
        seat = errand.seat
        seat.guest = live
        outcome = None
        try:
            outcome = await self._waking.run(call)
            return outcome
        finally:
            self._note(seat.tenant, outcome, given_bytes)
            seat.guest = None
            seat.count_call(self._clock.unix_ms())
            self.room.narrow(seat)
            if errand.left or seat.closing:  # it may have been cancelled
                live.resume()

    def _note(self, tenant: int, outcome: Invocation | None, given_bytes: int) -> None:
        """Tell what a call used, of one that failed as much as is known."""
        if self._ledger is None:
            return
        if outcome is None:
            self._ledger.note(tenant, 1, 1, 0, 0, 0, given_bytes)
            return
        sent_bytes = len(outcome.stdout) + len(outcome.stderr) + sum(map(len, outcome.chunks))
        self._ledger.note(tenant, 1, 0, int(outcome.elapsed_s * 1e6), 0, 0, given_bytes, sent_bytes)

    async def _end(self, seat: SessionEntry) -> None:
        record = await self._waking.known(seat)
        if not await self._desk.write(rows.delete_session, record):
            await self._leases.refuse(seat)
            raise NotFound("there is no such session")
        seat.record = None
        if record.save is not None:
            seat.stale.add(record.save)
        await self.room.empty(seat)
        await self._keeper.drop_stale(seat)

    async def _dismiss(self, seat: SessionEntry) -> None:
        """Save a session as the service ends, or say that it is lost."""
        try:
            async with seat.turn:
                if seat.record is not None:
                    with suppress(TensorWasmError):
                        await self.room.leave(seat)
                if seat.live is not None and seat.record is not None and seat.record.status == "volatile":
                    await self._keeper.lose(seat)
                await self.room.empty(seat)
        except TensorWasmError as error:
            _log.warning("session %s ends without a word: %s", seat.id, error.kind)

    # ---------------------------------------------------------------- the rest

    async def _tend(self, work: Callable[[], Awaitable[object]], pause_s: float, failed: str) -> None:
        """Do something every so often, until the service ends."""
        while not self._ending.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause_s)
                return
            await do(work, failed, _log)

    def _now_ns(self) -> int:
        return round(self._clock.monotonic_s() * 1e9)


def checked_id(text: str) -> str:
    """Return a UUID that a session may have.

    Raises:
        InvalidRequest: it is none, in small letters.
    """
    if is_id(text):
        return text
    raise InvalidRequest("a session's ID is a UUID in small letters")
