"""`Counter`: the worker's side of one connection: takes requests from it, and sends back outcomes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

from tensorwasm.errors import (
    TensorWasmError,
)
from tensorwasm.gpu.limits.turns import TurnOrder
from tensorwasm.runtime.executor.local import LocalExecutor
from tensorwasm.runtime.executor.request import STREAM_BYTES, Request
from tensorwasm.runtime.invoke.invocation import Invocation, Listener, OutputName, PendingInvocation
from tensorwasm.runtime.workers.child.answers import encode_outcome
from tensorwasm.runtime.workers.child.calls import RunningCall, ShortCall, Target, make_request, run_short
from tensorwasm.runtime.workers.child.crew import Crew
from tensorwasm.runtime.workers.child.parent_compiler import ParentCompiler
from tensorwasm.runtime.workers.child.parent_link import OutputWindow, ParentLink
from tensorwasm.runtime.workers.child.stalls import Stalls
from tensorwasm.runtime.workers.conversation.outbox import split
from tensorwasm.runtime.workers.frames import (
    BeatFrame,
    BlobFrame,
    BlobPartFrame,
    BrokenFrame,
    CancelFrame,
    Charge,
    CreditFrame,
    ForgetFrame,
    InvokeFrame,
    KernelFrame,
    NoKernelFrame,
    OutputFrame,
    SickFrame,
    TargetFrame,
    TurnFrame,
    WorkerFrame,
)
from tensorwasm.runtime.workers.outcomes import rebuild_error
from tensorwasm.runtime.workers.wire import encode
from tensorwasm.values import Deadline

_ANSWERERS: Final = 4

_log = logging.getLogger(__name__)


class CallHost(Protocol):
    """What makes the calls of all connections."""

    executor: LocalExecutor
    crew: Crew[Any]
    stalls: Stalls
    weights: dict[str, int]  # of tenants, as noted

    def note_weight(self, tenant: str, weight: int) -> None:
        """Note a tenant's weight, as of a call."""

    def obey(self, order: TurnOrder) -> None:
        """Have the parent's order for turns kept."""

    def look_after_device(self, teller: Counter) -> str:
        """Return why the device does not answer, empty if it does. The process at the teller's other end was told."""


