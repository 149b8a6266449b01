"""`Counter`: the worker's side of one connection: takes requests from it, and sends back outcomes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from tensorwasm.errors import CallerError, DeviceLost, HostError, InvokeTimeout, LimitError, TensorWasmError
from tensorwasm.gpu.limits.turns import TurnOrder
from tensorwasm.gpu.session import SessionStatistics
from tensorwasm.guest.sandbox.wasi_io import Directory
from tensorwasm.runtime.executor.local import LocalExecutor
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.runtime.invoke.invocation import Invocation, Listener, OutputName, PendingInvocation
from tensorwasm.runtime.workers.child.parent_compiler import ParentCompiler
from tensorwasm.runtime.workers.child.parent_link import OutputWindow, ParentLink
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
    TurnFrame,
    WorkerFrame,
)
from tensorwasm.runtime.workers.outbox import split
from tensorwasm.runtime.workers.outcomes import describe_error, describe_result, rebuild_error
from tensorwasm.values import Deadline, Limits

_ANSWERERS: Final = 4

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _RunningCall:
    """A call under way; `heard` is whether its output is still wanted as it is written."""

    frame: InvokeFrame
    window: OutputWindow
    ticket: PendingInvocation | None = None
    heard: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)


class CallHost(Protocol):
    """What makes the calls of all connections."""

    executor: LocalExecutor

    def note_weight(self, tenant: str, weight: int) -> None:
        """Note a tenant's weight, as of a call."""

    def obey(self, order: TurnOrder) -> None:
        """Have the parent's order for turns kept."""

    def look_after_device(self, teller: Counter) -> str:
        """Return why the device does not answer, empty if it does. The process at the teller's other end was told."""


