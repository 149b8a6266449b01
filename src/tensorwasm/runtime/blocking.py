"""A call without a device on the thread that makes it, which another thread can stop.

It is what `tensorwasm.runtime.Function.invoke` does for such a call, in a sandbox that somebody else may end. A start
function is not stopped: there is no sandbox to end before it has returned, or its 30 s at most have passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tensorwasm.guest.imports import OutputStream
from tensorwasm.guest.linker import Prepared
from tensorwasm.guest.wasi import NO_WASI, Sink, WasiConfig
from tensorwasm.runtime.calling import call, written
from tensorwasm.runtime.form import Form
from tensorwasm.runtime.function import Function
from tensorwasm.runtime.invocation import Invocation
from tensorwasm.runtime.request import Request
from tensorwasm.runtime.streams import Chunks, directories_of
from tensorwasm.values import Deadline


def run_stoppable(
    function: Function,
    request: Request,
    deadline: Deadline,
    stop_with: Callable[[Callable[[], object]], object],
    *,
    stdout: Sink | None = None,
    stderr: Sink | None = None,
    on_chunk: Callable[[bytes], bool] | None = None,
) -> Invocation:
    """Call an export in a sandbox of its own and tear the sandbox down. Blocks; the guest runs without the GIL.

    Args:
        function: what was made of the request's module.
        request: the call; of its grants, the folders count.
        deadline: when it must have ended.
        stop_with: told what ends the guest, from any thread, before it runs or after.
        stdout: takes standard output as it is written; None captures it.
        stderr: the same for standard error.
        on_chunk: takes chunks as they are emitted and returns whether anyone listens; None collects.

    Raises:
        GuestTrap: the guest trapped; named ``cancelled`` if it was stopped.
        TensorWasmError: what else `tensorwasm.runtime.Function.invoke` raises without a device.
    """
    started_s, limits = time.perf_counter(), function.host.limits
    target, prepared, chunks = function.choose(request.export), function.form(Form()), Chunks(on_chunk)
    ends = Deadline.after(limits.wall_s).earlier(deadline)
    config = _configure(function, request, prepared, stdout, stderr)
    services = {"input": request.input, "stream": OutputStream(chunks)}
    with function.make_sandbox(prepared, config, services, ends, tenant=request.tenant) as instance:
        stop_with(instance.cancel)
        values, exit_code = call(instance, target, request.args, ends)
        out, err = written(instance)
        return Invocation(
            export=target,
            values=values,
            result_types=function.result_types(target),
            exit_code=exit_code,
            stdout=out,
            stderr=err,
            chunks=tuple(chunks.chunks),
            elapsed_s=time.perf_counter() - started_s,
            gpu=None,
        )


def _configure(
    function: Function, request: Request, prepared: Prepared, stdout: Sink | None, stderr: Sink | None
) -> WasiConfig:
    if not prepared.needs_wasi:
        return NO_WASI
    argv = request.argv if request.argv is not None else (function.name,)
    return WasiConfig(
        tuple(argv), tuple(dict(request.env).items()), request.stdin, stdout, stderr, directories_of(request.grants)
    )
