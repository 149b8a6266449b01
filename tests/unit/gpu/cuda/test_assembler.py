import errno
import os
import shutil
import sys
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import DeviceUnavailable, InvokeTimeout, MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.cuda.assembler import Assembler, find_assembler, read_report, summarize
from tensorwasm.values import NEVER, Deadline

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for ptxas is a script")

KERNEL = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"

VERSION = "print('Cuda compilation tools, release 12.9, V12.9.86') if '--version' in sys.argv else None\n"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Where temporary folders are made during the test."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def ptxas(tmp_path, folders):
    """Make a stand-in for ptxas that runs the given Python."""

    def make(body: str, wall_s: float = 30.0, memory_bytes: int = 1 << 30) -> Assembler:
        path = tmp_path / "ptxas"
        path.write_text(f"#!{sys.executable} -S\nimport os, sys\n{body}\n", encoding="utf-8")
        path.chmod(0o700)
        return Assembler(str(path), (12, 9), wall_s, memory_bytes)

    return make


def refusal(assembler: Assembler) -> str:
    with pytest.raises(MalformedPtx) as caught:
        assembler.assemble(KERNEL, "sm_90", NEVER)
    return caught.value.message


def test_the_cubin_is_what_the_child_wrote_and_nothing_stays_on_disk(ptxas, folders):
    body = """
at = sys.argv.index("-o")
mode = oct(os.stat(".").st_mode & 0o777)
text = open(sys.argv[-1]).read()
open(sys.argv[at + 1], "w").write(f"{mode} {sys.argv[sys.argv.index('--gpu-name') + 1]} {text}")
"""
    cubin = ptxas(body).assemble(KERNEL, "sm_90a", NEVER)
    assert cubin.decode() == f"0o700 sm_90a {KERNEL}"
    assert list(folders.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os.kill(os.getpid(), 11)", "crashed on the module (signal 11)"),
        ("os.abort()", "crashed"),
        ("sys.exit(255)", "exit code 255"),
        ("pass", "ptxas refuses the module"),
        (
            "print(\"ptxas module.ptx, line 4; error   : Unknown modifier '.bar'\"); sys.exit(255)",
            "ptxas refuses the module: line 4; error : Unknown modifier '.bar'",
        ),
    ],
)
def test_every_end_of_the_child_without_a_cubin_is_a_refusal_of_the_module(ptxas, folders, body, words):
    assert words in refusal(ptxas(body))
    assert list(folders.iterdir()) == []


