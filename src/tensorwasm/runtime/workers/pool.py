"""`WorkerExecutor`: runs requests in worker processes, one or more a device."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, Self

from msgspec import structs

from tensorwasm import settings
from tensorwasm.errors import CapacityExhausted, InvalidArgs, TensorWasmError
from tensorwasm.gpu.limits.turns import FREE, TurnOrder, TurnScheduler
from tensorwasm.gpu.resources.window_heap import window_bytes, window_width
from tensorwasm.runtime.api.lazy_device import checked_quota
from tensorwasm.runtime.deploy.kernel_folder import open_kernel_folder
from tensorwasm.runtime.deploy.kernel_texts import find_kernels
from tensorwasm.runtime.executor.request import ExecutorStatistics, Request, RunningCalls, check_request
from tensorwasm.runtime.invoke.invocation import Invocation, Listener, PendingInvocation
from tensorwasm.runtime.workers.broker_client import BrokerClient
from tensorwasm.runtime.workers.conversation.flight import Flight, Ticket
from tensorwasm.runtime.workers.conversation.loop_reader import LoopReader
from tensorwasm.runtime.workers.devices import list_devices
from tensorwasm.runtime.workers.isolation import Kernels, check_workers, find_pipes, usual_isolation
from tensorwasm.runtime.workers.kernels.plans import WorkerPlans
from tensorwasm.runtime.workers.kernels.service import EarlyKernel, KernelService
from tensorwasm.runtime.workers.lifecycle import Backoff, State
from tensorwasm.runtime.workers.options import Notices, WorkerOptions, WorkerStatistics
from tensorwasm.runtime.workers.placement import GpuShares, PlacedWorker, Start, choose
from tensorwasm.runtime.workers.worker import Worker
from tensorwasm.values import MIB, Isolation

WORKERS_PER_DEVICE: Final = 4
"""Under isolation by process. A context on a GPU costs about 550 MB of its memory and 100 ms."""

LONG_S: Final = 60.0
"""For how long a tenant whose kernels ran long is taken to have such kernels."""

CLOSE_S: Final = 5.0
"""What requests that run get to end when the executor is closed."""

_GONE_S: Final = 30.0
_ASKING: Final = Backoff(longest_s=0.1, idle_ends=sys.maxsize)  # a broker may come again, and asking is cheap

_log: Final = logging.getLogger(__name__)


class WorkerExecutor:
    """Runs requests in worker processes. Any thread may use it; close it, or use it as a context manager.

    A worker that dies, hangs, loses its device or breaks the protocol ends its own requests, as `DeviceFault`, and is
    replaced; other workers are not affected. No request is ever made twice.

    Isolation is ``stream`` by default on the emulator, which confines every kernel. On CUDA it is ``guarded``, or
    ``process`` where there is no ptxas or workers have shares. Under ``guarded`` and ``stream`` tenants share
    processes; choose ``stream`` on CUDA only for tenants who trust each other: they could read and break each other's
    memory on the GPU. Both need a ptxas for the GPU on this machine: the driver's own compiler, known to crash, would
    run in a process of all.

    Under ``guarded`` a device has a second worker, for tenants whose kernels run long: for a minute after one did,
    their requests go there. Tenants who had requests in a worker that was lost with its device have workers of their
    own, as under ``process``, from then on.

    Workers with shares of one GPU run on multiprocessors of their own, as long as all of them have shares; one without
    runs on all. A worker whose share does not fit beside the others is given up as `DeviceUnavailable` at its start.

    Args:
        device: ``emulator``, ``cuda:N``, or ``cuda`` for every GPU of this machine; or several of these.
        isolation: what keeps tenants apart; None for the device's default.
        workers: most workers of one device under isolation by process, at least 1; otherwise there is one.
        options: other options of workers; device and place are set here.
        mps: have workers join the MPS daemon. Only with trusted kernels: under MPS a fault ends the neighbours too.
        kernels: ``trusted`` if the operator vouches for every kernel.
        shares: multiprocessors, at least so many, by tenant, for tenants whose workers are not to have what ``options``
            says. Only under isolation by process, where a worker is one tenant's.
        broker: socket of a `tensorwasm.runtime.workers.broker.WorkerBroker`, whose workers are used where tenants share
            one, and whose device and isolation these are.

    Attributes:
        devices: names of the devices, ``emulator`` or ``cuda:N``.
        isolation: what keeps tenants apart.

    Raises:
        InvalidArgs: no such device, MPS together with untrusted kernels, or a number out of range.
        DeviceUnavailable: there is no GPU, or MPS was asked for and there is no daemon.
    """

    def __init__(
        self,
        device: str | Sequence[str] = "emulator",
        *,
        isolation: Isolation | None = None,
        workers: int = WORKERS_PER_DEVICE,
        options: WorkerOptions | None = None,
        mps: bool = False,
        kernels: Kernels = "untrusted",
        shares: Mapping[str, int] | None = None,
        broker: Path | None = None,
    ) -> None:
        self._options = replace(options or WorkerOptions(), pipes=find_pipes(kernels) if mps else None)
        self._broker = None if broker is None else BrokerClient(broker)
        if self._broker is not None:
            found = self._broker.describe()
            device, isolation = found.devices, found.isolation
            if isolation == "process":  # tenants share no workers, so each process has its own
                self._broker = None
        self.devices = list_devices((device,) if isinstance(device, str) else device)
        emulated = all(each == "emulator" for each in self.devices)
        self._most = workers
        self._shares = dict(shares or {})
        divided = bool(self._shares) or self._options.multiprocessors is not None
        self.isolation: Isolation = isolation or usual_isolation(emulated=emulated, divided=divided)
        check_workers(workers, self.isolation, self._shares, self._options)
        sizes = [share for share in (*self._shares.values(), self._options.multiprocessors) if share is not None]
        self._device_shares = [GpuShares(sizes) for _ in self.devices]
        self._lock = threading.Lock()
        self._placed: dict[int, PlacedWorker] = {}
        self._leaving: list[Worker] = []
        self._numbers = count(1)
        self._requests = count(1)
        self._uses = count(1)
        self._running = RunningCalls()
        self._long_until_s: dict[str, float] = {}
        self._apart: set[str] = set()
        self._weights: dict[int, Mapping[str, int]] = {}  # by worker, of the tenants who keep its device busy
        self._turns = [TurnScheduler(self._weigh) for _ in self.devices]
        guarded = self.isolation == "guarded"
        self._kernels = KernelService(open_kernel_folder()) if guarded and not emulated else None
        self._plans = WorkerPlans()
        self._reader: LoopReader | None = None
        self._closed = False

    def submit(self, request: Request, listener: Listener | None = None) -> PendingInvocation:
        """Take a request and return at once; see `tensorwasm.runtime.executor.request.Executor.submit`.

        It may also raise `DeviceUnavailable`, if the worker that it would be for was given up.
        """
        ticket = PendingInvocation()
        worker = self._take(request, ticket, listener)
        self._running.enter(request.tenant, ticket)
        worker.begin()
        return ticket

    def send(self, request: Request, ticket: Ticket) -> None:
        """Take a request as `submit` does; the ticket gets its outcome, maybe before this returns."""
        tenant, running = request.tenant, self._running
        running.begin(tenant)
        try:
            worker = self._take(request, ticket, ended=partial(running.end, tenant))
        except BaseException:
            running.refuse(tenant)
            raise
        worker.begin()

    def _take(
        self,
        request: Request,
        ticket: Ticket,
        listener: Listener | None = None,
        ended: Callable[[Invocation | BaseException], object] | None = None,
    ) -> Worker:
        """Leave a request with a worker, which has to begin."""
        check_request(request)
        with self._lock:
            if self._closed:
                raise CapacityExhausted("the executor is closed")
            worker = self._place(request)
            request = self._within_quota(request, worker)
            worker.submit(Flight(next(self._requests), request, listener, worker, ticket, ended))
        return worker

    def read_on(self, reader: LoopReader) -> None:
        """Have an event loop read what the processes of workers say that are started from now on."""
        self._reader = reader

    def connect(self, link: socket.socket, device: int, *, long: bool = False) -> None:
        """Give the worker that tenants share on a device, by its index, the connection of a front.

        The worker is that for tenants whose kernels run long, or the usual one. The link is its end, and closed here.

        Raises:
            InvalidArgs: there is no such device, or no such worker on it.
            CapacityExhausted: the executor is closed, or the worker is leaving.
            DeviceUnavailable: the worker was given up.
        """
        try:
            with self._lock:
                if self._closed:
                    raise CapacityExhausted("the executor is closed")
                shared = self.isolation == "guarded" or (self.isolation == "stream" and not long)
                if not shared or not 0 <= device < len(self.devices):
                    raise InvalidArgs(f"there is no such worker that tenants share on the device {device}")
                self._forget_early_failures()
                placed = self._find_shared(device, long=long)
                placed.worker.connect(link)
                placed.used_at = next(self._uses)
        except TensorWasmError:
            link.close()
            raise

    def begin(self) -> None:
        """Start what tenants share, a worker a device, before it is needed; does nothing if they share none."""
        with self._lock:
            if not self._closed and self.isolation != "process":
                for device in range(len(self.devices)):
                    self._find_shared(device, long=False)

    def _find_shared(self, device: int, *, long: bool) -> PlacedWorker:
        """Return a device's worker for all tenants, started if there is none. The lock is held."""
        for placed in self._placed.values():
            if (placed.device, placed.long, placed.worker.tenant) == (device, long, None):
                return placed
        return self._start(Start(device), "", None, long=long)

    def _forget_early_failures(self) -> None:
        """Forget workers that were given up before anybody needed them: the device may be there now."""
        for number, placed in [*self._placed.items()]:
            if not placed.used_at and placed.worker.lifecycle.state is State.FAILED:
                del self._placed[number]

    def prepare(self, tenant: str, module: bytes, gpu_bytes: int | None = None) -> None:
        """Have a module's kernels compiled before they are called, as far as their texts are found in it.

        Reads the module; what is compiled is not waited for. Does nothing where no guarded workers are. The cap is a
        request's (`Request.gpu_bytes`).
        """
        if self._kernels is None:
            return
        current = settings.current()
        most_bytes = min(checked_quota(gpu_bytes, current.gpu_quota_mib), current.gpu_session_mib * MIB)
        width = window_width(window_bytes(most_bytes))
        for text, entry in find_kernels(module):
            self._kernels.prepare(EarlyKernel(tenant, text, entry, width))

    @property
    def prepared(self) -> int:
        """Kernels compiled before anybody asked for them."""
        return 0 if self._kernels is None else self._kernels.prepared

    def statistics(self) -> ExecutorStatistics:
        """Return a snapshot."""
        charged: dict[str, tuple[int, int]] = {}
        for worker in self.workers():
            for tenant, device_bytes, pinned_bytes in worker.charges:
                before = charged.get(tenant, (0, 0))
                charged[tenant] = before[0] + device_bytes, before[1] + pinned_bytes
        return self._running.statistics(charged)

    def workers(self) -> tuple[WorkerStatistics, ...]:
        """Return a snapshot of every worker that takes requests or was given up, by number."""
        with self._lock:
            return tuple(placed.worker.statistics() for placed in self._placed.values())

    def drain(self, limit_s: float = CLOSE_S) -> None:
        """Take no more requests, and wait until every worker is gone; what has not ended by the limit is ended."""
        with self._lock:
            self._closed = True
            for placed in self._placed.values():
                placed.worker.order(FREE)  # what they still have ends sooner side by side than in turns
            leaving = self._leaving = [*self._leaving, *(placed.worker for placed in self._placed.values())]
            self._placed.clear()
        for worker in leaving:
            worker.drain(limit_s)
        ends_at_s = time.monotonic() + limit_s + _GONE_S
        for worker in leaving:
            worker.join(max(0.0, ends_at_s - time.monotonic()))
        if self._kernels is not None:
            self._kernels.close()
        self._plans.close()

    def close(self) -> None:
        """End what still runs and release everything. Idempotent; blocks."""
        self.drain(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, request: Request) -> Worker:
        """Return the worker that a request is for. The lock is held."""
        tenant = request.tenant
        owner = tenant if self.isolation == "process" or (request.is_native and tenant in self._apart) else None
        long = owner is None and request.on_device and self._runs_long(tenant)
        if owner is None and len(self.devices) == 1:
            for placed in self._placed.values():
                if placed.long == long and placed.worker.tenant is None and placed.worker.lifecycle.takes:
                    return placed.worker
        self._leaving = [worker for worker in self._leaving if not worker.join(0.0)]
        self._forget_early_failures()
        loads = [placed.load(number) for number, placed in self._placed.items()]
        decision = choose(loads, owner, len(self.devices), self._most, long=long)
        if decision is None:
            raise self._explain(tenant)
        if isinstance(decision, Start):
            placed = self._start(decision, tenant, owner, long=long)
        else:
            placed = self._placed[decision.number]
        placed.used_at = next(self._uses)
        return placed.worker

    def _runs_long(self, tenant: str) -> bool:
        """Return whether a tenant's kernels ran long in the last minute."""
        until_s = self._long_until_s.get(tenant)
        if until_s is None or time.monotonic() < until_s:
            return until_s is not None
        del self._long_until_s[tenant]
        return False

    def _note_long_work(self, tenant: str) -> None:
        with self._lock:
            self._long_until_s[tenant] = time.monotonic() + LONG_S

    def _weigh(self, tenant: str) -> int:
        return max((weights.get(tenant, 1) for weights in self._weights.values()), default=1)

    def _note_fault(self, tenants: frozenset[str]) -> None:
        if self.isolation == "guarded":
            with self._lock:
                self._apart |= tenants

    def _note_wish(self, device: int, number: int, tenants: Mapping[str, int]) -> None:
        with self._lock:
            wanted = tenants if number in self._placed else {}  # a worker that leaves has no turns
            self._weights[number] = {**self._weights.get(number, {}), **wanted}  # some end their turns now
            self._order(self._turns[device].wish(number, wanted))
            self._weights[number] = wanted
            if not wanted:
                del self._weights[number]

    def _note_turn_end(self, device: int, number: int, turn: int, late: bool) -> None:  # noqa: FBT001 - as it is told
        with self._lock:
            self._order(self._turns[device].end(number, turn, late=late))

    def _order(self, orders: Mapping[int, TurnOrder]) -> None:
        """Tell workers whose turn it is; one that leaves has its place no more."""
        for number, order in orders.items():
            if number in self._placed:
                self._placed[number].worker.order(order)

    def _within_quota(self, request: Request, worker: Worker) -> Request:
        """Return a request whose cap leaves out what its tenant holds in other workers, as of their last heartbeats."""
        if request.gpu_bytes is None or len(self._placed) < 2:
            return request
        others = [placed.worker.held_by(request.tenant) for placed in self._placed.values() if placed.worker != worker]
        return structs.replace(request, gpu_bytes=max(0, request.gpu_bytes - sum(others)))

    def _start(self, start: Start, tenant: str, owner: str | None, *, long: bool) -> PlacedWorker:
        if start.instead_of is not None:
            idle = self._placed.pop(start.instead_of).worker
            self._order(self._turns[start.device].wish(start.instead_of, ()))
            idle.drain(0.0)
            self._leaving.append(idle)
            self._device_shares[start.device].leave(start.instead_of)  # it runs nothing, and is about to go
        number = next(self._numbers)
        options = self._specify(start.device, number, self._shares.get(tenant, self._options.multiprocessors))
        if self.isolation == "guarded":
            options = replace(options, isolation="guarded" if owner is None else "process")
        told = partial(self._note_wish, start.device, number), partial(self._note_turn_end, start.device, number)
        notices = Notices(self._note_long_work, self._note_fault, *told, plan=self._plans.submit)
        if self._kernels is not None:
            notices = replace(notices, compile=self._kernels.submit, know=self._kernels.know)
        if self._broker is None or owner is not None:
            worker = Worker(number, options, owner, notices, reader=self._reader)
        else:
            options = replace(options, backoff=_ASKING)
            connector = partial(self._broker.connect, start.device, long=long)
            worker = Worker(number, options, owner, notices, connector, self._reader)
        placed = self._placed[number] = PlacedWorker(worker, start.device, long)
        return placed

    def _specify(self, device: int, number: int, share: int | None) -> WorkerOptions:
        """Return a new worker's options, with a place for its share on a GPU."""
        device_shares, name = self._device_shares[device], self.devices[device]
        for other, placed in self._placed.items():
            if placed.device == device and placed.worker.lifecycle.state is State.FAILED:
                device_shares.leave(other)
        place = device_shares.take(number, share) if share is not None and name != "emulator" else None
        return replace(self._options, device=name, multiprocessors=share, place=place, isolation=self.isolation)

    def _explain(self, tenant: str) -> TensorWasmError:
        """Return why a tenant's request finds no worker."""
        for placed in self._placed.values():
            if not placed.worker.lifecycle.takes and placed.worker.tenant in {None, tenant}:
                return placed.worker.refusal()
        return CapacityExhausted(f"all {len(self._placed)} workers are busy with other tenants' requests")