class Counter:
    """Serves one connection. `take`, `flush` and `close` are for the thread that reads; the rest is for any thread.

    Args:
        line: the connection.
        host: makes the calls.
        compiler: gets the kernels that the parent answers; None asks for none.
        front: whether a front is at the other end, which has no say in anything but its own calls.

    Attributes:
        tenants: whose calls came over the connection.
        line: the connection.
        closed: nothing is taken any more.
        finished: outcomes of the calls that were made on the thread that reads, and are to be sent.
    """

    def __init__(
        self, line: ParentLink, host: CallHost, compiler: ParentCompiler | None = None, *, front: bool = False
    ) -> None:
        self.tenants: set[str] = set()
        self.closed = False
        self._stopped = threading.Event()
        self._compiler = compiler
        self.line = line
        self._host = host
        self._incoming: dict[int, tuple[int, bytearray]] = {}
        self._blobs: dict[int, bytes] = {}
        self._targets: dict[int, Target] = {}
        self._calls: dict[int, RunningCall | ShortCall] = {}
        self.finished: list[tuple[int, Invocation | Exception]] = []
        self._told_sickness = threading.Lock()  # held for good once it was told
        self._reader = 0
        # What a call ends on may be the thread that all fibers run on: it is not to wait until an answer is sent.
        self._answers = ThreadPoolExecutor(_ANSWERERS, thread_name_prefix="tensorwasm-answer")
        self._handlers: dict[type[WorkerFrame], Callable[[Any], None]] = {
            BlobFrame: self._open_blob,
            BlobPartFrame: self._fill_blob,
            TargetFrame: self._aim,
            ForgetFrame: self._forget,
            InvokeFrame: self._invoke,
            CancelFrame: self._cancel,
            CreditFrame: self._credit,
        }
        if not front:
            self._handlers |= {
                TurnFrame: self._obey,
                KernelFrame: self._take_kernel,
                NoKernelFrame: self._take_no_kernel,
            }

    def take(self, frame: WorkerFrame) -> None:
        """Do what a frame says; calls are only started.

        Raises:
            BrokenFrame: the parent does not keep to the protocol.
        """
        self._reader = threading.get_ident()
        handler = self._handlers.get(type(frame))
        if handler is None:
            raise BrokenFrame(f"a {type(frame).__name__} where none belongs")
        handler(frame)

    def close(self) -> None:
        """Stop all calls, without sending their outcomes: the connection has ended."""
        self.closed = True
        self._stopped.set()
        for call in tuple(self._calls.values()):
            call.hush()
            call.stop()
        self._answers.shutdown(wait=False)
        for each in (self._blobs, self._incoming, self._targets, self.finished):
            each.clear()  # this is part of cycles, and they are collected seldom

    def start_beat(self, every_s: float) -> None:
        """Tell the other end every few seconds that this process lives, until this is closed or it has gone."""
        threading.Thread(target=self._beat, args=(every_s,), name="tensorwasm-beat", daemon=True).start()

    def _beat(self, every_s: float) -> None:
        number = 0
        while not self._stopped.wait(every_s):
            number += 1
            try:
                self.line.send(BeatFrame(number, self._charges()))
            except OSError:
                return

    def _obey(self, frame: TurnFrame) -> None:
        self._host.obey(TurnOrder(frame.contested, frame.number, frame.tenant or "", frame.length_ns))

    def tell(self, frame: WorkerFrame) -> None:
        """Send a frame, unless the other end has gone. Never waits."""
        self._post(encode(frame))

    def tell_sickness(self, message: str) -> None:
        """Tell that the device is lost, once. Never waits."""
        if self._told_sickness.acquire(blocking=False):
            self.tell(SickFrame(message))

    def _soon(self, function: Callable[..., object], *args: object) -> bool:
        """Call a function that may wait on another thread; return False if the connection has ended."""
        try:
            self._answers.submit(function, *args)
        except RuntimeError:
            return False
        return True

    def _charges(self) -> tuple[Charge, ...]:
        held = sorted(self._host.executor.charges().items())
        return tuple(Charge(tenant, *each) for tenant, each in held if tenant in self.tenants)

    def _open_blob(self, frame: BlobFrame) -> None:
        if frame.blob in self._blobs or frame.blob in self._incoming:
            raise BrokenFrame(f"the number {frame.blob} is taken")
        if frame.size_bytes:
            self._incoming[frame.blob] = frame.size_bytes, bytearray()
        else:
            self._blobs[frame.blob] = b""

    def _fill_blob(self, frame: BlobPartFrame) -> None:
        size_bytes, data = self._incoming.get(frame.blob, (0, bytearray()))
        data += frame.data
        if len(data) > size_bytes:
            raise BrokenFrame(f"more bytes for the blob {frame.blob} than were announced")
        if len(data) == size_bytes:
            del self._incoming[frame.blob]
            self._blobs[frame.blob] = bytes(data)

    def _aim(self, frame: TargetFrame) -> None:
        module = self._blobs.pop(frame.module, None)
        if module is None or frame.target in self._targets:
            raise BrokenFrame(f"there is no blob {frame.module}, or the number {frame.target} is taken")
        self._targets[frame.target] = Target.of(frame, module)
        self.tenants.add(frame.tenant)

    def _forget(self, frame: ForgetFrame) -> None:
        self._blobs.pop(frame.number, None)
        self._targets.pop(frame.number, None)

    def _take_kernel(self, frame: KernelFrame) -> None:
        self._answer_ask(frame.ask, self._blobs.pop(frame.blob, None))

    def _take_no_kernel(self, frame: NoKernelFrame) -> None:
        self._answer_ask(frame.ask, rebuild_error(frame.failure))

    def _answer_ask(self, ask: int, outcome: bytes | TensorWasmError | None) -> None:
        if self._compiler is None or outcome is None:
            raise BrokenFrame(f"an answer to the ask {ask} which is none")
        self._compiler.answer(ask, outcome)

    def _cancel(self, frame: CancelFrame) -> None:
        call = self._calls.get(frame.request)
        if call is None:
            return  # it was answered while this was on its way
        call.hush()
        if frame.stop:
            call.stop()

    def _credit(self, frame: CreditFrame) -> None:
        call = self._calls.get(frame.request)
        if call is not None:
            call.credit(frame.parts)

    def _invoke(self, frame: InvokeFrame) -> None:
        target = self._targets.get(frame.target)
        if target is None or frame.request in self._calls:
            raise BrokenFrame(f"there is no target {frame.target}, or the request {frame.request} is under way")
        try:
            stdin = self._blobs.pop(frame.stdin) if frame.stdin is not None else b""
            given = self._blobs.pop(frame.input) if frame.input is not None else b""
        except KeyError as error:
            raise BrokenFrame(f"there is no blob {error}") from None
        if self._host.weights.get(target.key.tenant) != target.frame.weight:
            self._host.note_weight(target.key.tenant, target.frame.weight)
        if frame.stream or not target.grants.cuda or not self._make_short(frame, target, stdin, given):
            self._make_elsewhere(frame, make_request(frame, target, stdin, given))

    def _make_short(self, frame: InvokeFrame, target: Target, stdin: bytes, given: bytes) -> bool:
        """Make a call on this thread, if it is likely to be short; return whether it was."""
        crew, executor, kind = self._host.crew, self._host.executor, target.frame.memory_kind
        if self.line.stalled or not crew.watched:  # its answer, or the call itself, may have to wait
            return False
        began_s, tenant = time.monotonic(), target.key.tenant
        if not self._host.stalls.may_lead(tenant, began_s):
            return False
        if len(stdin) > target.key.limits.stdin_bytes or len(given) > STREAM_BYTES:
            return False  # to be refused
        try:
            found = executor.begin_short(target.key, frame.export, target.grants, kind, frame.gpu_bytes, began_s)
        except TensorWasmError:
            return False  # as the outcome of a request
        if found is None:
            return False
        target.key, function, plan = found
        call = self._calls[frame.request] = ShortCall()
        mark = crew.enter(tenant)
        outcome = run_short(function, plan, frame, target, stdin, given, call)
        leads = crew.leave(mark)
        executor.end_short(function, began_s)
        if leads:
            del self._calls[frame.request]
            self.finished.append((frame.request, outcome))
        else:
            self._answer(frame.request, outcome, cuda=True)
        return True

    def flush(self, sickness: str) -> None:
        """Send what is `finished`, given why the device does not answer, empty if it does. Never waits."""
        finished, self.finished = self.finished, []
        self._post(b"".join([encode_outcome(number, outcome, sickness) for number, outcome in finished]))

    def _post(self, data: bytes) -> None:
        if not self.line.post(data):
            self._soon(self.line.drain)

    def _make_elsewhere(self, frame: InvokeFrame, request: Request) -> None:
        ends = Deadline.after(request.limits.wall_s).earlier(Deadline.after(request.deadline_s))
        call = self._calls[frame.request] = RunningCall(frame.request, request.on_device, OutputWindow(ends))
        call.ticket = self._submit(request, self._listener(call) if frame.stream else None)
        call.ticket.add_done_callback(partial(self._ended, call))

    def _submit(self, request: Request, listener: Listener | None) -> PendingInvocation:
        """Have a call made; one that is refused has that as its outcome."""
        try:
            return self._host.executor.submit(request, listener)
        except TensorWasmError as error:
            refused = PendingInvocation()
            refused.settle(error)
            return refused

    def _listener(self, call: RunningCall) -> Listener:
        def listen(name: OutputName, data: bytes) -> bool:
            return all(call.window.take() and self._send_heard(call, name, part) for part in split(data))

        return listen

    def _send_heard(self, call: RunningCall, name: OutputName, part: bytes) -> bool:
        """Send a part of the output while it is wanted; return whether it is."""
        with call.lock:  # nothing may follow the answer
            if call.heard:
                self.line.send(OutputFrame(call.number, name, part))
            return call.heard

    def _ended(self, call: RunningCall, done: Future[Invocation]) -> None:
        ticket, call.ticket = call.ticket, None  # which refers to the call: cycles are seldom collected
        if ticket is not None and ticket.waits and threading.get_ident() != self._reader:
            self._conclude(call, done)
        elif not self._soon(self._conclude, call, done):
            del self._calls[call.number]

    def _conclude(self, call: RunningCall, done: Future[Invocation]) -> None:
        with call.lock:
            call.heard = False
        self._answer(call.number, done.exception() or done.result(), cuda=call.cuda)

    def _answer(self, number: int, outcome: Invocation | BaseException, *, cuda: bool) -> None:
        """Send the outcome of a call, and before it, that the device is lost, if it is."""
        try:
            sickness = self._host.look_after_device(self) if cuda else ""
            self.line.send_encoded(encode_outcome(number, outcome, sickness))
        except OSError:
            _log.info("the process at the other end has gone without an answer")
        finally:
            del self._calls[number]