def test_a_child_that_does_not_finish_is_ended(ptxas, folders):
    body = "open(os.environ['TMPDIR'] + '/pid', 'w').write(str(os.getpid()))\nwhile True: pass"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folders))
        assert "in time" in refusal(ptxas(body, wall_s=2.0))
    pid = int((folders / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_deadline_before_its_own_limit_ends_the_child(ptxas, tmp_path, folders):
    assembler = ptxas(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nwhile True: pass")
    with pytest.raises(InvokeTimeout, match="while ptxas compiled"):
        assembler.assemble(KERNEL, "sm_90", Deadline.after(3))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert list(folders.iterdir()) == []


def unavailable(assembler: Assembler, folder) -> str:
    with pytest.raises(DeviceUnavailable) as caught:
        assembler.assemble(KERNEL, "sm_90", NEVER)
    assert str(folder) not in caught.value.message
    return caught.value.message


def test_a_ptxas_that_has_gone_makes_the_device_unavailable_without_a_path(tmp_path, folders):
    assert "No such file" in unavailable(Assembler(str(tmp_path / "ptxas"), (12, 9)), tmp_path)
    assert list(folders.iterdir()) == []


def test_no_room_for_temporary_files_makes_the_device_unavailable_without_a_path(ptxas, tmp_path, folders):
    assembler = ptxas("pass")
    folders.rmdir()
    assert "No such file" in unavailable(assembler, tmp_path)


def test_a_child_that_cannot_be_limited_is_ended(ptxas, tmp_path, folders, monkeypatch):
    def refuse(_assembler, pid):
        (tmp_path / "pid").write_text(str(pid))
        raise PermissionError(errno.EPERM, "Operation not permitted", str(folders))

    monkeypatch.setattr(Assembler, "_confine", refuse)
    assert "Operation not permitted" in unavailable(ptxas("while True: pass"), tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert list(folders.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_a_child_that_takes_too_much_memory_fails_alone(ptxas):
    assert refusal(ptxas("x = bytearray(2 << 30); sys.exit(0 if not x else 1)", memory_bytes=256 << 20))


def test_the_child_sees_no_secrets_of_this_process(ptxas, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "secret")
    assert "secret" not in refusal(ptxas("print(os.environ); sys.exit(1)"))


def test_a_flood_of_output_is_cut(ptxas):
    assert len(refusal(ptxas("[print('error ' + 'x' * 1000) for _ in range(10000)]; sys.exit(1)"))) < 500


@pytest.mark.parametrize(
    ("capability", "isa", "driver", "suits"),
    [
        ((9, 0), (8, 8), (12, 9), True),
        ((9, 0), (8, 8), (13, 0), True),
        ((7, 0), (8, 0), (13, 0), True),
        ((9, 0), (9, 0), (13, 0), False),
        ((11, 0), (8, 0), (13, 0), False),
        ((9, 0), (8, 0), (11, 8), False),
    ],
)
def test_a_ptxas_is_used_only_for_what_it_and_the_driver_know(capability, isa, driver, suits):
    assert Assembler("ptxas", (12, 9)).suits(capability, isa, driver) is suits


def test_the_preferred_path_is_asked_first_then_the_path_then_the_toolkit(ptxas, tmp_path):
    assembler = ptxas(VERSION)
    root = tmp_path / "toolkit"
    (root / "bin").mkdir(parents=True)
    shutil.copy(assembler.path, root / "bin" / "ptxas")
    on_path = tmp_path / "path"
    on_path.mkdir()
    shutil.copy(assembler.path, on_path / "ptxas")
    environment = {"PATH": str(on_path), "CUDA_HOME": str(root)}
    assert find_assembler(assembler.path, environment) == Assembler(assembler.path, (12, 9))
    assert find_assembler("", environment).path == str(on_path / "ptxas")
    assert find_assembler("", {"PATH": "", "CUDA_HOME": str(root)}).path == str(root / "bin" / "ptxas")


def test_the_toolkits_variables_are_asked_in_their_order(ptxas, tmp_path):
    assembler = ptxas(VERSION)
    for name in ("root", "path", "home"):
        (tmp_path / name / "bin").mkdir(parents=True)
        shutil.copy(assembler.path, tmp_path / name / "bin" / "ptxas")
    variables = {"CUDA_HOME": "home", "CUDA_PATH": "path", "CUDA_ROOT": "root"}
    environment = {"PATH": ""} | {name: str(tmp_path / folder) for name, folder in variables.items()}
    for name in ("root", "path", "home"):
        assert find_assembler("", environment).path == str(tmp_path / name / "bin" / "ptxas")
        del environment[{"root": "CUDA_ROOT", "path": "CUDA_PATH", "home": "CUDA_HOME"}[name]]


def test_the_packages_for_python_are_asked_last_and_one_that_serves_is_taken(ptxas, tmp_path, monkeypatch):
    first, serving = ptxas(VERSION), tmp_path / "nvidia" / "cu13" / "bin" / "ptxas"
    other = tmp_path / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
    for path in (serving, other):
        path.parent.mkdir(parents=True)
        shutil.copy(first.path, path)
    serving.write_text(serving.read_text().replace("12.9", "13.5"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    environment = {"PATH": ""}
    assert find_assembler(first.path, environment).path == first.path
    assert find_assembler(first.path, environment, lambda found: found.release == (13, 5)).path == str(serving)
    assert find_assembler(first.path, environment, lambda _: False).path == first.path
    serving.unlink()
    assert find_assembler("", environment, lambda found: found.path == str(other)).path == str(other)


@pytest.mark.parametrize("body", ["sys.exit(1)", "print('release unknown')", "sys.stdout.buffer.write(b'\\xff')"])
def test_a_ptxas_that_does_not_print_its_release_is_skipped(ptxas, body):
    found = find_assembler(ptxas(body).path, {"PATH": ""})
    assert found is None or found.path == "/usr/local/cuda/bin/ptxas"


def test_the_real_ptxas_assembles_and_refuses(folders):
    assembler = find_assembler("", os.environ)
    if assembler is None:
        pytest.skip("NO PTXAS: it is not installed")
    assert assembler.assemble(KERNEL, "sm_90", NEVER).startswith(b"\x7fELF")
    with pytest.raises(MalformedPtx, match="line 4"):
        assembler.assemble(KERNEL.replace("ret;", "foo;"), "sm_90", NEVER)
    assert list(folders.iterdir()) == []


# ------------------------------------------------------------------------- what ptxas says of a kernel


REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    4608 bytes stack frame, 160 bytes spill stores, 164 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 4612 bytes cumulative stack size, 256 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 2428.696 ms
ptxas info    : Function properties for f
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ("", (12, 4612, 256)),
        (", 256 bytes smem", (12, 4612, 0)),
        (", 4612 bytes cumulative stack size", (12, 4624, 256)),
        ("ptxas info    : Compile time = 2428.696 ms\n", (12, 4612, 256)),
    ],
)
def test_what_a_kernel_takes_is_read_from_the_report(cut, expected):
    found = read_report(b"cubin", REPORT.replace(cut, ""))
    assert (found.registers, found.local_bytes, found.shared_bytes) == expected
    assert found.image == b"cubin"


@pytest.mark.parametrize("said", ["", "Used 12 registers", REPORT * 2, REPORT + "x" * (1 << 20), REPORT[:200]])
def test_a_kernel_whose_report_is_not_understood_is_refused(said):
    with pytest.raises(UnsupportedPtx, match="does not say what the kernel takes"):
        read_report(b"cubin", said)


def test_what_ptxas_reports_is_no_part_of_a_refusal():
    assert summarize(REPORT.encode() + b"ptxas error   : too much shared data") == "error : too much shared data"


TAKING = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b32 %a; .reg .b64 %p, %l; .shared .align 4 .b8 s[2560]; .local .align 4 .b8 frame[5120];
    mov.u32 %a, %tid.x; cvt.u64.u32 %l, %a;
    mov.u64 %p, frame; add.u64 %p, %p, %l; st.local.b32 [%p], %a; ld.local.b32 %a, [%p+8];
    mov.u64 %p, s; add.u64 %p, %p, %l; st.shared.b32 [%p], %a; ld.shared.b32 %a, [%p+8];
    ld.param.u64 %p, [out]; st.global.b32 [%p], %a; ret;
}
"""


def test_the_real_ptxas_says_what_a_kernel_takes(folders):
    assembler = find_assembler("", os.environ)
    if assembler is None:
        pytest.skip("NO PTXAS: it is not installed")
    found = assembler.compile_kernel(TAKING, "sm_90", NEVER)
    assert found.image.startswith(b"\x7fELF")
    assert 0 < found.registers < 64
    assert (found.local_bytes, found.shared_bytes) == (5120, 2560)
    with pytest.raises(MalformedPtx, match="refuses the module: error : Entry function 'k' uses too much shared data"):
        assembler.compile_kernel(TAKING.replace("2560", "65536"), "sm_90", NEVER)


# ------------------------------------------------------------------------------------- summaries of logs


LOG = (
    b"ptxas /home/u/secret/module.ptx, line 4; error   : Arguments mismatch for instruction 'add'\n"
    b"ptxas application ptx input, line 9; error   : Unknown modifier '.bar'\n"
    b"ptxas fatal   : Ptx assembly aborted due to errors\n\0old bytes"
)


def test_the_first_lines_stay_and_paths_go():
    assert summarize(LOG) == (
        "line 4; error : Arguments mismatch for instruction 'add'; line 9; error : Unknown modifier '.bar'"
    )


def test_windows_paths_go_too():
    assert summarize(rb"ptxas C:\Users\u\module.ptx, line 1; error : x") == "line 1; error : x"


@given(st.binary(max_size=2000))
def test_every_summary_is_short_printable_ascii(log):
    text = summarize(log)
    assert len(text) <= 400
    assert all(" " <= character <= "~" for character in text)


@given(st.lists(st.sampled_from(["home", "a.b", "x-1", "tmp"]), min_size=1, max_size=5))
@pytest.mark.rule("16-messages")
def test_no_path_survives(parts):
    path = "/" + "/".join(parts)
    assert path not in summarize(f"error in {path}: bad".encode())
