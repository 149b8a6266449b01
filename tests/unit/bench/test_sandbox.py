import mmap
import os
import sys
import zlib

import pytest

from tensorwasm.bench.figures import Figure
from tensorwasm.bench.harness import read_guest
from tensorwasm.bench.sandbox import dense, keep_alive, measure_sandbox, run_at_steady_rate

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TINY = {"samples": 1, "count": 100, "seconds": 0.05, "instances": 16, "sizes_mib": (1, 2), "saved_mib": 2}


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    return {figure.name: figure for figure in measure_sandbox("emulator", **TINY).figures}


def test_the_report_has_every_bar(figures):
    bars = [figure.bar for figure in figures.values() if figure.bar is not None]
    assert bars == [0.15, 0.25, 3.0, 999.0, 128.0, 0.0, 0.0, 16, 100.0, 5.0, 5.0, 1.5, 0.5, 1.5]
    assert len(figures) == 25


def test_every_figure_with_a_peer_has_a_ratio(figures):
    assert all(figure.ratio is not None and figure.ratio > 0 for figure in figures.values() if figure.peer)
    assert figures["the same against a process"].ratio < 1


def test_sandboxes_leave_no_descriptors(figures):
    assert figures["descriptors gained"].value <= 0
    assert figures["fresh sandboxes per second, 0.05 s"].samples > 0


def test_leaked_memory_and_descriptors_miss_their_bars():
    left: list[mmap.mmap | int] = []

    def leak() -> None:
        left.append(mmap.mmap(-1, 16384, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        left[-1].write(bytes(16384))
        left.append(os.open("/dev/null", os.O_RDONLY))

    grown = {figure.name: figure for figure in run_at_steady_rate(leak, 0.2)}
    for opened in left[1::2]:
        os.close(opened)
    assert grown["descriptors gained"].met is False
    assert grown["resident memory gained meanwhile"].met is False


def test_instances_live_at_once_and_each_has_its_own_memory():
    alive, each, _ = keep_alive(read_guest("page"), 16)
    assert (alive.value, alive.met) == (16, True)
    assert each.unit == "KiB"


def test_restores_are_measured_at_each_size(figures):
    sizes = [figure for name, figure in figures.items() if name.startswith("restore + call + drop")]
    assert [figure.name[-11:] for figure in sizes] == ["1 MiB dense", "2 MiB dense"]
    assert all(figure.unit == "us" and figure.value > 0 for figure in sizes)


def test_dense_contents_compress_to_a_half():
    data = dense(1 << 20)
    assert len(data) == 1 << 20
    assert 0.48 < len(zlib.compress(data, 1)) / len(data) < 0.53
