"""The benchmark ``pauses``: the longest pause of a trivial call beside all that other tenants do at once.

Each load is a tenant of its own in a process of its own (`tensorwasm.bench.service.neighbours`): deploys of large
modules, streams, calls with an emulated GPU, and sessions that are changed, saved and deleted. Another tenant deploys a
small module each second. The machine may pause by itself; a process that only sleeps says how long.
"""

from __future__ import annotations

import contextlib
import heapq
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from operator import itemgetter
from typing import Final

from tensorwasm.bench.figures import Figure, Report, p99, sampled
from tensorwasm.bench.harness import make_module, scratch_folder
from tensorwasm.bench.service.neighbours import LOADS, SETTINGS, SUBJECT, Answers, TenantLoad, prepare, pressing
from tensorwasm.bench.service.serving import RunningService, ask_steadily, serving
from tensorwasm.wasm.binary import sized

MIX: Final = frozenset({"twenty compiles of 5 to 20 MB", "four streams", "calls with a GPU", "snapshots in a loop"})
"""Names of the loads that run at once."""

BAR_MS: Final = 50.0
SHOWN: Final = 5
"""The longest pauses, each of which is a figure."""

_PERIOD_S: Final = 0.005
_SMALL_BYTES: Final = 1 << 10
_SMALL_PERIOD_S: Final = 1.0
_SLEEP_S: Final = 0.001

Pause = tuple[float, float]
"""How long it took, in ms, and when it was, in seconds from the start."""


def measure_pauses(_choice: str = "auto", *, seconds: float = 60.0) -> Report:
    """Measure a service that this starts, for so many seconds beside the mix, with an emulated GPU. Needs Linux."""
    loads = [load for load in LOADS if load.name in MIX]
    with scratch_folder() as folder, serving(folder, SETTINGS) as service:
        with service.client(SUBJECT) as client:
            add = client.deploy("add")
            alone = [*ask_steadily(client, add, max(seconds / 10, 1.0), _PERIOD_S)]
        contexts = []
        for number, load in enumerate(loads, SUBJECT + 1):
            with service.client(number) as client:
                contexts.append(prepare(load, client))
        small = SmallDeploys(service, SUBJECT + 1 + len(loads))
        with contextlib.ExitStack() as stack:
            answers = [
                stack.enter_context(pressing(load, context, service.url))
                for load, context in zip(loads, contexts, strict=True)
            ]
            machine = stack.enter_context(machine_pauses())
            stack.enter_context(small.running())
            client = stack.enter_context(service.client(SUBJECT))
            taken = [*ask_steadily(client, add, seconds, _PERIOD_S)]
    mixed = tuple(zip(loads, answers, strict=True))
    return Report("pauses", "", tuple(_figures(alone, taken, machine, small.taken_ms, mixed)))


def _figures(
    alone: Sequence[float],
    taken: Sequence[float],
    machine: Sequence[Pause],
    small_ms: Sequence[float],
    mixed: Sequence[tuple[TenantLoad, Answers]],
) -> Iterator[Figure]:
    count = len(taken)
    yield sampled("alone, p50", "ms", alone)
    yield Figure("alone, p99", "ms", p99(alone), 0, len(alone))
    yield Figure("alone, longest", "ms", max(alone), 0, len(alone))
    yield sampled("beside the mix, p50", "ms", taken)
    yield Figure("beside the mix, p99", "ms", p99(taken), 0, count)
    yield Figure("beside the mix, longest", "ms", max(taken), 0, count, bar=BAR_MS)
    for pause_ms, index in heapq.nlargest(SHOWN, zip(taken, range(count), strict=True)):
        at_s = index * _PERIOD_S
        own = max((ms for ms, when_s in machine if abs(when_s - at_s) < 0.2), default=0.0)
        yield Figure(f"pause at {at_s:.1f} s, of which the machine's own is {own:.1f}", "ms", pause_ms, 0, 1)
    yield Figure("longest pause of the machine itself", "ms", max(machine, default=(0.0, 0.0))[0], 0, 1)
    if small_ms:
        yield sampled("deploy of a small module of another tenant, p50", "ms", small_ms)
        yield Figure("deploy of a small module of another tenant, longest", "ms", max(small_ms), 0, len(small_ms))
    for load, answers in mixed:
        good, refused, other = load.tally(answers)
        yield Figure(f"answers to {load.name}", "requests", good, 0, 1, bar=1, sense="at least")
        yield Figure(f"refusals of {load.name} for lack of room", "requests", refused, 0, 1)
        others = f"other answers to {load.name}{load.name_others(answers)}"
        yield Figure(others, "requests", other, 0, 1, bar=0)


class SmallDeploys:
    """A tenant that deploys a small module each second; ``taken_ms`` is how long each took."""

    def __init__(self, service: RunningService, tenant: int) -> None:
        self._service = service
        self._tenant = tenant
        self._done = threading.Event()
        self.taken_ms: list[float] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Deploy until the end of the block."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _run(self) -> None:
        module = make_module(_SMALL_BYTES)
        with self._service.client(self._tenant) as client:
            while not self._done.wait(_SMALL_PERIOD_S):
                # A custom section makes it another module for every cache.
                other = module + b"\x00" + sized(b"\x01n" + os.urandom(8))
                start_s = time.perf_counter()
                client.deploy("small", other)
                self.taken_ms.append((time.perf_counter() - start_s) * 1e3)


@contextlib.contextmanager
def machine_pauses() -> Iterator[list[Pause]]:
    """Note when a process that only sleeps was not woken in time, until the end of the block; filled in then."""
    spawn, found = multiprocessing.get_context("spawn"), list[Pause]()
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_sleep, args=(theirs,), daemon=True)
    process.start()
    try:
        ours.recv()
        yield found
        ours.send(None)
        found.extend(ours.recv())
    finally:
        ours.close()
        process.terminate()
        process.join()


def _sleep(pipe: Connection) -> None:
    pipe.send(None)
    start_s = last_s = time.perf_counter()
    late: list[Pause] = []
    while not pipe.poll():
        time.sleep(_SLEEP_S)
        now_s = time.perf_counter()
        late_ms = (now_s - last_s - _SLEEP_S) * 1e3
        if late_ms > 1.0:
            late.append((late_ms, now_s - start_s))
        last_s = now_s
    pipe.send(sorted(late, key=itemgetter(0))[-10_000:])
