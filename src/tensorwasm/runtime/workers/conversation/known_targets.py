"""`KnownTargets`: what a process was told of the calls that it is to make, and what it must be told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.runtime.deploy.lru_cache import LruCache
from tensorwasm.runtime.workers.conversation.flight import Flight, make_target, target_key
from tensorwasm.runtime.workers.conversation.outbox import send_blob
from tensorwasm.runtime.workers.frames import ForgetFrame, InvokeFrame, KernelFrame, NoKernelFrame, WorkerFrame
from tensorwasm.runtime.workers.outcomes import describe_error

_TARGETS: Final = 4096
_TARGET_BYTES: Final = 256 << 20


class KnownTargets:
    """The targets that a process knows, the last ones used of what is bounded, and numbers for what it is told."""

    def __init__(self) -> None:
        self._targets: LruCache[int] = LruCache(_TARGETS, _TARGET_BYTES)
        self._numbers = count(1)

    def find(self, flight: Flight) -> InvokeFrame | None:
        """Return a request's only frame, None if it has more: its target is not known, or it has input."""
        request = flight.request
        if request.stdin or request.input:
            return None
        key, entries = target_key(request), self._targets.entries  # not `LruCache.get`: each request comes here
        if key not in entries:
            return None
        entries.move_to_end(key)
        return flight.frame(entries[key][0])

    def describe(self, flight: Flight) -> Iterator[WorkerFrame]:
        """Yield the frames of a request: the target and the blobs that the process lacks, and the call.

        All are sent in the order in which they are made.
        """
        request = flight.request
        key = target_key(request)
        target = self._targets.get(key)
        if target is None:
            module, target = next(self._numbers), next(self._numbers)
            gone = self._targets.put(key, target, len(request.module))
            yield from send_blob(module, request.module)
            yield make_target(request, target, module)
            yield from (ForgetFrame(each) for each in gone)
        blobs = []
        for data in (request.stdin, request.input):
            blobs.append(next(self._numbers) if data else None)
            if blobs[-1] is not None:
                yield from send_blob(blobs[-1], data)
        yield flight.frame(target, *blobs)

    def describe_kernel(self, ask: int, outcome: bytes | TensorWasmError) -> Iterator[WorkerFrame]:
        """Yield the frames of the answer to an ask."""
        if isinstance(outcome, bytes):
            blob = next(self._numbers)
            yield from send_blob(blob, outcome)
            yield KernelFrame(ask, blob)
        else:
            yield NoKernelFrame(ask, describe_error(ask, outcome))
