"""The exam of guarded kernels on a GPU: hostile kernels in sessions beside a victim's, in one context.

Every kernel is guarded, verified and compiled by many processes first, and kept as the runtime keeps it. Then a child
process opens the GPU and runs one kernel after the other, each as a tenant would, in a session of its own; it may only
be refused, end or be stopped. What must never happen is reported, and the exit code is 1: a victim's buffer that has
changed or was read, a fault that ends the context, a kernel that runs on after its deadline. One that was seen to stop
late runs three times more, to tell a late kernel from a host that looked late; if it does so again, that is reported.

    python tools/guard_exam.py --kernels 10000 --report guard-exam.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

if TYPE_CHECKING:
    from strategies.hostile import Hostile
    from tensorwasm.gpu.session import Session
    from tensorwasm.gpu.session.core import SessionCore
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.gpu.state.resource_table import HeldKernel
    from tensorwasm.values import LaunchConfig

BUDGET_S: Final = 0.02
"""From a launch to its deadline."""
GRACE_S: Final = 0.05
"""From a deadline to when a kernel must have stopped."""
TENANT, VICTIM = "attacker", "victim"
VICTIM_BYTES: Final = 1 << 16
KEPT_BYTES: Final = 1 << 30
WIDE: Final = "+wide"
"""How the names end of kernels that are guarded for larger windows, in sessions that have those."""
WIDE_SHARE: Final = 5
"""One of so many kernels is examined as a wide one, too."""
WIDE_BYTES: Final = 12 << 30
"""What sessions of wide kernels may hold."""
CROWD: Final = 32
"""Sessions whose kernels never end and fill the device, each with another launch behind it."""
CROWD_BLOCKS: Final = 1056
CROWD_THREADS: Final = 256
"""Of each of their launches: an H200 holds this many blocks at once."""
ENDLESS: Final = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry endless(.param .u64 at)
{
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [at];
  cvta.to.global.u64 %rd2, %rd1;
AGAIN:
  ld.volatile.global.u32 %r1, [%rd2];
  bra AGAIN;
}
"""
_NOTES: Final = 200


def hostile(name: str) -> Hostile:
    """Return a kernel by its name: a number is a seed, others are deliberate attacks."""
    from strategies.hostile import DELIBERATE, generate  # noqa: PLC0415 - for child processes

    name = name.removesuffix(WIDE)
    return generate(int(name)) if name.isdigit() else DELIBERATE[name]


@cache
def store(folder: str) -> Any:
    """Return the folder in which kernels are kept, signed with a key of this run."""
    from tensorwasm.artifacts.keys import HmacKey  # noqa: PLC0415
    from tensorwasm.runtime.deploy.code_files import CodeFolder  # noqa: PLC0415
    from tensorwasm.runtime.deploy.kernel_folder import KernelFolder  # noqa: PLC0415

    return KernelFolder(CodeFolder(Path(folder), HmacKey(b"the key of an exam, of 32 bytes."), KEPT_BYTES))


def prepare(job: tuple[str, str, bytes]) -> str:
    """Guard, verify, compile and keep a kernel; return what became of it. Needs no GPU."""
    import msgspec  # noqa: PLC0415

    from tensorwasm.errors import TensorWasmError  # noqa: PLC0415
    from tensorwasm.gpu.cuda.assembler import find_assembler  # noqa: PLC0415
    from tensorwasm.gpu.cuda.modules import KernelAssembler  # noqa: PLC0415
    from tensorwasm.gpu.resources.guarded_compiler import KernelJob, KernelTarget, compile_guarded  # noqa: PLC0415
    from tensorwasm.gpu.resources.kernel_store import encode  # noqa: PLC0415
    from tensorwasm.ptx.guarded import SHARED_BASE  # noqa: PLC0415
    from tensorwasm.values import NEVER, DeviceInfo  # noqa: PLC0415

    name, folder, described = job
    info = msgspec.msgpack.decode(described, type=DeviceInfo)
    kernel, assembler = hostile(name), find_assembler("", os.environ)
    if assembler is None:
        return "no ptxas"
    target = KernelTarget(info.compute_capability, info.ptx_version, SHARED_BASE, assembler.name)
    width = "wide" if name.endswith(WIDE) else "narrow"
    wanted = KernelJob(TENANT, kernel.text.encode(), kernel.entry, info.compute_capability, width, target)
    ptxas = KernelAssembler(assembler, info.compute_capability, info.ptx_version, (99, 0))
    try:
        store(folder).put(wanted.name, encode(compile_guarded(wanted, ptxas.compile_kernel, NEVER)))
    except TensorWasmError as error:
        return f"refused: {error.kind}"
    return "ok"