class Counter:
    """Serves one connection. `take` and `close` are for the thread that reads; the rest is safe from any thread.

    Args:
        line: the connection.
        host: makes the calls.
        compiler: gets the kernels that the parent answers; None asks for none.
        front: whether a front is at the other end, which has no say in anything but its own calls.

    Attributes:
        tenants: whose calls came over the connection.
    """

    def __init__(
        self, line: ParentLink, host: CallHost, compiler: ParentCompiler | None = None, *, front: bool = False
    ) -> None:
        self.tenants: set[str] = set()
        self._compiler = compiler
        self._line = line
        self._host = host
        self._incoming: dict[int, tuple[int, bytearray]] = {}
        self._blobs: dict[int, bytes] = {}
        self._calls: dict[int, _RunningCall] = {}
        self._told_sickness = threading.Lock()  # held for good once it was told
        self._reader = 0
        # What a call ends on may be the thread that all fibers run on: it is not to wait until an answer is sent.
        self._answers = ThreadPoolExecutor(_ANSWERERS, thread_name_prefix="tensorwasm-answer")
        self._handlers: dict[type[WorkerFrame], Callable[[Any], None]] = {
            BlobFrame: self._open_blob,
            BlobPartFrame: self._fill_blob,
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
        for call in tuple(self._calls.values()):
            call.heard = False
            call.window.close()
            if call.ticket is not None:
                call.ticket.stop()
        self._answers.shutdown(wait=False)
        self._blobs.clear()  # this is part of cycles, and they are collected seldom
        self._incoming.clear()

    def start_beat(self, every_s: float, stopped: threading.Event) -> None:
        """Tell the other end every few seconds that this process lives, until stopped or it has gone."""
        threading.Thread(target=self._beat, args=(every_s, stopped), name="tensorwasm-beat", daemon=True).start()

    def _beat(self, every_s: float, stopped: threading.Event) -> None:
        number = 0
        while not stopped.wait(every_s):
            number += 1
            try:
                self._line.send(BeatFrame(number, self._charges()))
            except OSError:
                return

    def _obey(self, frame: TurnFrame) -> None:
        self._host.obey(TurnOrder(frame.contested, frame.number, frame.tenant or "", frame.length_ns))

    def tell(self, frame: WorkerFrame) -> None:
        """Send a frame, unless the other end has gone."""
        try:
            self._line.send(frame)
        except OSError:
            _log.info("the process at the other end has gone")

    def tell_sickness(self, message: str) -> None:
        """Tell that the device is lost, once."""
        if self._told_sickness.acquire(blocking=False):
            self.tell(SickFrame(message))

    def soon(self, function: Callable[..., object], *args: object) -> bool:
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

    def _forget(self, frame: ForgetFrame) -> None:
        self._blobs.pop(frame.blob, None)

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
        call.heard = False
        call.window.close()
        if frame.stop and call.ticket is not None:
            call.ticket.stop()

    def _credit(self, frame: CreditFrame) -> None:
        call = self._calls.get(frame.request)
        if call is not None:
            call.window.add(frame.parts)

    def _invoke(self, frame: InvokeFrame) -> None:
        if frame.request in self._calls:
            raise BrokenFrame(f"the request {frame.request} is under way")
        try:
            request = self._request(frame)
        except KeyError as error:
            raise BrokenFrame(f"there is no blob {error}") from None
        self.tenants.add(request.tenant)
        self._host.note_weight(request.tenant, request.weight)
        ends = Deadline.after(request.limits.wall_s).earlier(Deadline.after(request.deadline_s))
        call = self._calls[frame.request] = _RunningCall(frame, OutputWindow(ends))
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

    def _request(self, frame: InvokeFrame) -> Request:
        return Request(
            module=self._blobs[frame.module],
            export=frame.export,
            args=frame.args,
            name=frame.name,
            argv=frame.argv,
            env=frame.env,
            stdin=self._blobs.pop(frame.stdin) if frame.stdin is not None else b"",
            input=self._blobs.pop(frame.input) if frame.input is not None else b"",
            grants=Grants(frame.cuda, tuple(Directory(*each) for each in frame.directories)),
            tenant=frame.tenant,
            weight=frame.weight,
            limits=Limits(*frame.limits),
            deadline_s=frame.deadline_s,
            memory_kind=frame.memory_kind,
            gpu_bytes=frame.gpu_bytes,
        )

    def _listener(self, call: _RunningCall) -> Listener:
        def listen(name: OutputName, data: bytes) -> bool:
            return all(call.window.take() and self._send_heard(call, name, part) for part in split(data))

        return listen

    def _send_heard(self, call: _RunningCall, name: OutputName, part: bytes) -> bool:
        """Send a part of the output while it is wanted; return whether it is."""
        with call.lock:  # nothing may follow the answer
            if call.heard:
                self._line.send(OutputFrame(call.frame.request, name, part))
            return call.heard

    def _ended(self, call: _RunningCall, done: Future[Invocation]) -> None:
        if call.ticket is not None and call.ticket.waits and threading.get_ident() != self._reader:
            self._answer(call, done)
        elif not self.soon(self._answer, call, done):
            del self._calls[call.frame.request]

    def _answer(self, call: _RunningCall, done: Future[Invocation]) -> None:
        """Send the outcome of a call, and before it, that the device is lost, if it is."""
        number = call.frame.request
        try:
            sickness = self._host.look_after_device(self) if call.frame.cuda else ""
            with call.lock:
                call.heard = False
                self._send_outcome(number, _judge(done.exception() or done.result(), sickness))
        except OSError:
            _log.info("the process at the other end has gone without an answer")
        finally:
            del self._calls[number]

    def _send_outcome(self, request: int, outcome: Invocation | BaseException) -> None:
        try:
            if isinstance(outcome, BaseException):
                self._send_output(request, "stdout", getattr(outcome, "stdout", b""))
                self._send_output(request, "stderr", getattr(outcome, "stderr", b""))
                self._line.send(describe_error(request, outcome))
            else:
                self._send_result(request, outcome)
        except BrokenFrame as broken:
            self._line.send(describe_error(request, broken))

    def _send_result(self, request: int, outcome: Invocation) -> None:
        done = describe_result(request, outcome)
        self._send_output(request, "stdout", outcome.stdout)
        self._send_output(request, "stderr", outcome.stderr)
        for chunk in outcome.chunks:
            self._send_output(request, "chunk", chunk)
        self._line.send(done)

    def _send_output(self, request: int, name: OutputName, data: bytes) -> None:
        for part in split(data):
            self._line.send(OutputFrame(request, name, part))


def _judge(outcome: Invocation | BaseException, sickness: str) -> Invocation | BaseException:
    """Return what came of a call that had the grant of a device, which is lost if there is a sickness.

    A guest whose kernels the device lost sees a code and goes on as if it had failed itself; that is no outcome to
    blame on it. What was refused, ran out of time or did nothing with the device stands.
    """
    if not sickness or isinstance(outcome, CallerError | LimitError | HostError | InvokeTimeout):
        return outcome
    if isinstance(outcome, Invocation) and outcome.gpu is not None and not _used(outcome.gpu):
        return outcome
    lost = DeviceLost(f"the device was lost before the call had ended: {sickness}")
    lost.stdout, lost.stderr = getattr(outcome, "stdout", b""), getattr(outcome, "stderr", b"")
    return lost


def _used(gpu: SessionStatistics) -> bool:
    """Return whether a guest had anything to do with its device."""
    return bool(gpu.kernels_launched or gpu.kernels or gpu.allocations or gpu.release_failures or gpu.abandoned)
