"""Functions that jobs call without a guest, and clocks that tests set."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace

from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.service.clock import Clock

FUNCTION_ID = "00000000-0000-4000-8000-00000000f00d"


class SetClock:
    """A clock that stands still until it is set; both of its times go on together, but for a wall clock that is moved.

    Attributes:
        now_ms: the wall clock.
        moved_ms: of that, what was set and has not passed.
    """

    def __init__(self, unix_ms=1_800_000_000_000):
        self.now_ms = unix_ms
        self.moved_ms = 0
        self.clock = Clock(lambda: self.now_ms + self.moved_ms, lambda: self.now_ms / 1000)


def resolved(params=(), function_id=FUNCTION_ID, version=1):
    """Return what a reference leads to: a function whose every export takes these."""
    plan = SimpleNamespace(params=params, results=("i32",))
    function = SimpleNamespace(
        choose=lambda export: export or "_start",
        prepared=SimpleNamespace(module=SimpleNamespace(plan=lambda _name: plan)),
    )
    return SimpleNamespace(
        record=SimpleNamespace(id=function_id), version=SimpleNamespace(number=version), function=function
    )


def invocation(value, chunks=()):
    """Return what a call gave."""
    return Invocation("run", (value,), ("i32",), 0, b"", b"", tuple(chunks), 0.0, None)


@dataclass(eq=False)
class FakeCall:
    """One attempt that a process makes.

    Attributes:
        job: as it was claimed.
        ask: what it asks.
        begun_ms: when.
        outcome: what comes of it.
        stopped: whether it was told to end; a slow one ends once `outcome` has something all the same.
        ended: whether it did.
    """

    job: object
    ask: object
    begun_ms: int
    outcome: asyncio.Future = field(repr=False)
    stopped: bool = False
    ended: bool = False


class FakeInvocations:
    """Calls whose outcomes the test says.

    Attributes:
        slow: a call that is cancelled does not end at once.
    """

    def __init__(self, now_ms):
        self.now_ms = now_ms
        self.calls: list[FakeCall] = []
        self.slow = False

    async def __call__(self, job, ask):
        call = FakeCall(job, ask, self.now_ms(), asyncio.get_running_loop().create_future())
        self.calls.append(call)
        try:
            return await asyncio.shield(call.outcome)
        except asyncio.CancelledError:
            call.stopped = True
            if self.slow and not call.outcome.done():
                await asyncio.wait([call.outcome])
            raise
        finally:
            call.ended = True

    @property
    def open(self):
        return [call for call in self.calls if not call.ended]
