"""The compiler's process: what it answers, what it may use, and how it ends."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import CancelledError

import pytest

from tensorwasm.errors import CapacityExhausted, CompileFailed, CompileMemory, CompileTimeout, InvalidWasm
from tensorwasm.guest.engine import capi, child_process, compiler, compiler_process
from tensorwasm.guest.engine.compiler import CompileLimits, Compiler
from tensorwasm.guest.engine.engine import EngineConfig, settings_of
from tensorwasm.runtime.deploy.deployer import StopHook
from tensorwasm.values import MIB
from tensorwasm.wasm.sections import HEADER
from tensorwasm.yielding import lower_priority

SETTINGS = settings_of(EngineConfig())
USUAL = CompileLimits()


def compile_with(wasm=HEADER, limits=USUAL):
    return Compiler(limits).compile(wasm, SETTINGS, "0123abcd")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that puts another program in the compiler's place; `confine` does there what it does here."""

    def put(text):
        path = tmp_path / "program.py"
        start = f"import os, sys, runpy\nreal = runpy.run_path({compiler_process.__file__!r})\n"
        start += "confine = lambda: real['confine'](*map(int, sys.argv[2:5]))\n"
        path.write_text(start + textwrap.dedent(text))
        monkeypatch.setattr(compiler_process, "__file__", str(path))

    return put


def bomb(size_bytes):
    """Return a module with one function of so many bytes, each of which must wait for the one before."""
    step = b"\x20\x00\x41\x07\x6c\x21\x00"  # local.get 0, i32.const 7, i32.mul, local.set 0
    body = b"\0" + step * (size_bytes // len(step)) + b"\x20\x00\x0b"
    body = length(len(body)) + body
    code = b"\x01" + body
    return HEADER + b"\x01\x06\x01\x60\x01\x7f\x01\x7f\x03\x02\x01\x00\x0a" + length(len(code)) + code


def length(number):
    return bytes((number >> 7 * index & 0x7F) | (0x80 if index < 4 else 0) for index in range(5))


def test_the_compiler_process_calls_only_compared_functions():
    assert {name: capi.FUNCTIONS[name] for name in compiler_process.PROTOTYPES} == compiler_process.PROTOTYPES


@pytest.mark.rule("6-child")
def test_invalid_wasm_is_refused_as_in_this_process(engine, wat):
    for wasm in (b"", b"\x7fELF" + bytes(99), wat("(module (func (result i32) (i32.const 1)))")[:-1] + b"\xfe"):
        with pytest.raises(InvalidWasm) as there:
            compile_with(wasm)
        assert there.value.message.startswith("not a valid WebAssembly module: ")
        assert not any(leak in there.value.message for leak in ("/", "\n", "tensorwasm"))


@pytest.mark.rule("6-child")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("os._exit(3)", "exited with code 3"),
        ("os.kill(os.getpid(), 40)", "ended by signal 40"),
        ("", "exited with code 0"),
        ("os.write(1, b'?' * 9)", "exited with code 0"),
        ("os.write(1, b'+code'); os._exit(1)", "exited with code 1"),
        ("os.write(1, b'+code'); os.close(1); import threading; threading.Event().wait()", "ended by SIGKILL"),
    ],
)
def test_a_compiler_that_fails_is_an_error_that_names_the_module(program, text, says):
    program(text)
    with pytest.raises(CompileFailed, match=f"0123abcd: it {says}") as failed:
        compile_with()
    assert failed.value.kind == "compile_failed"


@pytest.mark.skipif(sys.platform != "linux", reason="LINUX ONLY: elsewhere the sender of a signal is unknown")
@pytest.mark.parametrize("said", [b"", b"+co"])
def test_a_compiler_killed_from_outside_is_started_again(program, tmp_path, said):
    mark = str(tmp_path / "mark")
    killed = f"""
        if not os.path.exists({mark!r}):
            open({mark!r}, "w").close()
            os.write(1, {said!r})
            os.kill(os.getpid(), 9)
        os.write(1, b"+code")"""
    program(killed)
    assert compile_with() == b"code"


@pytest.mark.skipif(sys.platform != "linux", reason="LINUX ONLY: elsewhere the sender of a signal is unknown")
def test_a_compiler_killed_repeatedly_exhausts_capacity(program):
    program("os.kill(os.getpid(), 9)")
    with pytest.raises(CapacityExhausted, match="killed from outside") as failed:
        compile_with()
    assert failed.value.retryable


