"""Templates of worker processes that misbehave: ``python worker.py WHAT FD``. The product does not know them.

``puppet`` keeps to the protocol and does what the export's name says; the others do not start, or break the device of a
real worker.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import stat
import struct
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from tensorwasm.errors import DeviceLost, KernelFault
from tensorwasm.gpu.cuda import opening
from tensorwasm.gpu.cuda.driver.calls import Driver
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.opening import open_device
from tensorwasm.ptx import parse
from tensorwasm.runtime.api import lazy_device
from tensorwasm.runtime.workers.child import __main__ as child
from tensorwasm.runtime.workers.child.fork_server import load_all, run
from tensorwasm.runtime.workers.frames import (
    PROTOCOL,
    AskFrame,
    AskPartFrame,
    BeatFrame,
    Charge,
    DoneFrame,
    FailedFrame,
    InvokeFrame,
    KernelFrame,
    LongWorkFrame,
    NoKernelFrame,
    OutputFrame,
    ReadyFrame,
    SetupFrame,
    SickFrame,
    StopFrame,
    TargetFrame,
    TurnEndFrame,
    TurnFrame,
    UnfitFrame,
    WishFrame,
)
from tensorwasm.runtime.workers.kernels.room import ASKS_EACH
from tensorwasm.runtime.workers.wire import TO_WORKER, Splitter, encode
from tensorwasm.values import NEVER


def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


READY = ReadyFrame(
    PROTOCOL, "0", "emulator", 0, "puppet", (9, 0), (9, 0), 1 << 30, 1, 1 << 10, True, "", 1024, "ptxas 13.0"
)


class Puppet:
    """Answers every call with 7, unless the export's name asks for mischief."""

    def __init__(self, link):
        self.link = link
        self.lock = threading.Lock()
        self.beats = 0
        self.held = []
        self.wishes = {}
        self.in_turn, self.contested = None, False
        self.beating = True
        self.setup = None
        self.targets = {}

    def send(self, *frames):
        with self.lock:
            self.link.sendall(b"".join(map(encode, frames)))

    def send_raw(self, data):
        with self.lock:
            self.link.sendall(data)

    def done(self, call, **changes):
        usual = DoneFrame(call.request, call.export or "_start", (7,), ("i32",), 0, 0.0, None, False, False)
        fields = {name: getattr(usual, name) for name in usual.__struct_fields__}
        return DoneFrame(**fields | changes)

    def beat(self, every_s):
        with self.lock:
            self.beats += 1
            if self.beating:
                self.link.sendall(encode(BeatFrame(self.beats, ())))
        timer = threading.Timer(every_s, self.beat, (every_s,))
        timer.daemon = True
        timer.start()

    def join(self, frame):
        """Return a call with what it has in common with others."""
        target = self.targets[frame.target]
        fields = {name: getattr(each, name) for each in (target, frame) for name in each.__struct_fields__}
        return SimpleNamespace(**fields)

    def obey(self, call):
        action = getattr(self, f"do_{call.export}", None)
        if action is None:
            self.send(self.done(call))
        else:
            action(call)

    def do_kill(self, call):
        os.kill(os.getpid(), signal.SIGKILL)

    def do_segv(self, call):
        ctypes.string_at(0)

    def do_exit(self, call):
        os._exit(3)

    def do_close(self, call):
        self.link.shutdown(socket.SHUT_RDWR)
        threading.Event().wait()

    def do_midframe(self, call):
        self.send_raw(encode(self.done(call))[:9])
        os._exit(0)

    def do_garbage(self, call):
        self.send_raw(b"\xff" * 4096)

    def do_oversize(self, call):
        self.send_raw(struct.pack(">BI", 69, (1 << 32) - 1))

    def do_hello(self, call):
        self.send(READY)

    def do_twice(self, call):
        self.send(self.done(call), self.done(call))

    def do_foreign(self, call):
        self.send(self.done(call, request=call.request + 1))

    def do_other(self, call):
        self.send(self.done(call, export="another"))

    def do_misfit(self, call):
        self.send(self.done(call, values=(1 << 40,)))

    def do_flood(self, call):
        for _ in range(2000):
            self.send(OutputFrame(call.request, "stdout", bytes(64 << 10)))

    def do_skip(self, call):
        self.send(BeatFrame(self.beats + 2, ()))

    def do_charge(self, call):
        self.send(BeatFrame(self.beats + 1, (Charge("somebody-else", 1, 1),)))

    def do_hold(self, call):
        """Say so, and answer at the end of `release`."""
        self.held.append(call)
        self.send(OutputFrame(call.request, "stdout", b"held"))

    def do_charged(self, call):
        """Hold, and be charged for it."""
        with self.lock:
            self.beats += 1
            self.link.sendall(encode(BeatFrame(self.beats, (Charge(call.tenant, 4096, 64),))))
        self.do_hold(call)

    def do_release(self, call):
        self.send(*(self.done(each) for each in self.held), self.done(call))
        self.held.clear()

    def do_silence(self, call):
        with self.lock:
            self.beating = False
        self.do_hold(call)

    def do_exotic(self, call):
        self.send(FailedFrame(call.request, "SystemExit", "who knows"))

    def do_sick(self, call):
        """Lose the device: answer what is held as lost, and this call with its result."""
        self.send(SickFrame("an access outside memory"))
        self.send(*(FailedFrame(each.request, "device_lost", "the device does not answer") for each in self.held))
        self.send(self.done(call))
        self.held.clear()

    def do_long(self, call):
        """Have kernels that run long."""
        self.send(LongWorkFrame(call.tenant), self.done(call))

    def do_foreign_long(self, call):
        self.send(LongWorkFrame("somebody-else"))

    def do_foreign_wish(self, call):
        self.send(WishFrame({call.tenant: 1, "somebody-else": 1}))

    def wish(self):
        return WishFrame({tenant: call.weight for tenant, call in self.wishes.items()})

    def do_wish(self, call):
        """Keep the device busy until the tenant has had a turn, which is shown."""
        self.wishes[call.tenant] = call
        self.send(self.wish())

    def do_greedy(self, call):
        """Keep the device busy without end, and begin to when this is answered."""
        self.send(WishFrame({call.tenant: call.weight}), self.done(call))

    def do_await_turns(self, call):
        """Keep the device busy until nobody waits for turns any more, as one who is held does."""
        self.in_turn = call
        self.send(WishFrame({call.tenant: call.weight}))

    def take_turn(self, frame):
        self.contested |= frame.contested
        if self.in_turn is not None and self.contested and not frame.contested:
            self.send(self.done(self.in_turn))
            self.in_turn = None
        call = self.wishes.pop(frame.tenant, None)
        if call is not None:
            told = json.dumps({"number": frame.number, "length_ns": frame.length_ns}).encode()
            ends = TurnEndFrame(frame.number), self.wish()
            self.send(OutputFrame(call.request, "stdout", told), self.done(call), *ends)

    def do_ask(self, call):
        """Have a kernel compiled, and say what came."""
        self.asking = call
        text = call.argv[0].encode()
        half = len(text) // 2
        self.send(AskFrame(7, call.tenant, "k", (9, 0), "narrow", len(text)))
        self.send(AskPartFrame(7, text[:half]), AskPartFrame(7, text[half:]))

    def do_ask_and_die(self, call):
        self.do_ask(call)
        os._exit(0)

    def do_ask_late(self, call):
        """Ask once the call has been answered."""
        self.send(self.done(call))
        self.do_ask(call)
        self.asking = None

    def do_foreign_ask(self, call):
        self.send(AskFrame(7, "somebody-else", "k", (9, 0), "narrow", 8))

    def do_long_ask(self, call):
        self.send(AskFrame(7, call.tenant, "k", (9, 0), "narrow", 8), AskPartFrame(7, b"x" * 9))

    def do_strange_part(self, call):
        self.send(AskPartFrame(7, b"x"))

    def do_many_asks(self, call):
        numbers = range(1, ASKS_EACH.kernels + 2)
        self.send(*(AskFrame(number, call.tenant, "k", (9, 0), "narrow", 8) for number in numbers))

    def take_kernel(self, frame):
        text = frame.failure.message if isinstance(frame, NoKernelFrame) else str(frame.ask)
        call, self.asking = self.asking, None
        if call is None:
            return
        self.send(OutputFrame(call.request, "stdout", text.encode()), self.done(call))

    def do_setup(self, call):
        """Say what it was told to be."""
        names = "device", "multiprocessors", "place", "jit", "isolation"
        told = {name: getattr(self.setup, name) for name in names} | {"gpu_bytes": call.gpu_bytes, "pid": os.getpid()}
        self.send(OutputFrame(call.request, "stdout", json.dumps(told).encode()), self.done(call))

    def do_pid(self, call):
        self.send(self.done(call, values=(os.getpid(),)))

    def do_variables(self, call):
        self.send(OutputFrame(call.request, "stdout", "\n".join(sorted(os.environ)).encode()), self.done(call))

    def do_descriptors(self, call):
        kinds = [os.fstat(number).st_mode for number in range(3, 256) if is_open(number)]
        text = "\n".join("socket" if stat.S_ISSOCK(kind) else f"mode {kind:o}" for kind in kinds)
        self.send(OutputFrame(call.request, "stdout", text.encode()), self.done(call))


