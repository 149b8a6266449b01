"""Each instruction gives what wasmtime gives, on the host and in PTX, and says where the bits of a NaN would show."""

import itertools
import math
import random
import struct

import pytest
import wasmtime

from fakes.hand_programs import elementwise, run_on_gpu, run_on_host
from tensorwasm.gpu.opening import open_device
from tensorwasm.offload.codegen.host import compile_for_host
from tensorwasm.offload.codegen.host_pool import HostOutcome
from tensorwasm.offload.declined import Declined
from tensorwasm.offload.opcodes import DIVISIONS, KNOWN_BITS, ROWS, SAME_BITS, SHOWS_BITS
from tensorwasm.wasm.opcodes import BY_NAME

RANDOM = random.Random(5)
INTEGERS = {
    bits: [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF]
    + [(1 << bits) - 1, (1 << bits) - 2, 1 << (bits - 1), (1 << (bits - 1)) - 1, (1 << (bits - 1)) + 1]
    + [(1 << 24) + 1, (1 << 31) - 65, (1 << 32) - 1]
    + [RANDOM.getrandbits(bits) for _ in range(8)]
    for bits in (32, 64)
}
INTEGERS[64] += [(1 << 53) + 1, (1 << 62) + (1 << 38), (1 << 63) + (1 << 39), 0x8000004000000001, 0x7FFFFFBFFFFFFFFF]
DOUBLES = [0.0, 5e-324, 2.2250738585072014e-308, 2.2250738585072009e-308, 1e-45, 1.1754943508222875e-38]
DOUBLES += [0.5, 0.49999999999999994, 1.0, 1.5, 2.5, 3.5, math.pi, 1e10, 2147483647.0, 2147483648.0, 4294967295.5]
DOUBLES += [4294967296.0, 4503599627370497.5, 9007199254740993.0, 9223372036854774784.0, 9223372036854775808.0]
DOUBLES += [18446744073709551616.0, 3.4028234663852886e38, 3.4028235677973366e38, 1.7976931348623157e308, math.inf]
DOUBLES += [1.0000000596046448, 1.0000001788139343, 16777217.0, 7.006492321624085e-46]
NANS = {"f32": [0x7FC00000, 0x7FA00000, 0xFFC12345, 0xFF800001], "f64": [0x7FF8 << 48, 0x7FF4 << 48, 0xFFF8 << 48 | 77]}


def float_bits(kind):
    form, integer = ("<f", "<I") if kind == "f32" else ("<d", "<Q")
    found = []
    for value in (*DOUBLES, *(-value for value in DOUBLES)):
        try:
            found.append(struct.unpack(integer, struct.pack(form, value))[0])
        except OverflowError:
            found.append(struct.unpack(integer, struct.pack(form, math.inf))[0])
    width = 32 if kind == "f32" else 64
    return list(dict.fromkeys([*found, *(RANDOM.getrandbits(width) for _ in range(6)), *NANS[kind]]))


VALUES = {"i32": INTEGERS[32], "i64": INTEGERS[64], "f32": float_bits("f32"), "f64": float_bits("f64")}
EXACT = SAME_BITS | KNOWN_BITS | set(SHOWS_BITS)
OPCODES = sorted(set(ROWS) - DIVISIONS)


def is_nan(kind, bits):
    return (kind == "f32" and bits & 0x7FFFFFFF > 0x7F800000) or (kind == "f64" and bits & (1 << 63) - 1 > 0x7FF << 52)


@pytest.fixture(scope="module")
def reference():
    """What wasmtime makes of operands: a function of the opcode and lists of them, as bits."""
    functions = []
    for opcode in OPCODES:
        row = ROWS[opcode]
        operands = " ".join(
            f"({kind}.load (i32.add (local.get 0) (i32.const {8 * n})))" for n, kind in enumerate(row.operands)
        )
        store = f"({row.result}.store (local.get 0) ({opcode} {operands}))"
        functions.append(f'(func (export "{opcode}") (param i32) {store})')
    engine = wasmtime.Engine()
    module = wasmtime.Module(engine, f'(module (memory (export "m") 1) {"".join(functions)})')
    store = wasmtime.Store(engine)
    exports = wasmtime.Instance(store, module, []).exports(store)

    def run(opcode, operands):
        exports["m"].write(store, struct.pack(f"<{len(operands)}Q", *operands), 0)
        exports[opcode](store, 0)
        size = 4 if ROWS[opcode].result.endswith("32") else 8
        return int.from_bytes(exports["m"].read(store, 0, size), "little")

    return run


@pytest.fixture(scope="module")
def emulator():
    device, _ = open_device("emulator")
    yield device
    device.close()


def memory_for(opcode, cases):
    """Return the operands of all cases, in an array for each operand, and room for the results."""
    kinds, memory = ROWS[opcode].operands, bytearray()
    for operands in (*zip(*cases, strict=True), [0] * len(cases)):
        memory += struct.pack(f"<{len(cases)}Q", *operands)
    return memory, 8 * len(cases) * len(kinds)


def judged(opcode, cases, wanted, run, exact=frozenset()):
    """Run cases; where no NaN comes out the bits are right, and where one does they are or it is said.

    Of those that are ``exact`` NaNs are right too.
    """
    kinds, shown = (ROWS[opcode].result, *ROWS[opcode].operands), 1 + SHOWS_BITS.get(opcode, -1)
    for nan in (False, True):
        all_bits = enumerate(zip(wanted, *zip(*cases, strict=True), strict=True))
        chosen = [number for number, bits in all_bits if any(is_nan(kinds[at], bits[at]) for at in {0, shown}) == nan]
        if not chosen:
            continue
        memory, at = memory_for(opcode, [cases[number] for number in chosen])
        completed = run(elementwise(opcode, len(chosen)), memory)
        if not completed and nan and opcode not in exact:
            continue
        assert completed
        assert list(struct.unpack_from(f"<{len(chosen)}Q", memory, at)) == [wanted[number] for number in chosen]


def cases_of(opcode):
    cases = list(itertools.product(*(VALUES[kind] for kind in ROWS[opcode].operands)))
    return random.Random(opcode).sample(cases, min(len(cases), 700))


def test_all_instructions_that_cannot_trap_have_a_row():
    kinds = ("i32.", "i64.", "f32.", "f64.")
    others = ("load", "store", "const", ".trunc_f")
    numeric = {name for name in BY_NAME if name.startswith(kinds) and not any(word in name for word in others)}
    assert set(ROWS) == numeric


@pytest.mark.parametrize("opcode", OPCODES)
def test_an_instruction_on_the_host_gives_what_wasmtime_gives(opcode, reference):
    cases = cases_of(opcode)
    wanted = [reference(opcode, case) for case in cases]
    judged(
        opcode, cases, wanted, lambda made, memory: run_on_host(made, memory).outcome is HostOutcome.COMPLETED, EXACT
    )


@pytest.mark.parametrize("opcode", OPCODES)
def test_an_instruction_in_ptx_gives_what_wasmtime_gives(opcode, reference, emulator):
    cases = cases_of(opcode)[:300]
    wanted = [reference(opcode, case) for case in cases]
    judged(opcode, cases, wanted, lambda made, memory: run_on_gpu(emulator, made, memory) is not None)


@pytest.mark.parametrize("opcode", sorted(DIVISIONS))
def test_a_division_by_what_may_be_zero_declines(opcode):
    with pytest.raises(Declined):
        compile_for_host(elementwise(opcode, 4))
