"""The benchmark of a server's first answers, with one start on the emulator."""

from tensorwasm.bench.service import first_answer
from tensorwasm.bench.service.first_answer import StartTimes


def test_a_start_has_each_of_its_times_in_order(tmp_path):
    times = first_answer._start(tmp_path / "data", {"TENSOR_WASM_DEVICE": "emulator"})
    assert 0 < times.listens < times.first_answer < times.first_gpu_answer
    assert times.listens < times.ready
    assert times.longest_call_meanwhile < times.first_gpu_answer


def test_the_first_answer_with_a_gpu_has_a_bar_on_a_gpu():
    taken = [StartTimes(0.5, 1.0, 2.0, 2.5, 0.1)]
    judged = [each for each in first_answer._figures("warm caches", taken, real=True) if each.bar is not None]
    assert [(each.name, each.bar, each.met) for each in judged] == [("first GPU answer, warm caches", 3.0, True)]
    assert all(each.bar is None for each in first_answer._figures("no caches", taken, real=False))
