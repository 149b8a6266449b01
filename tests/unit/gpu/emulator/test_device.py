import threading
import tracemalloc

import numpy as np
import pytest

from fakes.emulation import HEAD, Emulation, kernel, store_result
from tensorwasm.errors import (
    InvalidDimensions,
    InvalidHandle,
    InvalidKernel,
    InvalidKernelArgs,
    InvokeTimeout,
    KernelFault,
    LaunchRefused,
    QuotaExceeded,
)
from tensorwasm.gpu.device.port import DeviceStatistics
from tensorwasm.gpu.emulator import kernels
from tensorwasm.gpu.emulator.lanes import BatchGeometry
from tensorwasm.gpu.emulator.program.program import make_plan
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, Deadline, LaunchConfig
from timing import costs_less

INCREMENT = kernel(
    """
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r2, %r2, %r3, %r0;
    ld.param.u64 %rd0, [p0]; mad.wide.u32 %rd0, %r2, 4, %rd0; ld.global.u32 %r1, [%rd0]; add.u32 %r1, %r1, 1;
    st.global.u32 [%rd0], %r1;
    """
)


@pytest.mark.parametrize("block", [(1, 1, 1), (256, 1, 1), (1024, 1, 1)])
@pytest.mark.parametrize("grid", [((1 << 31) - 1, 1, 1), ((1 << 31) - 1, 65535, 65535)])
@pytest.mark.rule("13-lanes")
def test_a_giant_grid_allocates_nothing_of_its_size(emulation, grid, block):
    region = emulation.buffer([0])
    text = kernel("ld.param.u64 %rd0, [p0]; red.global.max.u32 [%rd0], %r0;")
    tracemalloc.start()
    try:
        with pytest.raises(InvokeTimeout):
            emulation.launch(text, region, grid=grid, block=block, seconds=0.3)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 << 20


def test_the_last_blocks_of_a_giant_grid_have_the_right_indices(emulation):
    # Only the geometry: running all the blocks before them would take years.
    grid = ((1 << 31) - 1, 65535, 65535)
    last = BatchGeometry("k", LaunchConfig(grid, (4, 2, 2)), grid[0] * grid[1] * grid[2] - 2, 2)
    assert last.describe(31) == f"kernel k, block {(grid[0] - 1, 65534, 65534)} thread (3, 1, 1)"


def test_lanes_bound_how_many_blocks_run_side_by_side():
    text = kernel("atom.global.add.u32 %r1, [count], 1;" + store_result(), before=".global .u32 count;")
    for lanes in (1, 64, 100, 1 << 14):
        found = Emulation(lanes=lanes).run(text, 50 * 60, grid=(60, 1, 1), block=(50, 1, 1))
        assert sorted(found.tolist()) == list(range(3000))


@pytest.mark.rule("13-lanes")
@pytest.mark.parametrize(("lanes", "most"), [(1, 50), (64, 50), (100, 100), (149, 100), (1 << 14, 3000)])
def test_no_more_threads_run_side_by_side_than_may_or_than_a_block_has(monkeypatch, lanes, most):
    found = []
    monkeypatch.setattr(kernels, "BatchGeometry", lambda *about: found.append(BatchGeometry(*about)) or found[-1])
    Emulation(lanes=lanes).launch(kernel("", params=0), grid=(60, 1, 1), block=(50, 1, 1))
    assert sum(geometry.lanes for geometry in found) == 3000
    assert max(geometry.lanes for geometry in found) == most


@pytest.mark.rule("13-memory")
def test_memory_bounds_how_many_blocks_run_side_by_side(emulation):
    # 64 KiB of local memory per thread: 16,384 lanes would take 2 GiB.
    text = kernel(
        ".local .b8 big[65536]; st.local.u32 [big+65532], %r0; ld.local.u32 %r1, [big+65532];" + store_result()
    )
    tracemalloc.start()
    try:
        found = emulation.run(text, 32 * 100, grid=(100, 1, 1))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.tolist() == list(range(32)) * 100
    assert peak_bytes < 400 << 20