def child(names: Iterable[str], folder: str, device_name: str) -> Iterator[tuple[object, ...]]:
    """Yield what happens: ``(event, kernel, ...)``."""
    from tensorwasm.gc_pause import collect_seldom  # noqa: PLC0415
    from tensorwasm.gpu.device.limits import SessionLimits  # noqa: PLC0415
    from tensorwasm.gpu.limits.accounts import Accounts  # noqa: PLC0415
    from tensorwasm.gpu.opening import open_device  # noqa: PLC0415
    from tensorwasm.gpu.resources.guarded_compiler import LocalCompiler  # noqa: PLC0415
    from tensorwasm.gpu.shared_device import SharedDevice  # noqa: PLC0415
    from tensorwasm.values import NEVER  # noqa: PLC0415

    device, _ = open_device(device_name)
    accounts, rng = Accounts(), random.Random(1)  # noqa: S311 - reproducible
    for tenant in (TENANT, VICTIM):
        accounts.register(tenant, WIDE_BYTES)
    limits = SessionLimits(device_bytes=WIDE_BYTES)
    compiler = LocalCompiler(device, store(folder)) if device.assembler else None
    secret = rng.randbytes(VICTIM_BYTES)
    words = set(struct.unpack(f"<{VICTIM_BYTES // 8}Q", secret))
    collect_seldom()  # as a worker does
    with (
        SharedDevice(device, accounts, guarded=True, compiler=compiler) as shared,
        shared.open_session(VICTIM) as own,
    ):
        theirs = own.buffers.allocate(VICTIM_BYTES)
        own.buffers.write(theirs, secret, NEVER)
        address = own._core.table.buffers[theirs].address  # noqa: SLF001 - more than any tenant knows
        late = []
        for name in names:
            yield "start", name
            session = shared.open_session(TENANT, limits if name.endswith(WIDE) else None)
            event, _, *more = outcome = attack(session, name, address, words, rng)
            yield outcome
            if event == "stopped" and more[0] > 1000 * GRACE_S:
                late.append(name)
            found = bytearray(VICTIM_BYTES)
            own.buffers.read(theirs, memoryview(found), NEVER)
            if bytes(found) != secret:
                yield "harm", name
                own.buffers.write(theirs, secret, NEVER)
        for name in 3 * late:
            session = shared.open_session(TENANT, limits if name.endswith(WIDE) else None)
            event, _, *more = attack(session, name, address, words, rng)
            yield "again", name, event, *more
        if device.info.kind == "cuda":
            yield "crowd", "past their deadline", crowd(shared, 0.5)
            yield "crowd", "told to stop", crowd(shared, None)
    yield "end", ""


def crowd(shared: SharedDevice, budget_s: float | None) -> float:
    """Fill the device with endless kernels of many sessions; return how late the last one was gone, in milliseconds.

    Args:
        shared: the device.
        budget_s: from the first launch to the deadline of all; without one they are told to stop.
    """
    from tensorwasm.values import NEVER, Deadline, LaunchConfig  # noqa: PLC0415

    with ExitStack() as opened:
        sessions = [opened.enter_context(shared.open_session(TENANT)) for _ in range(CROWD)]
        deadline, limit = Deadline.after(60.0 if budget_s is None else budget_s), Deadline.after(30.0)
        for session in sessions:
            core = session._core  # noqa: SLF001 - what lies behind the session's checks
            buffer = core.table.buffers[session.buffers.allocate(4096)]
            held = core.table.kernels[session.kernels.load(ENDLESS.encode(), "endless", NEVER)]
            asked = LaunchConfig((CROWD_BLOCKS, 1, 1), (CROWD_THREADS, 1, 1))
            config, given = core.complete(held, asked, (buffer.address.to_bytes(8, "little"),), deadline)
            stream, shared_kernel, reach = core.work.find(0), held.shared, core.reachable()
            loaded, entry, launch_on = shared_kernel.loaded, shared_kernel.entry, core.device.launch
            for _ in range(2):
                core.work.give(stream, 1, launch_on, loaded, entry, config, given, reach, stream.stream, limit)
        if budget_s is None:
            time.sleep(0.2)  # they run
            deadline = Deadline.after(0.0)
            for session in sessions:
                session._core.window.stop.stopping = True  # type: ignore[union-attr]  # noqa: SLF001
        while not all(map(is_gone, sessions)):
            if limit.expired():
                return float("inf")
        return round((time.monotonic_ns() - (deadline.at_ns or 0)) / 1e6, 3)


