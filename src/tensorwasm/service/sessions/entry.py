"""`SessionEntry`: one session as this process knows it; `Session` and `SessionCall`: what it shows and takes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tensorwasm.database.sessions import SessionRecord
from tensorwasm.service.sessions.instances import Live
from tensorwasm.tenancy.quotas import QuotaHold
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.service.functions.resolution import Resolved


@dataclass(frozen=True, slots=True)
class Session:
    """A session as it is now.

    Attributes:
        record: what is known of it; of one in memory with what its row does not say yet.
        in_memory: whether an instance waits for its next call; else the call brings it back first.
        save_error: kind of the error that its last save ended with, empty if that was well or there was none.
    """

    record: SessionRecord
    in_memory: bool = False
    save_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCall:
    """A call of a session.

    Attributes:
        export: None takes ``_start``, and where there is none, ``main``.
        args: for its parameters.
        input: what the guest reads with ``read-input`` from now on; None leaves what there is.
        deadline: when it must have ended, its waiting included; None takes the function's usual time.
        durable: whether to answer only once the state after it is saved.
    """

    export: str | None = None
    args: tuple[object, ...] = ()
    input: bytes | None = field(default=None, repr=False)
    deadline: Deadline | None = None
    durable: bool = False


@dataclass(slots=True, eq=False)
class SessionEntry:
    """One session, as one tenant asks for it. Used on the event loop only; whoever holds the turn changes it.

    Attributes:
        tenant: who asks; not always the owner.
        id: of the session.
        turn: held by one errand after the other, in the order in which they came.
        errands: that have it or wait for it.
        record: its row, and calls beyond it; None before it was read.
        live: the instance, None if there is none in memory.
        resolved: what it runs, None like the instance.
        holding: what the tenant's quotas are charged for the instance, None like the instance; as memory what it may
            grow to while it is called, what it has else.
        wide: it is charged for what it may grow to, and others may wait until it no longer is.
        guest: the instance while its guest runs.
        used_ns: when it was last used.
        closing: errands that close it: what else waits need not.
        stuck: the last save found that it cannot be saved; it is not tried again before its next call.
        save_error: as in `Session`.
        stale: saves that its row does not lead to, and which can go.
        term: of `tensorwasm.service.sessions.leases.Leases` in which the row became this server's to write.
    """

    tenant: int
    id: str
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    errands: int = 0
    record: SessionRecord | None = None
    live: Live | None = None
    resolved: Resolved | None = None
    holding: QuotaHold | None = None
    wide: bool = False
    guest: Live | None = None
    used_ns: int = 0
    closing: int = 0
    stuck: bool = False
    save_error: str = ""
    stale: set[str] = field(default_factory=set)
    term: int = 0

    @property
    def idle(self) -> bool:
        """Whether it has an instance that nobody wants just now."""
        return self.live is not None and self.errands == 0

    @property
    def dirty(self) -> bool:
        """Whether there is something to save."""
        return self.record is not None and self.record.status in {"live", "volatile"}

    def known(self) -> SessionRecord:
        """Return the row, which was read when the turn was taken."""
        assert self.record is not None  # noqa: S101 - `Sessions` reads it first
        return self.record

    def require_live(self) -> tuple[Live, Resolved]:
        """Return the instance and what it runs, which are there since it was woken."""
        assert self.live is not None  # noqa: S101 - `Sessions` wakes it first
        assert self.resolved is not None  # noqa: S101 - the two come together
        return self.live, self.resolved

    def show(self) -> Session:
        """Return what others are told."""
        return Session(self.known(), self.live is not None, self.save_error)

    def count_call(self, now_unix_ms: int) -> None:
        """Count a call that its guest has served."""
        record = self.known()
        self.record = replace(record, calls=record.calls + 1, used_unix_ms=now_unix_ms)
        self.stuck = False
