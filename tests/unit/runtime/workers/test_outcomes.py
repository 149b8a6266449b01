import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm import errors
from tensorwasm.gpu.session import SessionStatistics
from tensorwasm.guest.engine.traps import MAX_FILE, MAX_FRAMES
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.workers.child.answers import encode_outcome
from tensorwasm.runtime.workers.frames import (
    PART_BYTES,
    BrokenFrame,
    DoneFrame,
    FailedFrame,
    GpuUsage,
    OffloadUsage,
    OutputFrame,
    TrapFrame,
)
from tensorwasm.runtime.workers.outcomes import COUNTS, describe_error, describe_result, rebuild_error, rebuild_result
from tensorwasm.runtime.workers.wire import FROM_WORKER, Splitter, encode
from tensorwasm.values import OffloadUse

MADE = {
    errors.GuestTrap: lambda: errors.GuestTrap("unreachable executed", "unreachable"),
    errors.GuestExit: lambda: errors.GuestExit(3),
    errors.TooLarge: lambda: errors.TooLarge(10, 5),
    errors.MalformedPtx: lambda: errors.MalformedPtx("unexpected ';'", 3, 14),
    errors.UnsupportedPtx: lambda: errors.UnsupportedPtx("no tensor cores", 5, 1),
}


USE = OffloadUse(3, 1, 0.5, 1 << 40, (("busy", 2), ("sequential", 1)), ('{"region": 7}',))


def leaves(error=errors.TensorWasmError):
    return [error] if not error.__subclasses__() else [leaf for each in error.__subclasses__() for leaf in leaves(each)]


def is_of_the_service(kind):
    """Whether an error is about clients of the service, or another server: no worker ends a call with one.

    What a room keeps to itself is none of the tree's either, whether or not a test before this one has imported it.
    """
    service = {"tensorwasm.errors.edge"}
    return kind.__module__ in service or not kind.__module__.startswith("tensorwasm.errors.")


OF_WORKERS = [kind for kind in leaves() if not is_of_the_service(kind)]


def crossed(frame):
    (arrived,) = Splitter(FROM_WORKER).feed(encode(frame))
    return arrived


@pytest.mark.parametrize("kind", [*OF_WORKERS, errors.MalformedPtx], ids=lambda kind: kind.__name__)
def test_an_error_crosses_with_its_class_its_text_and_what_it_carries(kind):
    error = MADE.get(kind, lambda: kind("what happened"))()
    rebuilt = rebuild_error(crossed(describe_error(1, error)))
    # A worker tells that a device is lost; that its process is replaced is for the parent to say.
    assert type(rebuilt) is (errors.DeviceLost if kind is errors.DeviceFault else kind)
    assert rebuilt.message == error.message
    assert vars(rebuilt) == vars(error)


@given(
    st.sampled_from(sorted({leaf.kind for leaf in leaves()})) | st.text(max_size=64),
    st.text(max_size=300),
    st.dictionaries(st.sampled_from(["trap", "code", "line", "column", "__class__"]), st.integers(0, 9) | st.text()),
)
def test_any_error_that_a_worker_answers_is_a_known_kind_or_refused(kind, message, details):
    try:
        rebuilt = rebuild_error(FailedFrame(1, kind, message, details))
    except BrokenFrame:
        return
    assert isinstance(rebuilt, errors.TensorWasmError)
    assert not is_of_the_service(type(rebuilt))


@pytest.mark.parametrize("kind", [each for each in leaves() if is_of_the_service(each)], ids=lambda kind: kind.__name__)
def test_a_worker_has_no_say_about_clients_and_other_servers(kind):
    assert not is_of_the_service(type(rebuild_error(FailedFrame(1, kind.kind, "what happened", {}))))


@pytest.mark.rule("11-claims")
@pytest.mark.parametrize(
    ("kind", "details"),
    [
        (errors.GuestExit, {"code": "3"}),
        (errors.GuestExit, {}),
        (errors.GuestExit, {"code": 3, "args": 4}),
        (errors.GuestTrap, {"trap": 3}),
        (errors.MalformedPtx, {"line": 3, "column": "4"}),
        (errors.InternalError, {"code": 3}),
    ],
)
def test_an_error_that_does_not_carry_what_its_kind_does_is_refused(kind, details):
    with pytest.raises(BrokenFrame):
        rebuild_error(FailedFrame(1, kind.kind, "text", details))


@pytest.mark.rule("11-claims")
@pytest.mark.parametrize("kind", ["", "SystemExit", "KeyboardInterrupt", "tensorwasm.errors.GuestTrap", "__class__"])
def test_an_unknown_kind_is_a_bug(kind):
    assert type(rebuild_error(FailedFrame(1, kind, "text"))) is errors.InternalError


def test_an_error_that_is_not_of_the_tree_is_a_bug():
    rebuilt = rebuild_error(crossed(describe_error(1, ZeroDivisionError("division by zero"))))
    assert type(rebuilt) is errors.InternalError
    assert "ZeroDivisionError" in rebuilt.message


@pytest.mark.rule("11-claims")
def test_a_message_has_no_control_characters_and_an_end():
    rebuilt = rebuild_error(FailedFrame(1, "internal", "\x1b[31m" + "x" * 4096))
    assert "\x1b" not in rebuilt.message
    assert len(rebuild_error(describe_error(1, errors.InternalError("x" * 9999))).message) == errors.MAX_MESSAGE


