"""The benchmark ``first-answer``: from the start of ``tensor-wasm serve`` to its first answer with a GPU.

Each sample starts a server with a data folder of its own. A client deploys a guest without a GPU and calls it again and
again until the server is ready and has answered a call with a kernel, which others wait for meanwhile: so it is seen
whether calls without a GPU are answered in the meantime. With ``no caches`` nothing of an earlier start is there, nor
what the driver has compiled. Without a GPU it runs on the emulator, in a worker process as well, and has no bars.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from tensorwasm.bench.figures import Figure, Report, sampled
from tensorwasm.bench.harness import scratch_folder
from tensorwasm.bench.service.serving import RunningService, ServiceClient, serving
from tensorwasm.errors import InternalError
from tensorwasm.runtime import Runtime

_BARS_S: Final = {"warm caches": 3.0, "no caches": 15.0}
_TOO_LONG_S: Final = 300.0
_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds of one start; all but the last from its begin."""

    listens: float
    first_answer: float
    ready: float
    first_gpu_answer: float
    longest_call_meanwhile: float


def measure_first_answer(choice: str = "auto", *, starts: int = 3, workers: int = 1) -> Report:
    """Measure so many starts with caches and without, of a server with so many processes that take requests."""
    with Runtime(device=choice) as runtime:
        device = runtime.device
    real = device.kind == "cuda"
    settings = {
        "TENSOR_WASM_DEVICE": f"cuda:{device.ordinal}" if real else "emulator",
        "TENSOR_WASM_WORKERS": str(workers),
        "PYTHONDONTWRITEBYTECODE": "",  # bytecode is kept, as users' is
    }
    with scratch_folder() as folder:

        def start(data: str, cache: str) -> StartTimes:
            caches = {"TENSOR_WASM_CACHE": str(folder / cache), "CUDA_CACHE_PATH": str(folder / cache / "cuda")}
            return _start(folder / data, settings | caches | {"TENSOR_WASM_STATE_DIR": str(folder / f"{data}.state")})

        # The first is not counted: it leaves bytecode, and the caches that the warm ones find.
        empty = [start(f"empty{number}", f"cache{number}") for number in range(starts + 1)][1:]
        warm = [start(f"warm{number}", "cache0") for number in range(starts)]
    figures = [*_figures("warm caches", warm, real=real), *_figures("no caches", empty, real=real)]
    return Report("first-answer", device.name, tuple(figures))


def _figures(caches: str, taken: list[StartTimes], *, real: bool) -> Iterator[Figure]:
    for each in fields(StartTimes):
        bar = _BARS_S[caches] if real and each.name == "first_gpu_answer" else None
        name = f"{each.name.replace('_', ' ').replace('gpu', 'GPU')}, {caches}"
        yield sampled(name, "s", [getattr(times, each.name) for times in taken], bar=bar)


def _start(data: Path, settings: dict[str, str]) -> StartTimes:
    began_s = time.perf_counter()

    def since() -> float:
        return time.perf_counter() - began_s

    with serving(data, settings) as service, ThreadPoolExecutor(2) as waiting, service.client() as client:
        listens = since()
        path = f"/functions/{client.deploy('add')}/invoke"
        _call(client, path, "add", [40, 2])
        first = since()
        others = [waiting.submit(work, service, since) for work in (_wait_until_ready, _call_gpu)]
        longest = max(_call_until(client, path, others))
        ready, gpu = (each.result() for each in others)
        return StartTimes(listens, first, ready, gpu, longest)


def _call_until(client: ServiceClient, path: str, others: list[Future[float]]) -> Iterator[float]:
    """Call a function until others are done; yield how many seconds each call took."""
    while True:
        began_s = time.perf_counter()
        _call(client, path, "add", [40, 2])
        yield time.perf_counter() - began_s
        if all(each.done() for each in others):
            return
        time.sleep(_PAUSE_S)


def _wait_until_ready(service: RunningService, since: Callable[[], float]) -> float:
    with service.client() as client:
        while client.send("GET", "/readyz")[0] != 200:
            if since() > _TOO_LONG_S:
                raise InternalError(f"the service is not ready after {_TOO_LONG_S:g} s")
            time.sleep(_PAUSE_S)
        return since()


def _call_gpu(service: RunningService, since: Callable[[], float]) -> float:
    with service.client() as client:
        function = client.deploy("increment", grants=["cuda"])
        _call(client, f"/functions/{function}/invoke", "increment", [41])
        return since()


def _call(client: ServiceClient, path: str, export: str, args: list[int]) -> None:
    answer = client.ask("POST", path, {"export": export, "args": args})
    if answer["result"] != [42]:
        raise InternalError(f"the service answered {answer} instead of 42")