def is_gone(session: Session) -> bool:
    """Return whether nothing of a session runs any more."""
    from tensorwasm.errors import InvokeTimeout  # noqa: PLC0415

    try:
        return session._core.work.idle()  # noqa: SLF001 - never waits
    except InvokeTimeout:  # it has ended, and was stopped
        return True


def attack(session: Session, name: str, victim: int, secret: set[int], rng: random.Random) -> tuple[object, ...]:
    """Run one kernel in a new session and judge what it did; return the event."""
    from strategies.hostile import OWN_BYTES  # noqa: PLC0415
    from tensorwasm.errors import TensorWasmError  # noqa: PLC0415
    from tensorwasm.values import NEVER  # noqa: PLC0415

    kernel = hostile(name)
    with session:
        own = session.buffers.allocate(OWN_BYTES)
        try:
            kernel_id = session.kernels.load(kernel.text.encode(), kernel.entry, NEVER)
        except TensorWasmError as error:
            return "refused", name, error.kind
        numbers = victim, rng.getrandbits(64), OWN_BYTES, rng.getrandbits(32)
        outcome, late_ms, found = launch(session, kernel, kernel_id, own, numbers)
        if secret & set(struct.unpack(f"<{len(found) // 8}Q", found)):
            return "leak", name
        return (outcome, name, late_ms) if outcome == "stopped" else (outcome, name)


def launch(
    session: Session, kernel: Hostile, kernel_id: int, own: int, numbers: Sequence[int]
) -> tuple[str, float, bytes]:
    """Launch a kernel with whatever it may ask for, and wait for it.

    The session's checks of arguments are left out: only the guard is examined.

    Returns:
        What became of it, how many milliseconds after its deadline it had stopped, and what its buffer holds then.
    """
    from tensorwasm.errors import InvalidDimensions, InvokeTimeout, TensorWasmError  # noqa: PLC0415
    from tensorwasm.values import NEVER, Deadline, LaunchConfig  # noqa: PLC0415

    core = session._core  # noqa: SLF001 - what lies behind those checks
    held, buffer = core.table.kernels[kernel_id], core.table.buffers[own]
    shared, window = held.shared, core.window
    if shared.guarded is None or window is None or not shared.guarded.verified.takes(kernel.block):
        return "skipped", 0.0, b""
    aligned = zip_longest((buffer.address, *numbers), shared.guarded.verified.param_aligns, fillvalue=1)
    values = [
        (value - value % align).to_bytes(8 if at < 3 else 4, "little") for at, (value, align) in enumerate(aligned)
    ]
    deadline, limit = Deadline.after(BUDGET_S), Deadline.after(BUDGET_S + GRACE_S)
    asked = within_limit(core, held, LaunchConfig(kernel.grid, kernel.block, kernel.dynamic_shared_bytes))
    config, given = core.complete(held, asked, tuple(values), deadline)
    stream, outcome = core.work.find(0), "clean"
    work = core.device.launch, shared.loaded, shared.entry, config, given, core.reachable(), stream.stream, limit
    try:
        core.work.give(stream, 1, *work)
        core.work.wait(stream, limit)
    except InvalidDimensions:
        return "skipped", 0.0, b""
    except InvokeTimeout:
        outcome = "stopped" if window.stop.status else "hung"
    except TensorWasmError:
        outcome = "trapped" if window.stop.status else "fault"
    late_ms = max(0, time.monotonic_ns() - (deadline.at_ns or 0)) / 1e6
    found = bytearray(buffer.size_bytes)
    if outcome in {"clean", "stopped", "trapped"}:
        core.device.read(buffer.address, memoryview(found), None, NEVER)
    return outcome, round(late_ms, 3), bytes(found)