@pytest.mark.parametrize(
    ("options", "before"),
    [
        ({"block": (1025, 1, 1)}, ""),
        ({"block": (32, 33, 1)}, ""),
        ({"block": (1, 1, 65)}, ""),
        ({"block": (0, 1, 1)}, ""),
        ({"grid": (0, 1, 1)}, ""),
        ({"grid": (1 << 31, 1, 1)}, ""),
        ({"grid": (1, 65536, 1)}, ""),
        ({"shared_bytes": (227 << 10) + 1}, ""),
        ({"shared_bytes": 227 << 10}, ".shared .b32 one;"),
        ({"shared_bytes": -1}, ""),
        ({"block": (1024, 1, 1)}, ".local .b8 big[2000000];"),
    ],
)
def test_geometry_outside_the_limits_is_refused_before_anything_is_allocated(emulation, options, before):
    use = {"": "", ".s": "st.shared.u32 [one], 1;", ".l": "st.local.u32 [big], 1;"}[before[:2]]
    body = f"{before} {use}"
    with pytest.raises(InvalidDimensions):
        emulation.launch(kernel(body), emulation.buffer([0]), **options)
    assert emulation.device.statistics().launches == 0


@pytest.mark.parametrize(("directive", "threads"), [(".maxntid 64", 64), (".reqntid 8, 4, 2", 64)])
def test_the_kernels_own_limit_of_threads(emulation, directive, threads):
    text = kernel("", directives=directive)
    emulation.launch(text, emulation.buffer([0]), block=(threads // 2, 2, 1))
    with pytest.raises(InvalidDimensions):
        emulation.launch(text, emulation.buffer([0]), block=(threads + 1, 1, 1))


def test_arguments_must_be_those_of_the_kernel(emulation):
    for args in ([], [bytes(8), bytes(8)], [bytes(9)], [b""]):
        with pytest.raises(InvalidKernelArgs):
            emulation.launch(kernel(""), args=args)
    loaded = emulation.device.load(parse(kernel("")), NEVER)
    with pytest.raises(InvalidKernel):
        emulation.device.launch(
            loaded, "other", LaunchConfig((1, 1, 1), (1, 1, 1)), [], [], emulation.stream, Deadline()
        )


def test_a_kernel_without_parameters(emulation):
    emulation.launch(kernel("", params=0))


def test_statistics_and_the_budget_are_exact():
    emulation = Emulation(memory_bytes=1000)
    device = emulation.device
    start = DeviceStatistics(streams=1)
    assert device.statistics() == start
    first = device.allocate(600)
    with pytest.raises(QuotaExceeded):
        device.allocate(401)
    second = device.allocate(400)
    assert device.statistics() == DeviceStatistics(allocations=2, allocated_bytes=1000, streams=1)
    device.free(first)
    loaded = device.load(parse(HEAD + ".global .b8 x[600]; .entry k() { ret; }"), NEVER)
    with pytest.raises(QuotaExceeded):
        device.allocate(1)
    assert device.statistics() == DeviceStatistics(allocations=1, allocated_bytes=400, modules=1, streams=1)
    device.unload(loaded)
    device.unload(loaded)
    device.free(second)
    with pytest.raises(LaunchRefused):
        device.free(second)
    device.allocate(1000)
    device.close()
    device.close()
    assert device.statistics() == DeviceStatistics()


def test_a_module_that_does_not_load_leaves_nothing(emulation):
    before = emulation.device.statistics()
    for body in ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f1, %f2}];", "add.u32 %r1, %rd1, 1, 2;"):
        text = kernel(body, before=".global .texref t; .global .b8 big[100000];")
        with pytest.raises(Exception, match=r"\d+:\d+"):
            emulation.device.load(parse(text), NEVER)
    assert emulation.device.statistics() == before
    emulation.device.allocate((1 << 30) - 4096)


def test_reads_and_writes_stay_inside_one_allocation(emulation):
    region = emulation.buffer([1, 2, 3])
    for address, size in ((region.address, 13), (region.address - 1, 1), (region.end, 1), (0, 1)):
        with pytest.raises(LaunchRefused):
            emulation.device.read(address, memoryview(bytearray(size)), emulation.stream)
        with pytest.raises(LaunchRefused):
            emulation.device.write(address, bytes(size), emulation.stream)


@pytest.mark.parametrize(("address", "size"), [(0, 4096), (4096, 0), (1 << 52, 4096), (-4096, 4096)])
def test_an_impossible_host_range_is_not_registered(emulation, address, size):
    with pytest.raises(LaunchRefused):
        emulation.device.register(address, size)
    with pytest.raises(LaunchRefused):
        emulation.device.unregister(address)