@pytest.mark.parametrize("wasm", [HEADER, bytes(4 * MIB)])
def test_a_compiler_that_does_not_read_is_stopped_in_time(program, wasm):
    program("import threading; threading.Event().wait()")
    with pytest.raises(CompileFailed, match=r"more than 0\.3 s"):
        compile_with(wasm, CompileLimits(wall_s=0.3))


def test_a_compiler_may_answer_before_it_reads(program):
    program("sys.stdout.buffer.write(b'+' + b'x' * 3_000_000)")
    assert compile_with(bytes(4 * MIB)) == b"x" * 3_000_000


def test_an_answer_without_end_is_cut(program, monkeypatch):
    monkeypatch.setattr(child_process, "_ANSWER_BYTES", 1000)
    program("os.write(1, b'+')\nwhile True: os.write(1, bytes(4096))")
    with pytest.raises(CompileFailed, match="ended by SIGKILL"):
        compile_with()


def test_an_answer_that_is_too_long_is_none_however_its_process_ended(program, monkeypatch):
    monkeypatch.setattr(child_process, "_ANSWER_BYTES", 1000)
    monkeypatch.setattr(child_process, "_CHUNK_BYTES", 1001)
    end = child_process._end
    monkeypatch.setattr(child_process, "_end", lambda child: end(child) and 0)  # as if it had gone before it was killed
    program("os.write(1, b'+' + bytes(4096))")
    with pytest.raises(CompileFailed):
        compile_with()


@pytest.mark.rule("6-child")
def test_a_module_that_takes_too_long_is_stopped():
    with pytest.raises(CompileTimeout, match=r"compiling module 0123abcd took more than 0\.2 s") as failed:
        compile_with(bomb(7_000_000), CompileLimits(wall_s=0.2))
    assert failed.value.kind == "compile_timeout"


@pytest.mark.rule("6-child")
def test_a_module_that_takes_too_much_memory_is_stopped():
    with pytest.raises(CompileMemory, match="module 0123abcd takes more than the 300 MiB") as failed:
        compile_with(bomb(7_000_000), CompileLimits(memory_bytes=300 * MIB))
    assert failed.value.kind == "compile_memory"


def test_a_module_that_needs_more_memory_is_compiled_again_with_all_of_it(program, tmp_path):
    tries = tmp_path / "tries"
    program(
        f"""
        with open({str(tries)!r}, "a") as file: print(sys.argv[3], file=file)
        if int(sys.argv[3]) < {700 * MIB}:
            os.write(2, b"memory allocation of 4096 bytes failed"); os.abort()
        os.write(1, b"+code")
        """
    )
    assert compile_with(bytes(MIB), CompileLimits(memory_bytes=700 * MIB)) == b"code"
    assert tries.read_text().split() == [str(304 * MIB), str(700 * MIB)]


def test_all_compilations_together_stay_within_the_capacity(program):
    program("os.write(1, b'+' + sys.argv[3].encode())")
    assert int(bytes(compile_with(bytes(8 * MIB), CompileLimits(room_bytes=500 * MIB)))) == 500 * MIB


def test_a_stopped_compiler_ends_at_once_with_its_children(program):
    program(
        """
        import subprocess, threading
        subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
        os.write(1, b"+")
        threading.Event().wait()
        """
    )
    work, children, real = StopHook(), [], child_process._converse

    def converse(child, *rest):
        children.append(child.pid)
        threading.Timer(0.0, work.stop).start()
        real(child, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_process, "_converse", converse)
        with pytest.raises(CancelledError):
            Compiler(USUAL).compile(HEADER, SETTINGS, "x", work)
    assert gone(children[0])


@pytest.mark.skipif(sys.platform != "linux", reason="LINUX ONLY: elsewhere the system does not say how long one waited")
def test_time_in_which_a_compiler_waits_for_a_processor_does_not_count(program):
    program(
        """
        import time
        os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
        for _ in range(8):
            if not os.fork():
                os.closerange(0, 3)
                while True: pass
        start_s = time.monotonic()
        while time.process_time() < 0.3: pass
        sys.stdout.buffer.write(b"+%d" % (1000 * (time.monotonic() - start_s)))
        """
    )
    assert int(bytes(compile_with(limits=CompileLimits(wall_s=0.7)))) > 1000