def within_limit(core: SessionCore, held: HeldKernel, config: LaunchConfig) -> LaunchConfig:
    """Return a launch with as many blocks as a guarded one may have, about, where it has more."""
    from tensorwasm.gpu.device.limits import GUARDED_PIECES  # noqa: PLC0415

    while core.launch_pieces(held, config) > GUARDED_PIECES:
        x, y, z = ((each + 1) // 2 for each in config.grid)
        config = replace(config, grid=(x, y, z))
    return config


def examine(names: Sequence[str], folder: str, device: str, limit_s: float) -> dict[str, Any]:
    """Run kernels in child processes, a new one after each that ends; return the report."""
    left, counts, notes, late_ms, crowds = list(names), Counter[str](), [], [], {}
    again: list[list[object]] = []
    ends_s = time.monotonic() + limit_s
    while left and time.monotonic() < ends_s:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(left, file)
            file.flush()
            command = [sys.executable, __file__, "--child", file.name, "--folder", folder, "--device", device]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            last, ended = "", False
            for line in process.stdout or ():
                event, name, *more = json.loads(line)
                if event == "start":
                    last = name
                    if time.monotonic() > ends_s:
                        process.kill()
                    continue
                if event == "crowd":
                    crowds[name] = more[0]
                    continue
                if event == "again":
                    again.append([name, *more])
                    if more[0] != "stopped" or more[1] > 1000 * GRACE_S:
                        counts["late"] += 1
                    continue
                ended = ended or event == "end"
                counts[event] += event != "end"
                if event in {"harm", "leak", "fault", "hung"}:
                    notes.append([event, name, *more])
                elif more and event != "refused":
                    late_ms.append((more[0], name))
            process.wait()
        if ended:
            left = []
        else:
            if time.monotonic() < ends_s:
                counts["died"] += 1
                notes.append(["died", last])
            left = left[left.index(last) + 1 :] if last in left else []
    late_ms.sort(reverse=True)
    seen = {"outcomes": dict(counts), "latest_ms": late_ms[:5], "late_ones_again": again, "crowd_latest_ms": crowds}
    return {**seen, "not_run": len(left), "notes": notes[:_NOTES]}


def main() -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", type=int, default=10_000, help="generated ones; deliberate attacks come besides")
    parser.add_argument("--generated", action="store_true", help="no deliberate attacks")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--limit", type=float, default=250.0, help="seconds for the runs")
    parser.add_argument("--folder", default="", help="where compiled kernels are; a temporary folder by default")
    parser.add_argument("--child", type=Path)
    given = parser.parse_args()
    if given.child:
        for event in child(json.loads(given.child.read_text()), given.folder, given.device):
            print(json.dumps(event), flush=True)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report = run(given, given.folder or folder)
    text = json.dumps(report, indent=1)
    print(text)
    if given.report:
        given.report.write_text(text + "\n")
    return int(any(report["outcomes"].get(event) for event in ("harm", "leak", "fault", "hung", "late", "died")))


def run(given: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Prepare and run all kernels; return the report."""
    import msgspec  # noqa: PLC0415

    from strategies.hostile import DELIBERATE  # noqa: PLC0415
    from tensorwasm.gpu.opening import open_device  # noqa: PLC0415

    device, _ = open_device(given.device)
    info = device.info
    device.close()
    names = [*([] if given.generated else DELIBERATE), *map(str, range(given.kernels))]
    names = [each for at, name in enumerate(names) for each in (name, name + WIDE)[: 1 + (at % WIDE_SHARE == 0)]]
    began_s = time.monotonic()
    prepared: Counter[str] = Counter()
    ready = []
    if info.kind == "emulator":
        ready = names
    else:
        jobs = [(name, folder, msgspec.msgpack.encode(info)) for name in names]
        with ProcessPoolExecutor() as pool:
            for name, state in zip(names, pool.map(prepare, jobs, chunksize=16), strict=True):
                prepared[state] += 1
                if state == "ok":
                    ready.append(name)
    prepared_s = round(time.monotonic() - began_s, 1)
    report = examine(ready, folder, given.device, given.limit)
    versions = {"device": info.name, "driver": info.driver, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    return {**versions, "kernels": len(names), "prepared": dict(prepared), "prepared_s": prepared_s, **report}


if __name__ == "__main__":
    sys.exit(main())