def test_a_fault_stays_with_its_stream(emulation):
    region = emulation.buffer([1] * 32)
    failed, emulation.stream = emulation.stream, emulation.device.open_stream()
    loaded = emulation.device.load(parse(kernel("trap;", params=0)), NEVER)
    emulation.device.launch(loaded, "k", LaunchConfig((1, 1, 1), (1, 1, 1)), [], [], failed, NEVER)
    for attempt in (
        lambda: emulation.device.synchronize(failed, NEVER),
        lambda: emulation.device.ended(failed),
        lambda: emulation.device.read(region.address, memoryview(bytearray(4)), failed),
        lambda: emulation.device.fill(region.address, 4, failed),
    ):
        with pytest.raises(KernelFault, match="trap"):
            attempt()
    emulation.launch(INCREMENT, region)
    assert emulation.read(region).tolist() == [2] * 32


def test_threads_launch_at_the_same_time_each_on_its_own_memory(emulation):
    regions = [emulation.buffer(np.arange(64 * 100, dtype=np.uint32) * (n + 1)) for n in range(6)]
    loaded = emulation.device.load(parse(INCREMENT), NEVER)

    def work(region):
        for _ in range(5):
            emulation.device.launch(
                loaded,
                "k",
                LaunchConfig((100, 1, 1), (64, 1, 1)),
                [region.address.to_bytes(8, "little")],
                [region],
                emulation.stream,
                Deadline.after(20),
            )

    workers = [threading.Thread(target=work, args=(region,)) for region in regions]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for number, region in enumerate(regions):
        assert np.array_equal(emulation.read(region), np.arange(6400, dtype=np.uint32) * (number + 1) + 5)
    assert emulation.device.statistics().launches == 30


@pytest.mark.parametrize("access", ["ld.global.u32 %r2, [%rd1];", "atom.global.add.u32 %r2, [%rd1], 1;"])
@pytest.mark.rule("13-deadline")
def test_the_deadline_is_kept_when_every_lane_accesses_an_allocation_of_its_own(emulation, access):
    threads = 4 * 1024
    places = "".join(f".global .u32 v{index};" for index in range(threads))
    stride = 4096 + 256  # of two allocations: a guard lies between them
    body = f"""mov.u32 %r1, %ctaid.x; mad.lo.u32 %r1, %r1, 1024, %r0; mov.u64 %rd1, v0;
        mad.wide.u32 %rd1, %r1, {stride}, %rd1; L: {access * 60} bra L;"""
    text = kernel(body, params=0, before=places)

    def launch() -> None:
        with pytest.raises(InvokeTimeout):
            emulation.launch(text, grid=(4, 1, 1), block=(1024, 1, 1), seconds=0.2)

    assert costs_less(2, launch)


@pytest.mark.rule("13-deadline")
def test_the_deadline_is_kept_when_calls_open_large_frames(emulation):
    names = [f"a{index}" for index in range(20_000)]
    declared = "".join(f".local .b8 {name};" for name in names)
    used = "".join(f"mov.u64 %rd1, {name};" for name in names)
    function = f".func f() {{ .reg .b64 %rd<2>; {declared} ret; {used} ret; }}"
    text = kernel("L:" + "call f;" * 60 + "bra L;", params=0, before=function)
    loaded = emulation.device.load(parse(text), NEVER)
    config = LaunchConfig((1, 1, 1), (32, 1, 1))

    def launch() -> None:
        emulation.device.launch(loaded, "k", config, (), (), emulation.stream, Deadline.after(0.1))
        with pytest.raises(InvokeTimeout):
            emulation.device.synchronize(emulation.stream, NEVER)

    assert costs_less(0.7, launch)


@pytest.mark.rule("13-memory")
def test_the_places_that_deep_calls_return_to_count_as_memory_of_a_lane(emulation):
    def lane_bytes(depth):
        functions = "".join(f".func f{index}() {{ call f{index - 1}; }}" for index in range(1, depth))
        loaded = emulation.device.load(
            parse(f"{HEAD}.func f0() {{ ret; }}{functions}.entry k() {{ call f{depth - 1}; }}"), NEVER
        )
        return make_plan(loaded.program, "k").lane_bytes

    assert lane_bytes(1100) - lane_bytes(100) == 8 * 1000


def test_an_object_that_is_not_a_loaded_module_is_not_launched(emulation):
    config = LaunchConfig((1, 1, 1), (1, 1, 1))
    with pytest.raises(InvalidHandle):
        emulation.device.launch(object(), "k", config, [], [], emulation.stream, Deadline.after(20))
