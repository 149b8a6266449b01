"""The committed guests, end to end: Wasm, the guest ABI, the committed PTX, the device, and their own verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensorwasm import Runtime

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Sizes that are no multiple of a block.
GUESTS = {
    "vector_add": "1003",
    "saxpy": "777",
    "matmul": "21",
    "reduction": "1300",
    "histogram": "5001",
    "softmax": "3",
    "mandelbrot": "31",
    "convolution": "37",
    "wmma": "3",
    "graph": "301",
    "streams": "1003",
}
KERNELS = {**dict(zip(GUESTS, GUESTS, strict=True)), "graph": "saxpy", "streams": "vector_add"}


@pytest.fixture(scope="module")
def runtime(device):
    with Runtime(device=device.info.kind) as runtime:
        yield runtime


@pytest.fixture(params=GUESTS)
def name(request):
    return request.param


@pytest.fixture
def guest(runtime, name):
    return runtime.load(EXAMPLES / name / f"{name}.wasm")


@pytest.mark.hardware("BUG-2", "BUG-8-memory")
def test_a_guest_verifies_what_its_kernel_computed(guest, name):
    result = guest.invoke(argv=[name, GUESTS[name]], grants={"cuda"})
    assert result.exit_code == 0, result.stderr
    assert result.stderr == b""
    *_, last = result.stdout.decode("ascii").splitlines()
    assert re.fullmatch(rf"{name}: .*, verified, max error \S+", last)
    if name != "softmax":  # the only one whose arithmetic a CPU cannot follow to the bit
        assert last.endswith("max error 0")


def test_the_export_run_counts_mismatches(guest, name):
    result = guest.invoke("run", [int(GUESTS[name])], grants={"cuda"})
    assert result.values == (0,)


def test_the_vector_add_example_verifies_its_result(runtime):
    result = runtime.load(EXAMPLES / "vector_add" / "vector_add.wasm").invoke(grants={"cuda"})
    assert result.stdout == b"vector_add: 65536 elements, verified, max error 0\n"


def test_the_pieces_of_streams_may_be_fewer_than_it_makes(runtime):
    streams = runtime.load(EXAMPLES / "streams" / "streams.wasm")
    for size in (1, 3, 4, 5):
        assert streams.invoke("run", [size], grants={"cuda"}).values == (0,)


def test_mandelbrot_draws(runtime):
    result = runtime.load(EXAMPLES / "mandelbrot" / "mandelbrot.wasm").invoke(
        argv=["mandelbrot", "40"], grants={"cuda"}
    )
    *picture, _ = result.stdout.decode("ascii").splitlines()
    assert [len(line) for line in picture] == [40] * 20
    assert picture[10].count("@") > picture[0].count("@") == 0


def test_without_the_grant_a_guest_says_so_and_fails(guest, name):
    result = guest.invoke(argv=[name, GUESTS[name]])
    assert result.exit_code == 1
    assert b"code -1" in result.stderr


@pytest.mark.parametrize("size", ["0", "-5", "nonsense", "99999999"])
def test_a_size_that_no_guest_takes(guest, name, size):
    result = guest.invoke(argv=[name, size], grants={"cuda"})
    assert result.exit_code == 1
    assert result.stderr.startswith(b"the size must be 1 to ")


@pytest.mark.parametrize("name", GUESTS)
@pytest.mark.hardware("BUG-7-ascii")
def test_a_committed_guest_carries_the_committed_kernels(name):
    module = (EXAMPLES / name / f"{name}.wasm").read_bytes()
    kernel = KERNELS[name]
    for target in (75, 80):
        ptx = (EXAMPLES / kernel / f"{kernel}.sm_{target}.ptx").read_bytes()
        assert ptx in module
        assert ptx.isascii()
        assert f".version 8.0\n.target sm_{target}\n".encode() in ptx
