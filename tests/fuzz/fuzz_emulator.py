"""Run damaged kernels on the emulator for a while: only our errors, none slow, nothing left on the device.

``python tests/fuzz/fuzz_emulator.py --seconds 60 [--seed N]``. Exits 1 at the first text that fails, and leaves it in
the folder it is started from.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from strategies.ptx import mutate
from tensorwasm import ptx
from tensorwasm.errors import InternalError, TensorWasmError
from tensorwasm.gpu.device.arguments import Argument, BufferOffset, Scalar
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.opening import open_device
from tensorwasm.gpu.session import Session
from tensorwasm.values import NEVER, Deadline, KernelSignature, LaunchConfig

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [*ROOT.glob("examples/*/*.ptx"), *ROOT.glob("tests/golden/kernels/*.ptx")]
ALLOWED_S, SLOW_S = 0.5, 10.0
BLOCKS = [(32, 1, 1), (16, 16, 1), (7, 3, 2), (256, 1, 1), (1, 1, 1)]


EDGES = [
    "0",
    "1",
    "-1",
    "4",
    "31",
    "64",
    "0x7fffffff",
    "0x80000000",
    "0xffffffff",
    "4294967296",
    "-9223372036854775808",
]


def distort(rng: random.Random, text: str) -> str:
    """Return the text with other registers, numbers and lines in its bodies: most of it still parses and runs."""
    lines = text.splitlines()
    inner = [at for at, line in enumerate(lines) if line.startswith("\t") and line.endswith(";") and "." in line[:12]]
    for _ in range(rng.randrange(1, 4)):
        at, other = rng.choice(inner), rng.choice(inner)
        match rng.randrange(5):
            case 0:
                lines[at] = lines[other]
            case 1:
                lines[at], lines[other] = lines[other], lines[at]
            case 2:
                lines[at] = ""
            case 3:
                lines[at] = re.sub(r"(?<=[ +])-?\b\d+\b(?=[\];,])", lambda _found: rng.choice(EDGES), lines[at])
            case _:
                found = re.findall(r"%[a-z]+\d+", lines[at])
                if found:
                    old = rng.choice(found)
                    kin = re.findall(re.escape(old.rstrip("0123456789")) + r"\d+", text)
                    lines[at] = re.sub(re.escape(old) + r"\b", rng.choice(kin), lines[at])
    return "\n".join(lines) + "\n"


def arguments(rng: random.Random, signature: KernelSignature, handle: int) -> list[Argument]:
    """Return arguments that fit: the buffer for pointers, small or any numbers for the rest."""
    made: list[Argument] = []
    for param in signature.params:
        number = rng.choice([rng.randrange(64), rng.getrandbits(8 * param.size_bytes)])
        plain = Scalar(number.to_bytes(param.size_bytes, "little"))
        made.append(BufferOffset(handle, 0) if param.pointer else plain)
    return made


def attempt(rng: random.Random, device: Device, text: str) -> bool:
    """Load and launch every entry of a text; return whether one ran to its end."""
    ran = False
    with Session(device) as session:
        handle = session.buffers.allocate(1 << 16)
        module = ptx.parse(text)
        for name in [function.name for function in module.functions() if function.entry]:
            kernel = session.kernels.load(text.encode(), name, NEVER)
            made = arguments(rng, ptx.signature(module, name), handle)
            config = LaunchConfig(
                (rng.randrange(1, 4), rng.randrange(1, 3), 1), rng.choice(BLOCKS), rng.choice([0, 4096])
            )
            session.kernels.launch(kernel, config, lambda made=made: made, None, Deadline.after(ALLOWED_S))
            ran = True
    return ran


def judge(rng: random.Random, device: Device, text: str) -> str:
    """Return ``ran`` or the kind of our error; raise AssertionError for whatever may not be."""
    start = time.monotonic()
    try:
        outcome = "ran" if attempt(rng, device, text) else "no entry"
    except InternalError:
        raise
    except TensorWasmError as error:
        outcome = error.kind
    assert time.monotonic() - start < SLOW_S, "slow"
    held = device.statistics()
    assert (held.allocations, held.modules, held.streams, held.registrations) == (0, 0, 0, 0), f"left behind: {held}"
    return outcome


def main() -> int:
    """Fuzz until the time is up; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    texts = [path.read_text() for path in sorted(SOURCES)]
    device, _ = open_device("emulator")
    until = time.monotonic() + options.seconds
    outcomes: dict[str, int] = {}
    while time.monotonic() < until:
        text = (mutate if rng.random() < 0.2 else distort)(rng, rng.choice(texts))
        try:
            outcome = judge(rng, device, text)
        except Exception:  # noqa: BLE001 - whatever it is, it is what this looks for
            traceback.print_exc()
            found = Path("fuzz_emulator.failed.ptx")
            found.write_text(text, "utf-8", errors="surrogatepass")
            sys.stderr.write(f"text {sum(outcomes.values()) + 1} of seed {options.seed} failed; it is in {found}\n")
            return 1
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    sys.stdout.write(f"{sum(outcomes.values())} texts: {outcomes}, none of them trouble\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
