"""Feed ``wasi:cuda`` damaged arguments for a while: only documented codes, nothing foreign at the device, nothing left.

``python tests/fuzz/fuzz_cuda_abi.py --seconds 60 [--seed N]``
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.argv import encode_argv
from fakes.device import FakeDevice
from fakes.guest import FakeCall
from strategies.kernels import FILL, VECTOR_ADD
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.limits.accounts import MemoryLedger, MemoryLedgerStatistics
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.session import Session
from tensorwasm.guest.imports import CudaService, host_functions
from tensorwasm.guest.imports.abi import CUDA_MODULE_0_3, Code
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.values import Deadline

FUNCTIONS = {
    offer.name.removeprefix("wasi_cuda_"): offer for offer in host_functions() if offer.module == CUDA_MODULE_0_3
}
LAUNCHES = {"launch": (), "launch_async": (0,)}
"""Launches, and what they take after the argument records."""
NAMES = [*FUNCTIONS, *[*LAUNCHES] * 8]
WORD = NumberArg("u32", bytes(4))
KERNELS = {
    b"fill": (FILL, encode_argv([WindowArg(64, 4), NumberArg("u32", bytes(4))])),
    b"vector_add": (
        VECTOR_ADD,
        encode_argv([WindowArg(0, 64), WindowArg(64, 64), BufferOffset(1, 0), NumberArg("u32", bytes(4))]),
    ),
}
TEXT_AT, ENTRY_AT, ARGV_AT = 0, 32000, 40000
EDGES = [0, 1, 4, 64, 1 << 16, 1 << 31, 1 << 32, 1 << 53, 1 << 63]
STEPS = 100
BITS = {"i32": 32, "i64": 64}


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes with a few of them changed, removed or doubled."""
    text = bytearray(data)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(text) + 1)
        piece = rng.choice([b"", rng.randbytes(1), rng.randbytes(9), bytes(text[:at])])
        text[at : at + rng.choice([0, 1, 1, 9])] = piece
    return bytes(text[:20000])


def number(rng: random.Random, bits: int, known: list[int]) -> int:
    """Return a signed number: known, near an edge, or any."""
    value = rng.choice([rng.choice(known), rng.choice(EDGES) + rng.randrange(-9, 9), rng.getrandbits(bits)])
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class Guest:
    """One guest that does its worst."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.device, self.ledger, self.gate = rng, FakeDevice(), MemoryLedger(), Gate()
        self.session = Session(self.device, ledger=self.ledger, gate=self.gate)
        self.call = FakeCall(deadline=Deadline(), services={"cuda": CudaService(self.session)})
        self.known = [0, 1, 4, 64, TEXT_AT, ENTRY_AT, ARGV_AT]
        self.kernels = {entry: self.answer("load_ptx", self.text(text, entry)) for entry, (text, _) in KERNELS.items()}
        self.known += self.kernels.values()
        self.answer("alloc", [64, 0])

    def text(self, text: bytes, entry: bytes) -> list[int]:
        """Put a text and a name into memory; return the parameters of load_ptx."""
        self.call.memory.write(TEXT_AT, text)
        self.call.memory.write(ENTRY_AT, entry)
        return [TEXT_AT, len(text), ENTRY_AT, len(entry)]

    def launch(self, entry: bytes) -> list[int]:
        """Put damaged arguments into memory; return the parameters that every launch has."""
        argv = damaged(self.rng, KERNELS[entry][1])
        self.call.memory.write(ARGV_AT, argv)
        return [self.kernels[entry], 1, 1, 1, 1, 1, 1, 0, ARGV_AT, len(argv)]

    def answer(self, name: str, params: list[int]) -> int:
        """Call a function."""
        answer = FUNCTIONS[name].body(self.call, *params)
        assert answer >= min(Code), (name, params, answer)
        return int(answer)

    def step(self) -> None:
        """Make one call, most of its parameters sound."""
        rng, name, entry = self.rng, self.rng.choice(NAMES), self.rng.choice([*KERNELS])
        params = [number(rng, BITS[kind], self.known) for kind in FUNCTIONS[name].params]
        if name == "load_ptx" and rng.random() < 0.8:
            params = self.text(damaged(rng, KERNELS[entry][0]), entry)
        elif name in LAUNCHES:
            sound = [*self.launch(entry), *LAUNCHES[name]]
            params = [good if rng.random() < 0.98 else bad for good, bad in zip(sound, params, strict=True)]
        answer = self.answer(name, params)
        if answer > 0:
            self.known.append(answer)

    def finish(self) -> int:
        """Check what the device saw and what is left; return how many launches reached it."""
        for launch in self.device.launched:
            pointers = [int.from_bytes(value, "little") for value in launch.args if len(value) == 8]
            assert all(not p or any(r.address <= p < r.end for r in launch.regions) for p in pointers), launch
        assert self.session.failure is None
        self.session.close()
        assert self.device.holds_nothing()
        assert self.device.broken == []
        assert self.ledger.statistics() == MemoryLedgerStatistics(0, 0)
        assert self.gate.in_use == 0
        return len(self.device.launched)


def round_of(rng: random.Random) -> int:
    """Let one guest do its worst; return how many of its launches reached the device."""
    guest = Guest(rng)
    for _ in range(STEPS):
        guest.step()
    return guest.finish()


def main() -> int:
    """Run until the time is up; say how to repeat a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    options = parser.parse_args()
    end, rounds, launches = time.monotonic() + options.seconds, 0, 0
    while time.monotonic() < end:
        seed = options.seed + rounds
        try:
            launches += round_of(random.Random(seed))
        except BaseException:
            sys.stderr.write(f"failed: --seed {seed}\n")
            raise
        rounds += 1
    sys.stdout.write(f"{rounds} guests, {rounds * STEPS} calls, {launches} launches, nothing found\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