def serve(link, handover):
    """Be a puppet until told to leave."""
    puppet, splitter = Puppet(link), Splitter(TO_WORKER)
    while data := link.recv(1 << 16):
        for frame in splitter.feed(data):
            if isinstance(frame, SetupFrame):
                puppet.setup = frame
                puppet.send(READY)
                puppet.beat(frame.beat_s)
            elif isinstance(frame, InvokeFrame):
                puppet.obey(puppet.join(frame))
            elif isinstance(frame, TargetFrame):
                puppet.targets[frame.target] = frame
            elif isinstance(frame, TurnFrame):
                puppet.take_turn(frame)
            elif isinstance(frame, (KernelFrame, NoKernelFrame)):
                puppet.take_kernel(frame)
            elif isinstance(frame, StopFrame):
                return 0
    return 0


def refuse(link, handover):
    """Have no device."""
    link.sendall(encode(UnfitFrame("device_unavailable", "there is no cuda:7")))
    return 0


class FaultyDevice:
    """A device that is lost with the first launch that has more than one block along y."""

    def __init__(self, device):
        self._device = device
        self._lost = False

    def __getattr__(self, name):
        if self._lost and name not in {"info", "statistics", "close"}:
            raise DeviceLost("a planted fault")
        return getattr(self._device, name)

    @property
    def info(self):
        return replace(self._device.info, name="faulty")

    def launch(self, loaded, entry, config, *rest):
        if config.grid[1] > 1:
            self._lost = True
            raise KernelFault("a planted fault")  # which the guest may hide
        return self._device.launch(loaded, entry, config, *rest)


