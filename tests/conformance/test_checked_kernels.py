"""Kernels that check their accesses, on both devices: right ones give what they give, wrong ones are reported."""

from __future__ import annotations

import pytest
from numpy.testing import assert_allclose

from cases import Buffer, cases
from fakes.emulation import kernel
from tensorwasm import Runtime
from tensorwasm.errors import InvalidArgs, KernelFault, TensorWasmError
from tensorwasm.gpu.device.arguments import BufferOffset, HostWindow, Scalar
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.memory import pages
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.values import MIB, NEVER, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
STRAY = kernel(
    "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; add.u64 %rd1, %rd1, %rd2;\nst.global.u32 [%rd1], 7;", params=2
).encode()


@pytest.fixture
def session(device):
    if not device.windows.available:
        pytest.skip("this device has no windows of addresses")
    accounts = Accounts(MemoryLedger())
    accounts.register("ann", 256 * MIB, 64 * MIB)
    with (
        SharedDevice(device, accounts, Gate(4), guarded=True, checked=True) as shared,
        shared.open_session("ann", memory_kind="staged") as session,
    ):
        yield session


@pytest.mark.parametrize("case", [case for case in cases("small") if "-" not in case.name], ids=lambda case: case.name)
def test_a_kernel_of_the_corpus_gives_what_it_gives(session, case):
    loaded = session.kernels.load(case.text().encode(), case.entry, NEVER)
    arguments, given, held = case.arguments(), [], {}
    for index, argument in enumerate(arguments):
        if isinstance(argument, Buffer):
            held[index] = session.buffers.allocate(argument.array.nbytes)
            session.buffers.write(held[index], argument.array.tobytes(), NEVER)
            given.append(BufferOffset(held[index], 0))
        else:
            given.append(Scalar(argument.tobytes()))
    config = LaunchConfig(case.grid, case.block, case.shared_bytes)
    session.kernels.launch(loaded, config, lambda: given, None, NEVER)
    for index, expected in case.expected(arguments).items():
        after = arguments[index].array.copy()
        session.buffers.read(held[index], memoryview(after).cast("B"), NEVER)
        assert_allclose(after, expected, rtol=case.rtol, atol=case.atol)


@pytest.mark.parametrize(
    ("offset", "words"), [(64, "ends 4 bytes behind buffer 1 of 64 bytes"), (-4, "begins 4 bytes")]
)
@pytest.mark.parametrize("way", ["launch", "submit"])
def test_an_access_outside_of_a_buffer_is_reported(session, offset, words, way):
    loaded, own = session.kernels.load(STRAY, "k", NEVER), session.buffers.allocate(64)
    given = [BufferOffset(own, 0), Scalar((offset % (1 << 64)).to_bytes(8, "little"))]
    with pytest.raises(KernelFault, match=words) as caught:
        getattr(session.kernels, way)(loaded, ONE, lambda: given, None, NEVER)
    assert "st.global.u32, a store of 4 bytes" in caught.value.message


WRONG = {
    "st.shared.u32 [%r1+64], 7;": "a store of 4 bytes at offset 64, ends 4 bytes behind the 64 bytes of shared memory",
    "ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1+8];": "a load of 16 bytes at offset 8, is not aligned",
    "ld.u32 %r2, [%rd3+64];": "a load of 4 bytes at offset 64, ends 4 bytes behind the 64 bytes of shared memory",
    # A GPU has shared memory of the system's before the first variable, the emulator has none.
    "ld.u32 %r2, [%rd3+-4];": "begins 4 bytes before the 64 bytes of shared memory|is far from all",
    "cp.async.ca.shared.global [%r1], [%rd1+64], 16;": "a load of 16 bytes.*, ends 16 bytes behind buffer 1",
    "atom.global.add.u32 %r2, [%rd1+64], 1;": "an atomic operation of 4 bytes.*, ends 4 bytes behind buffer 1",
    "red.global.add.noftz.f16x2 [%rd1+2], %r2;": "an atomic operation of 4 bytes.*, is not aligned, in buffer 1",
    "ld.global.u32 %r2, [v+8];": "a load of 4 bytes.*, ends 4 bytes behind the variables of its module",
    "ld.global.u32 %r2, [8];": "is far from all that it may access; nearest is",
}
RIGHT = """st.shared.u32 [%r1+60], 7; ld.u32 %r2, [%rd3+60]; ld.global.u32 %r3, [v+4];
st.global.v2.u32 [%rd1+56], {%r2, %r3};
mov.u64 %rd4, 8; mov.u32 %r5, 0; cp.async.ca.shared.global [%r1], [%rd4], 16, %r5; cp.async.wait_all;"""