@pytest.mark.skipif(sys.platform != "linux", reason="LINUX ONLY: scheduling groups")
def test_the_compiler_process_has_a_low_priority_once_whatever_it_inherits(program):
    program(
        """
        real["step_back"]()
        group = open("/proc/self/autogroup").read() if os.path.exists("/proc/self/autogroup") else "10"
        sys.stdout.buffer.write(f"+{os.getpriority(os.PRIO_PROCESS, 0)} {group.split()[-1]}".encode())
        """
    )
    found = []

    def compile_on_a_lowered_thread():
        lower_priority()
        found.append(compile_with())

    thread = threading.Thread(target=compile_on_a_lowered_thread)
    thread.start()
    thread.join()
    nice, group = map(int, bytes(found[0]).split())
    assert nice == min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + compiler_process.NICE, 19)
    assert group == compiler_process.NICE


@pytest.mark.rule("6-child")
def test_the_compiler_process_inherits_three_descriptors_and_no_secrets(program, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    program(
        """
        import json, resource
        confine()
        limits = [resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in ("AS", "CPU", "CORE", "FSIZE")]
        open_now = [int(name) for name in os.listdir("/proc/self/fd")]
        seen = dict(os.environ), open_now, limits, os.getpid() == os.getsid(0), os.getcwd()
        sys.stdout.buffer.write(b"+" + json.dumps(seen).encode())
        """
    )
    environment, handles, limits, leads, folder = json.loads(bytes(compile_with(limits=CompileLimits(9.0, 3 << 30))))
    os.close(reader)
    os.close(writer)
    heap = {"GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_TOP_PAD_"}
    assert set(environment) - {"LC_CTYPE"} <= {"LD_LIBRARY_PATH", "RAYON_NUM_THREADS", *heap}
    assert set(handles) - {0, 1, 2} == {3}  # the listing's own
    cpu_s = int(9 * compiler._threads()) + 1
    assert limits == [
        [compiler.USUAL_BYTES + compiler.USUAL_RATIO * len(HEADER)] * 2,
        [cpu_s, cpu_s + 1],
        [0, 0],
        [0, 0],
    ]
    assert leads
    assert folder == "/"


def test_children_of_the_compiler_process_are_killed(program):
    program(
        """
        import subprocess
        script = "import threading; threading.Event().wait()"
        child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.write(1, b"+%d" % child.pid)
        os._exit(0)
        """
    )
    assert gone(int(compile_with()))


@pytest.mark.rule("6-child")
def test_the_compiler_process_ends_with_its_parent(program, tmp_path):
    note = tmp_path / "pid"
    os.mkfifo(note)
    program(
        f"""
        confine()
        os.write(os.open({str(note)!r}, os.O_WRONLY), b"%d\\n" % os.getpid())
        import threading; threading.Event().wait()
        """
    )
    script = f"""
        from tensorwasm.guest.engine import compiler_process as compiling
        from tensorwasm.guest.engine.compiler import CompileLimits, Compiler
        compiling.__file__ = {compiler_process.__file__!r}
        Compiler(CompileLimits()).compile(bytes(1 << 22), {{}}, "x")
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    with note.open() as said:
        child = os.pidfd_open(int(said.readline()))
    parent.kill()
    parent.wait()
    ready, _, _ = select.select([child], [], [], 60)
    os.close(child)
    assert ready


def gone(pid):
    """Return whether a process is not there, or about not to be."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([watch], [], [], 60)
    os.close(watch)
    return bool(ready)


def test_a_process_that_cannot_be_started_exhausts_capacity(monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(CapacityExhausted, match="no process for the compiler: Resource"):
        compile_with()


def test_as_many_run_at_once_as_there_are_slots(program, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "slot_count", lambda _processors: 1)
    mark = tmp_path / "mark"
    program(f"os.mkdir({str(mark)!r}); sys.stdin.buffer.read(); os.rmdir({str(mark)!r}); os.write(1, b'+')")
    shared, failed = Compiler(USUAL), []

    def work():
        try:
            shared.compile(HEADER, SETTINGS, "x")
        except CompileFailed as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_status_is_described_by_its_signals_name():
    assert child_process.describe(-signal.SIGXCPU).startswith("ended by SIGXCPU")
    assert child_process.describe(2) == "exited with code 2"