def break_device(link, handover):
    """Be a real worker whose device can be lost."""

    def open_faulty(choice, **options):
        healthy, reason = open_device(choice, **options)
        return FaultyDevice(healthy), reason

    lazy_device.open_device = open_faulty
    return child.work(link, handover)


class ImageDevice(EmulatorDevice):
    """An emulator with a compiler, whose images are texts."""

    assembler = "ptxas 13.0"

    def assemble(self, module, deadline):
        raise AssertionError("a worker compiles nothing")

    def load_image(self, image, signature):
        return self.load(parse(image.decode()), NEVER)


def load_images(link, handover):
    """Be a real worker whose device takes compiled kernels."""
    lazy_device.open_device = lambda *_, **__: (ImageDevice(), "")
    return child.work(link, handover)


def imagine_gpu(link, handover):
    """Be a real worker on a GPU that is not there, on a machine without ptxas."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from fakes.driver import FakeDriver  # noqa: PLC0415 - found by the path above

    driver = Driver(FakeDriver())
    opening.load_driver = lambda: driver
    opening.find_assembler = lambda *_: None
    return child.work(link, handover)


KINDS = {
    "gpu": imagine_gpu,
    "images": load_images,
    "puppet": serve,
    "unfit": refuse,
    "crash": lambda link, handover: 9,
    "mute": lambda link, handover: threading.Event().wait(),
    "faulty": break_device,
}


def load_nothing():
    """Load nothing: most need no compiled code."""


if __name__ == "__main__":
    kind = KINDS[sys.argv[1]]
    real = kind in {break_device, imagine_gpu, load_images}
    run(kind, [*map(int, sys.argv[2:])], load_all if real else load_nothing)