def forms(body):
    """Return a kernel of a buffer of 64 bytes, with 64 bytes of shared memory and a variable of 8."""
    start = "ld.param.u64 %rd1, [p0]; .shared .align 16 .b8 s[64]; mov.u32 %r1, s; mov.u64 %rd3, s; mov.u32 %r2, 0;"
    return kernel(f"{start} cvta.shared.u64 %rd3, %rd3;\n{body}", before=".global .align 8 .u32 v[2] = {3, 4};")


def launch(session, text):
    """Launch it; return what is in the buffer."""
    loaded, own, into = session.kernels.load(text.encode(), "k", NEVER), session.buffers.allocate(64), bytearray(64)
    session.kernels.launch(loaded, ONE, lambda: [BufferOffset(own, 0)], None, NEVER)
    session.buffers.read(own, memoryview(into), NEVER)
    return bytes(into)


@pytest.mark.parametrize(("access", "words"), WRONG.items())
def test_what_is_wrong_with_an_access_is_said(session, access, words):
    text = forms(access)
    line = text[: text.index(access)].count("\n") + 1
    with pytest.raises(KernelFault, match=words) as caught:
        launch(session, text)
    mnemonic = access.partition(" ")[0]
    where = f"line {line} of the PTX, block (0, 0, 0), thread (0, 0, 0): {mnemonic}, a"
    assert where in caught.value.message


def test_accesses_that_are_right_are_made(session):
    assert launch(session, forms(RIGHT))[56:] == b"\7\0\0\0\4\0\0\0"


def test_numbers_are_addresses_in_shared_memory(session, device):
    at = device.shared_base
    body = "st.shared.u32 [{}], 7; ld.shared.u32 %r2, [%r1+60]; st.global.u32 [%rd1], %r2;"
    assert launch(session, forms(body.format(at + 60)))[:4] == b"\7\0\0\0"
    with pytest.raises(KernelFault, match="at offset 64, ends 4 bytes behind the 64 bytes of shared memory"):
        launch(session, forms(body.format(at + 64)))


def test_a_window_may_be_accessed_to_its_end(session):
    loaded, at = session.kernels.load(STRAY, "k", NEVER), pages.acquire(1 << 16)
    try:
        memory = Region(at, 1 << 16, host=True)
        for offset in (0, 60):
            given = [HostWindow(at + 256, 64), Scalar(offset.to_bytes(8, "little"))]
            session.kernels.launch(loaded, ONE, lambda given=given: given, memory, NEVER)
        given = [HostWindow(at + 256, 64), Scalar((64).to_bytes(8, "little"))]
        with pytest.raises(KernelFault, match="ends 4 bytes behind a window of 64 bytes"):
            session.kernels.launch(loaded, ONE, lambda: given, memory, NEVER)
    finally:
        session.close()
        pages.give_back(at)


def test_a_checked_kernel_is_not_recorded(session):
    loaded, own = session.kernels.load(STRAY, "k", NEVER), session.buffers.allocate(64)
    stream = session.streams.open()
    session.graphs.begin(stream)
    with pytest.raises(InvalidArgs, match="is launched by itself"):
        session.kernels.submit(loaded, ONE, lambda: [BufferOffset(own, 0), Scalar(bytes(8))], None, NEVER, stream)


def test_a_program_runs_checked(device, request):
    name = "emulator" if device.info.kind == "emulator" else f"cuda:{device.info.ordinal}"
    with Runtime(device=name, checked=True) as runtime:
        for example in ("vector_add", "reduction", "matmul", "streams"):
            function = runtime.load(request.config.rootpath / "examples" / example / f"{example}.wasm")
            try:
                outcome = function.invoke(grants={"cuda"})
            except TensorWasmError as error:
                raise AssertionError(example) from error
            assert outcome.exit_code == 0, (example, outcome.stderr)
            assert b"verified" in outcome.stdout
