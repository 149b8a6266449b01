"""Compiled launches against the Python that they stand for: the same launch, or none and Python is asked."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.argv import encode_argv
from fakes.device import INFO
from fakes.pads import FUNCTION, NOT_READY, OWN_STREAM, Started, kernel_of
from oracles.launches import Asked, judge
from strategies import launches as gen
from strategies.argv import around
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.guest.imports.argv import NumberArg, WindowArg
from tensorwasm.values import Deadline, KernelParam, KernelSignature, LaunchConfig, Region

KERNEL = 65
PAGES = (1, 1 << 15, (1 << 15) + 1, 1 << 16)  # up to 2 GiB, just beyond, and all of 4 GiB
BUFFERS_AT = {handle: (1 << 45) + (index << 40) for index, handle in enumerate(gen.BUFFERS)}
POINTER = KernelParam("p", 8, 8, pointer=True, access_align_bytes=4)
COUNT = KernelParam("n", 4, 4)
ONE = KernelSignature("k", (POINTER, COUNT))

LAST = Asked(
    LaunchConfig((1, 1, 1), (1, 1, 1)), encode_argv([WindowArg((1 << 32) - 4, 4), NumberArg("u32", b"abcd")]), 0, 14
)
"""A launch on the last 4 bytes of 4 GiB."""


def buffers_in(layout) -> dict[int, Region]:
    """Return the buffers that kept their rows."""
    kept = {row.handle: Region(row.address, row.size_bytes, host=False) for row in layout.buffers if row.handle}
    assert len(kept) < len(gen.BUFFERS)
    return kept


def ask(bench, asked: Asked, *, kernel: int = KERNEL, stream: int | None = None) -> int:
    config = asked.config
    args_at, args_len = (number - (1 << 32) if number >> 31 else number for number in (asked.args_at, asked.args_len))
    params = (kernel, *config.grid, *config.block, config.shared_bytes, args_at, args_len)
    if stream is None:
        return bench.call("wasi_cuda_launch", *params)
    return bench.call("wasi_cuda_launch_async", *params, stream)


@st.composite
def cases(draw):
    pages = draw(st.sampled_from(PAGES))
    size_bytes = pages << 16
    signature = draw(gen.signatures)
    argv = draw(gen.argvs(signature, size_bytes))
    last = max(0, size_bytes - len(argv))
    args_at = draw(st.sampled_from([0, last]) | st.integers(0, last) | around(32))
    args_len = draw(st.sampled_from([len(argv)] * 20 + [4096, 4097, (1 << 32) - 1]))
    reach = draw(st.sampled_from([size_bytes] * 6 + [1 << 16, 0]))
    return pages, signature, Asked(draw(gen.geometries(signature)), argv, args_at, args_len), reach


@settings(max_examples=300, deadline=None)
@given(case=cases(), own=st.booleans())
@example(case=(1 << 16, ONE, LAST, 1 << 32), own=True)
@pytest.mark.rule("1-twin", "5-compiled")
def test_a_launch_is_what_python_would_make_of_it_or_left_to_python(make_bench, case, own):
    pages, signature, asked, reach_bytes = case
    bench = make_bench(pages)
    native = kernel_of()
    bench.hand.put_kernel(KERNEL, signature, native)
    bench.hand.put_stream(34, 0x34)
    for handle, size in gen.BUFFERS.items():
        bench.hand.put_buffer(handle, BUFFERS_AT[handle], size)
    reach = bench.reach(reach_bytes)
    memory = bench.memory
    if asked.args_at + len(asked.argv) <= memory.size_bytes:
        bench.instance.memory.write(asked.args_at, asked.argv)
    stream = OWN_STREAM if own else 0x34
    expected = judge(asked, signature, native, INFO, memory, reach, buffers_in(bench.layout), stream)

    answer = ask(bench, asked, stream=None if own else 34)

    assert bench.driver.calls == ([expected] if expected else [])
    assert bench.went_native() == (expected is not None)
    assert (answer == 0) == (expected is not None)
    assert bench.layout.launched == len(bench.driver.calls)
    assert bench.layout.pending == (1 if expected and not own else 0)
    if not expected:
        (seen,) = bench.calls.fallbacks
        assert seen[1] == KERNEL  # the cell where a failure was preset


def put_simple(bench, *, offset: int = 4096, length: int = 4096) -> Asked:
    """Prepare a launch that succeeds."""
    bench.hand.put_kernel(KERNEL, ONE, kernel_of())
    bench.reach()
    argv = encode_argv([WindowArg(offset, length), NumberArg("u32", struct.pack("<I", 7))])
    bench.instance.memory.write(0, argv)
    return Asked(LaunchConfig((2, 1, 1), (32, 1, 1), 16), argv, 0, len(argv))


def started(bench, asked, offset: int = 4096) -> Started:
    values = ((bench.memory.address + offset).to_bytes(8, "little"), struct.pack("<I", 7))
    return Started(FUNCTION, asked.config.grid, asked.config.block, asked.config.shared_bytes, OWN_STREAM, values)


def test_a_launch_reaches_the_driver_without_python(bench):
    asked = put_simple(bench)
    assert ask(bench, asked) == 0
    assert bench.driver.calls == [started(bench, asked)]
    assert bench.went_native()
    assert (bench.layout.launched, bench.layout.pending, bench.layout.streams[0].pending) == (1, 0, 0)


@pytest.mark.parametrize("kernel", [0, -1, KERNEL + 64, KERNEL - 64, 1 << 62, -(1 << 63)])
def test_a_kernel_that_is_not_there_is_left_to_python_to_refuse(bench, kernel):
    assert ask(bench, put_simple(bench), kernel=kernel) == -99
    assert bench.driver.calls == []


@pytest.mark.parametrize("stream", [1, -1, 32, 64, 1 << 32, -(1 << 63)])
def test_a_stream_that_is_not_there_is_left_to_python_to_refuse(bench, stream):
    assert ask(bench, put_simple(bench), stream=stream) == -99
    assert bench.driver.calls == []


UNREADY = {
    "not armed": lambda bench: setattr(bench.layout, "armed", 0),
    "armed in a way of the future": lambda bench: setattr(bench.layout, "armed", 2),
    "without a place": lambda bench: setattr(bench.layout, "placed", 0),
    "without a driver": lambda bench: setattr(bench.layout, "driver", 0),
    "another context": lambda bench: setattr(bench.driver, "context", 1),
    "no context": lambda bench: bench.driver.results.update(context_current=201),
    "recording": lambda bench: setattr(bench.layout.streams[0], "recording", 1),
    "no stream": lambda bench: setattr(bench.layout.streams[0], "stream", 0),
}


@pytest.mark.parametrize("unready", UNREADY)
def test_a_session_that_is_not_ready_is_left_to_python(bench, unready):
    asked = put_simple(bench)
    UNREADY[unready](bench)
    assert ask(bench, asked) == -99
    assert ask(bench, asked, stream=0) == -99
    assert bench.driver.calls == []


def test_an_unknown_memory_is_left_to_python(bench):
    asked = put_simple(bench)
    kept = list(bench.layout.memory)
    bench.layout.memory[:] = [0, 0, 0]
    assert ask(bench, asked) == -99
    bench.layout.memory[:] = kept
    assert ask(bench, asked) == 0


def test_a_deadline_that_is_near_is_left_to_python(bench):
    asked = put_simple(bench)
    config = asked.config
    params = (KERNEL, *config.grid, *config.block, config.shared_bytes, asked.args_at, asked.args_len)
    assert bench.instance.call("wasi_cuda_launch", params, deadline=Deadline.after(0.049)) == [-99]
    assert bench.driver.calls == []
    assert bench.instance.call("wasi_cuda_launch", params, deadline=Deadline.after(5)) == [0]


def test_python_retries_a_launch_that_the_driver_refuses(bench):
    asked = put_simple(bench)
    bench.driver.results["launch_kernel"] = 701
    assert ask(bench, asked) == -99
    assert len(bench.driver.calls) == 1
    assert (bench.layout.launched, bench.layout.pending, bench.layout.staged) == (0, 0, 0)


@pytest.mark.parametrize("result", [1, 700, 719, -1])
def test_a_wait_that_fails_is_left_to_python_to_explain_and_is_not_launched_again(bench, result):
    asked = put_simple(bench)
    bench.driver.results["stream_query"] = result
    assert ask(bench, asked) == -98
    assert bench.calls.fallbacks == []
    assert len(bench.driver.calls) == 1
    assert (bench.layout.pending, bench.layout.streams[0].pending) == (1, 1)


def test_a_wait_that_takes_long_is_left_to_python(bench):
    asked = put_simple(bench)
    bench.driver.results["stream_query"] = NOT_READY
    assert ask(bench, asked) == -98
    assert (bench.calls.fallbacks, bench.calls.finished, bench.layout.pending) == ([], 1, 1)


def test_a_wait_that_is_short_is_not_left_to_python(bench):
    asked = put_simple(bench)
    bench.driver.queries[:] = [NOT_READY] * 3
    assert ask(bench, asked) == 0
    assert bench.went_native()
    assert bench.driver.queries == []


def test_work_of_other_streams_stays_pending(bench):
    asked = put_simple(bench)
    bench.hand.put_stream(5, 0x55, pending=3)
    assert ask(bench, asked) == 0
    assert (bench.layout.pending, bench.layout.streams[5].pending) == (3, 3)


def test_a_kernel_without_parameters_takes_no_records(bench):
    bench.hand.put_kernel(KERNEL, KernelSignature("k", ()), kernel_of())
    assert ask(bench, Asked(LaunchConfig((1, 1, 1), (1, 1, 1)), b"", 1 << 20, 0)) == 0
    assert ask(bench, Asked(LaunchConfig((1, 1, 1), (1, 1, 1)), b"", (1 << 20) + 1, 0)) == -99


def test_as_many_records_as_the_abi_allows(bench):
    params = (KernelParam("n", 8, 8),) * 128
    bench.hand.put_kernel(KERNEL, KernelSignature("k", params), kernel_of())
    argv = encode_argv([NumberArg("u64", struct.pack("<Q", index << 53)) for index in range(128)])
    bench.instance.memory.write(0, argv)
    assert ask(bench, Asked(LaunchConfig((1, 1, 1), (1, 1, 1)), argv, 0, len(argv))) == 0
    assert bench.driver.calls[0].values == tuple(struct.pack("<Q", index << 53) for index in range(128))


def test_records_are_read_from_the_copy_only(bench):
    """The driver is called after the copy and before the end: memory that changes there stands for any other."""
    asked = put_simple(bench)
    bench.driver.kernel = lambda _values: bench.instance.memory.write(0, b"\xff" * asked.args_len)
    assert ask(bench, asked) == 0
    assert bench.driver.calls == [started(bench, asked)]
    assert ask(bench, asked) == -99  # now they are damaged


def test_a_graph_is_replayed_without_python(bench):
    bench.hand.put_graph(3, 0x6A, 100)
    bench.hand.put_stream(1, 0x11)
    assert bench.call("wasi_cuda_graph_launch", 3, 1) == 0
    assert bench.driver.calls == [("graph", 0x6A, 0x11)]
    layout = bench.layout
    assert (layout.launched, layout.replayed, layout.pending, layout.streams[1].pending) == (100, 1, 1, 1)


@pytest.mark.parametrize(("graph", "stream"), [(0, 1), (4, 1), (35, 1), (-1, 1), (3, 2), (3, 33), (3, -1), (3, 7)])
def test_a_graph_or_stream_that_is_not_there_is_left_to_python(bench, graph, stream):
    bench.hand.put_graph(3, 0x6A, 100)
    bench.hand.put_stream(1, 0x11)
    bench.hand.put_stream(7, 0x77, recording=1)
    assert bench.call("wasi_cuda_graph_launch", graph, stream) == -99
    assert bench.driver.calls == []
    assert bench.calls.fallbacks == [("wasi_cuda_graph_launch", graph, stream)]


@pytest.mark.parametrize("unready", sorted(set(UNREADY) - {"recording", "no stream"}))
def test_a_graph_of_a_session_that_is_not_ready_is_left_to_python(bench, unready):
    bench.hand.put_graph(3, 0x6A, 100)
    UNREADY[unready](bench)
    assert bench.call("wasi_cuda_graph_launch", 3, 0) == -99
    assert bench.driver.calls == []


def test_a_replay_that_the_driver_refuses_is_left_to_python(bench):
    bench.hand.put_graph(3, 0x6A, 100)
    bench.driver.results["graph_launch"] = 1
    assert bench.call("wasi_cuda_graph_launch", 3, 0) == -99
    assert (bench.layout.launched, bench.layout.replayed, bench.layout.pending) == (0, 0, 0)


def test_a_buffer_is_judged_by_its_own_row(bench):
    bench.hand.put_kernel(KERNEL, ONE, kernel_of())
    bench.hand.put_buffer(1, 1 << 40, 64)
    bench.hand.put_buffer(257, 1 << 41, 64)  # takes the row: the first is Python's to find
    for handle, answer in ((1, -99), (257, 0)):
        argv = encode_argv([BufferOffset(handle, 60), NumberArg("u32", b"\0" * 4)])
        bench.instance.memory.write(0, argv)
        assert ask(bench, Asked(LaunchConfig((1, 1, 1), (1, 1, 1)), argv, 0, len(argv))) == answer


def test_launches_without_room_are_left_to_python(bench):
    """Python waits for room where a call of the driver would wait for a kernel to end."""
    bench.hand.put_stream(34, 0x34)
    bench.hand.put_graph(3, 0x6A, 2, steps=5)
    asked = put_simple(bench)
    bench.layout.most_pending = 7
    assert ask(bench, asked, stream=34) == 0
    assert bench.call("wasi_cuda_graph_launch", 3, 34) == 0
    assert bench.layout.pending == bench.layout.streams[2].pending == 6
    assert bench.call("wasi_cuda_graph_launch", 3, 34) == -99
    assert ask(bench, asked, stream=34) == 0
    assert ask(bench, asked, stream=34) == -99
    assert ask(bench, asked) == -99
    assert (bench.layout.pending, len(bench.driver.calls)) == (7, 3)
