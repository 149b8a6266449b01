"""What kernels print reaches the guest's standard output, or the kernel is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wasmtime import wat2wasm

from conformance.launcher import Launcher
from tensorwasm import Runtime
from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.device.port import MAX_KERNEL_OUTPUT_BYTES, KernelOutput
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.session import Session
from tensorwasm.guest.imports.abi import CUDA_MODULE_0_3
from tensorwasm.ptx import extract, parse
from tensorwasm.values import NEVER, Deadline, LaunchConfig, Region

PTX = (Path(__file__).parents[1] / "golden" / "ptx" / "printing.sm_75.ptx").read_bytes()
NUMBERS = np.array([42, -7, 0], np.int32)
SAID = """\
42|   42|42   |00042|+42|42|2a|0X2A|52|420000000000|42|a|%
-7|   -7|-7   |-0007|-7|4294967289|fffffff9|0XFFFFFFF9|37777777771|-70000000000|-7|b|%
0|    0|0    |00000|+0|0|0|0|0|0|0|c|%
10.500000|14.00| 4.200e+01|10.5|text|     abc|    42
-1.750000|-2.33|-7.000e+00|-1.75|text|     abc|    -7
0.000000|0.00| 0.000e+00|0|text|     abc|     0
"""
"""As C's own printf says it."""


def run(entry, threads, grid=1, numbers=None):
    device, output = EmulatorDevice(1 << 24), KernelOutput()
    with Launcher(device):
        loaded = device.load(extract(parse(PTX), entry), NEVER, output)
        stream, args, regions = device.open_stream(), [], []
        if numbers is not None:
            address = device.allocate(numbers.nbytes)
            device.write(address, numbers.tobytes(), stream)
            args, regions = [address.to_bytes(8, "little")], [Region(address, numbers.nbytes, host=False)]
        config = LaunchConfig((grid, 1, 1), (threads, 1, 1))
        device.launch(loaded, entry, config, args, regions, stream, Deadline.after(120))
        device.synchronize(stream, Deadline.after(120))
    device.close()
    return output.take()


def test_numbers_and_texts_are_written_as_c_writes_them():
    text, cut = run("greet", 3, numbers=NUMBERS)
    assert text.decode() == SAID
    assert not cut


def test_threads_print_in_their_order():
    expected = "".join(f"block {block}, thread {thread}\n" for block in range(2) for thread in range(40))
    assert run("hello", 40, grid=2) == (expected.encode(), False)


def test_kept_kernel_output_is_bounded_and_marked_as_cut():
    text, cut = run("endless_talk", 32)
    assert len(text) == MAX_KERNEL_OUTPUT_BYTES
    assert cut


GUEST = """
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "{module}" "wasi_cuda_load_ptx" (func $load (param i32 i32 i32 i32) (result i64)))
  (import "{module}" "wasi_cuda_launch"
    (func $launch (param i64 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 64) "{entry}")
  (data (i32.const 4096) "{text}")
  (func (export "talk") (param $threads i32) (result i32) (local $kernel i64)
    (local.set $kernel (call $load (i32.const 4096) (i32.const {size}) (i32.const 64) (i32.const {entry_size})))
    (if (i64.lt_s (local.get $kernel) (i64.const 0)) (then (return (i32.wrap_i64 (local.get $kernel)))))
    (call $launch (local.get $kernel) (i32.const 1) (i32.const 1) (i32.const 1)
      (local.get $threads) (i32.const 1) (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 0))))
"""


def guest(entry):
    text = "".join(f"\\{byte:02x}" for byte in PTX)
    words = {"module": CUDA_MODULE_0_3, "entry": entry, "entry_size": len(entry), "text": text, "size": len(PTX)}
    return bytes(wat2wasm(GUEST.format(**words)))


@pytest.fixture(scope="module")
def runtime():
    with Runtime(device="emulator") as runtime:
        yield runtime


def test_a_guest_has_it_on_its_standard_output(runtime):
    function = runtime.load(guest("hello"))
    for _ in range(2):
        result = function.invoke("talk", [3], grants={"cuda"})
        assert result.values == (0,)
        assert result.stdout == b"block 0, thread 0\nblock 0, thread 1\nblock 0, thread 2\n"
        assert result.stderr == b""


def test_a_guest_learns_that_kernel_output_was_cut(runtime):
    result = runtime.load(guest("endless_talk")).invoke("talk", [32], grants={"cuda"})
    assert len(result.stdout) == MAX_KERNEL_OUTPUT_BYTES
    assert result.stderr == b"tensor-wasm: kernels printed more than 1048576 bytes; the rest is lost\n"


def test_one_kernel_that_prints_costs_no_other_of_its_text(device):
    with Session(device) as session:
        session.kernels.load(PTX, "quiet", Deadline())
        if device.info.kind == "cuda":
            with pytest.raises(UnsupportedPtx, match="vprintf: on a GPU") as caught:
                session.kernels.load(PTX, "hello", Deadline())
            assert caught.value.line
        else:
            session.kernels.load(PTX, "hello", Deadline())