def test_an_error_crosses_with_what_became_of_loops():
    failed = errors.GuestTrap("unreachable executed", "unreachable")
    failed.offload = USE
    assert rebuild_error(crossed(describe_error(1, failed))).offload == USE


@pytest.mark.parametrize("cut", [(False, False), (True, False), (False, True)])
def test_a_result_crosses_whole(cut):
    gpu = SessionStatistics(kernels_launched=2, abandoned=True)
    result = Invocation("f", (1, -2.5), ("i64", "f64"), 0, b"out", b"err", (b"a", b"b"), 0.25, gpu, *cut, 0.125, USE)
    arrived = crossed(describe_result(1, result))
    assert rebuild_result(arrived, "f", b"out", b"err", (b"a", b"b")) == result


def done(**changes):
    return DoneFrame(
        **{
            "request": 1,
            "export": "f",
            "values": (1,),
            "result_types": ("i32",),
            "exit_code": 0,
            "elapsed_s": 0.0,
            "gpu": None,
            "stdout_truncated": False,
            "stderr_truncated": False,
        }
        | changes
    )


@pytest.mark.parametrize(
    "frame",
    [
        done(export="g"),
        done(values=(1, 2)),
        done(values=(1.0,)),
        done(values=(1 << 31,)),
        done(values=(True,), result_types=("f64",)),
        done(values=(1,), result_types=("f32",)),
        done(values=(1e300,), result_types=("f32",)),
        done(values=(1 << 63,), result_types=("i64",)),
        done(offload=OffloadUsage(0, 0, 0.0, 0, (), ())),
        done(offload=OffloadUsage(0, 0, 0.0, 0, (0,) * (len(DeclineReason) + 1), ())),
        done(gpu=GpuUsage((), abandoned=False)),
        done(gpu=GpuUsage((0,) * (len(COUNTS) + 1), abandoned=False)),
    ],
    ids=repr,
)
@pytest.mark.rule("11-claims")
def test_an_answer_that_is_no_result_of_the_call_is_refused(frame):
    with pytest.raises(BrokenFrame):
        rebuild_result(frame, "f", b"", b"", ())


def test_a_guest_that_left_has_no_values():
    assert rebuild_result(done(values=(), exit_code=3), "f", b"", b"", ()).exit_code == 3


def test_without_an_export_the_usual_ones_may_answer():
    assert rebuild_result(done(export="main"), None, b"", b"", ()).export == "main"
    with pytest.raises(BrokenFrame):
        rebuild_result(done(), None, b"", b"", ())


def trapped():
    error = errors.GuestTrap("unreachable executed", "unreachable")
    error.backtrace = (errors.Frame(3, "inner", 84, "src/a.c", 12), errors.Frame(0, "", (1 << 63) - 1))
    return error


def test_the_stack_of_a_trap_crosses():
    rebuilt = rebuild_error(crossed(describe_error(1, trapped())))
    assert rebuilt.backtrace == trapped().backtrace


@pytest.mark.rule("11-claims")
@pytest.mark.parametrize(
    "stack",
    [
        (TrapFrame(0, "f", 1, "", 0),) * (MAX_FRAMES + 1),
        (TrapFrame(-1, "f", 1, "", 0),),
        (TrapFrame(0, "f" * (errors.MAX_NAME + 1), 1, "", 0),),
        (TrapFrame(0, "f", 1, "f" * (MAX_FILE + 1), 0),),
        (TrapFrame(0, "f", "1", "", 0),),
        (TrapFrame(0, "f", 1, "", 1.5),),
    ],
)
def test_a_stack_that_no_guest_has_is_refused(stack):
    with pytest.raises(BrokenFrame):
        crossed(FailedFrame(1, "wasmtime", "text", {"trap": "unreachable"}, stack))


@pytest.mark.rule("11-claims")
def test_a_stack_belongs_to_a_trap_and_has_no_control_characters():
    stack = (TrapFrame(0, "\x1b[2J", 1, "a\n.c", 3),)
    (frame,) = rebuild_error(FailedFrame(1, "wasmtime", "text", {"trap": "unreachable"}, stack)).backtrace
    assert frame.name.isprintable()
    assert frame.file.isprintable()
    with pytest.raises(BrokenFrame):
        rebuild_error(FailedFrame(1, "internal", "text", {}, stack))


@pytest.mark.parametrize("stderr", [b"", b"late"])
@pytest.mark.parametrize("chunks", [(), (b"one", b"two")])
@pytest.mark.parametrize("wrote", [0, 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 1])
def test_output_comes_before_the_result_in_parts_and_whole(wrote, chunks, stderr):
    text = bytes(range(256)) * (wrote // 256) + b"x" * (wrote % 256)
    made = Invocation("run", (1,), ("i32",), 0, text, stderr, chunks, 0.5, None)
    *output, done = Splitter(FROM_WORKER).feed(encode_outcome(7, made))
    assert isinstance(done, DoneFrame)
    assert all(isinstance(each, OutputFrame) and each.request == 7 for each in output)
    told = {name: [each.data for each in output if each.name == name] for name in ("stdout", "stderr", "chunk")}
    assert b"".join(told["stdout"]) == made.stdout
    assert len(told["stdout"]) == -(-wrote // PART_BYTES)
    assert (b"".join(told["stderr"]), tuple(told["chunk"])) == (stderr, chunks)
