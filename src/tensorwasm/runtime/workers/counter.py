"""`Counter`: the worker's side of the protocol: takes requests from the parent, and sends back outcomes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tensorwasm.errors import CallerError, DeviceLost, GuestError, HostError, InvokeTimeout, LimitError, TensorWasmError
from tensorwasm.gpu.device.port import Stream
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.limits.turns import TurnKeeper, TurnOrder
from tensorwasm.gpu.session import SessionStatistics
from tensorwasm.guest.sandbox.wasi_io import Directory
from tensorwasm.runtime.executor.local import LocalExecutor
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.runtime.invoke.invocation import Invocation, Listener, OutputName, PendingInvocation
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
    LongWorkFrame,
    NoKernelFrame,
    OutputFrame,
    SickFrame,
    TurnEndFrame,
    TurnFrame,
    WishFrame,
    WorkerFrame,
)
from tensorwasm.runtime.workers.kernels.parent_compiler import ParentCompiler
from tensorwasm.runtime.workers.outbox import split
from tensorwasm.runtime.workers.outcomes import clean, describe_error, describe_result, rebuild_error
from tensorwasm.runtime.workers.parent_link import OutputWindow, ParentLink
from tensorwasm.values import Deadline, Limits

if TYPE_CHECKING:
    from tensorwasm.runtime.api.runtime import Runtime

_ANSWERERS: Final = 4
_TELL_S: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Call:
    """A call under way; `heard` is whether its output is still wanted as it is written."""

    frame: InvokeFrame
    window: OutputWindow
    ticket: PendingInvocation | None = None
    heard: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)


class Counter:
    """Serves one parent. `take` is for the thread that reads; the rest is safe from any thread.

    Args:
        line: to the parent.
        executor: makes the calls.
        runtime: whose device is looked after.
        compiler: gets the kernels that the parent answers; None asks for none.
    """

    def __init__(
        self, line: ParentLink, executor: LocalExecutor, runtime: Runtime, compiler: ParentCompiler | None = None
    ) -> None:
        self._compiler = compiler
        self._line = line
        self._executor = executor
        self._runtime = runtime
        self._incoming: dict[int, tuple[int, bytearray]] = {}
        self._blobs: dict[int, bytes] = {}
        self._calls: dict[int, _Call] = {}
        self._lock = threading.Lock()
        self._sickness = ""
        self._idle: Stream | None = None
        self._reader = 0
        self._told_s: dict[str, float] = {}
        # What a call ends on may be the thread that all fibers run on: it is not to wait until an answer is sent.
        self._answers = ThreadPoolExecutor(_ANSWERERS, thread_name_prefix="tensorwasm-answer")
        self._handlers: dict[type[WorkerFrame], Callable[[Any], None]] = {
            BlobFrame: self._open_blob,
            BlobPartFrame: self._fill_blob,
            ForgetFrame: self._forget,
            InvokeFrame: self._invoke,
            CancelFrame: self._cancel,
            CreditFrame: self._credit,
            TurnFrame: self._obey,
            KernelFrame: self._take_kernel,
            NoKernelFrame: self._take_no_kernel,
        }
        self._keeper: TurnKeeper | None = None

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

    def beat(self, every_s: float, stopped: threading.Event) -> None:
        """Tell the parent every few seconds that this process lives, until stopped or the parent has gone."""
        number = 0
        while not stopped.wait(every_s):
            number += 1
            try:
                self._line.send(BeatFrame(number, self._charges()))
            except OSError:
                return

    def keep_turns(self, gate: Gate) -> None:
        """Have tenants who keep the device busy wait at its gate for the turns that the parent gives them."""
        self._keeper = TurnKeeper(gate, self)
        self._keeper.start()

    def _obey(self, frame: TurnFrame) -> None:
        # Without a keeper nobody keeps the device busy here: it was meant for the process before this one.
        if self._keeper is not None:
            self._keeper.obey(TurnOrder(frame.contested, frame.number, frame.tenant or "", frame.length_ns))

    def wish(self, tenants: frozenset[str]) -> None:
        """See `tensorwasm.gpu.limits.turns.TurnListener`."""
        self._tell(WishFrame(tuple(sorted(tenants))))

    def end_turn(self, number: int, *, late: bool) -> None:
        """See `tensorwasm.gpu.limits.turns.TurnListener`."""
        self._tell(TurnEndFrame(number, late))

    def note_long_work(self, tenant: str) -> None:
        """Have the parent told that a tenant's kernels run long, once a second. Never waits."""
        now_s = time.monotonic()
        with self._lock:
            told = now_s - self._told_s.get(tenant, -math.inf) < _TELL_S
            if not told:
                self._told_s[tenant] = now_s
        if not told:
            self._answers.submit(self._tell, LongWorkFrame(tenant))

    def _tell(self, frame: WorkerFrame) -> None:
        try:
            self._line.send(frame)
        except OSError:
            _log.info("the parent has gone")

    def _charges(self) -> tuple[Charge, ...]:
        return tuple(Charge(tenant, *held) for tenant, held in sorted(self._executor.charges().items()))

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
        try:
            request = self._request(frame)
        except KeyError as error:
            raise BrokenFrame(f"there is no blob {error}") from None
        ends = Deadline.after(request.limits.wall_s).earlier(Deadline.after(request.deadline_s))
        call = self._calls[frame.request] = _Call(frame, OutputWindow(ends))
        call.ticket = self._executor.submit(request, self._listener(call) if frame.stream else None)
        call.ticket.add_done_callback(partial(self._ended, call))

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
            limits=Limits(*frame.limits),
            deadline_s=frame.deadline_s,
            memory_kind=frame.memory_kind,
            gpu_bytes=frame.gpu_bytes,
        )

    def _listener(self, call: _Call) -> Listener:
        def listen(name: OutputName, data: bytes) -> bool:
            return all(call.window.take() and self._send_heard(call, name, part) for part in split(data))

        return listen

    def _send_heard(self, call: _Call, name: OutputName, part: bytes) -> bool:
        """Send a part of the output while it is wanted; return whether it is."""
        with call.lock:  # nothing may follow the answer
            if call.heard:
                self._line.send(OutputFrame(call.frame.request, name, part))
            return call.heard

    def _ended(self, call: _Call, done: Future[Invocation]) -> None:
        if call.ticket is not None and call.ticket.waits and threading.get_ident() != self._reader:
            self._answer(call, done)
        else:
            self._answers.submit(self._answer, call, done)

    def _answer(self, call: _Call, done: Future[Invocation]) -> None:
        """Send the outcome of a call, and before it, that the device is lost, if it is."""
        number = call.frame.request
        try:
            sickness = self._look_after_device() if call.frame.cuda else ""
            with call.lock:
                call.heard = False
                self._send_outcome(number, _judge(done.exception() or done.result(), sickness))
        except OSError:
            _log.info("the parent has gone without an answer")
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

    def _look_after_device(self) -> str:
        """Find out whether the device still answers, by a stream that has no work; if not, tell the parent, once.

        Returns:
            Why it does not; empty if it does.
        """
        try:
            device = self._runtime.open_device()
            with self._lock:
                stream = self._idle = self._idle or device.open_stream()
            device.ended(stream)
        except (HostError, GuestError) as error:
            with self._lock:
                told, self._sickness = bool(self._sickness), self._sickness or clean(error.message)
            if not told:
                self._line.send(SickFrame(self._sickness))
        except (CallerError, LimitError):
            return ""  # the device is full, not lost
        return self._sickness


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
