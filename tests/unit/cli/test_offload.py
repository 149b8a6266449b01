"""`tensor-wasm offload`."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from loops import compile_c
from tensorwasm import settings
from tensorwasm.offload.costs import RegionCosts, RunPlace
from tensorwasm.offload.module import cut_module
from tensorwasm.runtime.api import comparison
from tensorwasm.runtime.deploy.kernel_folder import open_kernel_folder
from tensorwasm.runtime.offload.mismatches import MismatchRecords

PROGRAM = """
static double x[256], y[256];
void __attribute__((export_name("init")))
init(int n) {
  for (int i = 0; i < n; i++) { x[i] = i * 0.5; y[i] = n - i; }
}
void __attribute__((export_name("axpy")))
axpy(int n, double a) {
  for (int i = 0; i < n; i++) y[i] += a * x[i];
}
extern void other(int) __attribute__((import_module("wasi_snapshot_preview1"), import_name("proc_exit")));
void __attribute__((export_name("leave")))
leave(int n) {
  for (int i = 0; i < n; i++) { x[i] = 1; other(i); }
}
"""


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Offload whatever that costs."""
    monkeypatch.setattr(RegionCosts, "choose", lambda *_: RunPlace.ELSEWHERE)


@pytest.fixture(scope="module")
def wasm():
    return compile_c(PROGRAM, "-O2", "-g")


@pytest.fixture
def file(wasm, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_STATE_DIR", str(tmp_path / "state"))
    settings.current.cache_clear()
    (tmp_path / "program.wasm").write_bytes(wasm)
    yield tmp_path / "program.wasm"
    settings.current.cache_clear()


def test_loops_are_explained_with_their_lines(cli, file):
    done = cli("offload", "explain", file, "--output", "json")
    rows = json.loads(done.out)
    assert done.code == 0
    assert [(row["function"], row["region"], row["reason"]) for row in rows] == [
        ("init", 0, None),
        ("axpy", 1, None),
        ("leave", None, "call"),
    ]
    lines = [int(row["line"].rpartition(":")[2]) for row in rows]
    assert [PROGRAM.splitlines()[line - 1].strip()[:3] for line in lines] == ["for", "for", "for"]


def test_a_region_that_is_off_because_it_differed_is_explained_with_its_evidence(cli, file, wasm, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_CACHE", str(file.parent / "cache"))
    monkeypatch.setenv("TENSOR_WASM_KERNEL_CACHE", "64")
    settings.current.cache_clear()
    records = MismatchRecords(open_kernel_folder(), "7", cut_module(wasm).lone)
    records.add(1, '{"region": 1}')
    records.add(1, '{"region": 1, "outputs": []}')
    axpy = json.loads(cli("offload", "explain", file, "--tenant", "7", "--output", "json").out)[1]
    assert axpy["reason"] == "differed"
    assert axpy["detail"].endswith("found 2 times")
    assert axpy["evidence"] == [{"region": 1}, {"region": 1, "outputs": []}]
    assert "differed" not in cli("offload", "explain", file).out


def test_loops_are_explained_as_text(cli, file):
    done = cli("offload", "explain", file)
    assert done.out.splitlines()[0].split() == ["FUNCTION", "LINE", "LOOPS", "REGION", "REASON", "DETAIL"]
    assert "it calls a function" in done.out


@pytest.mark.parametrize("device", ["cpu", "emulator"])
def test_a_run_is_compared_and_its_regions_are_counted(cli, file, device):
    call = ("--export", "axpy", "--args", "[200, 1.5]", "--setup", "init [256]")
    done = cli("offload", "run", file, *call, "--device", device, "--compare", "--repeat", "2", "--output", "json")
    report = json.loads(done.out)
    assert (done.code, report["difference"]) == (0, None)
    assert [(row["function"], row["taken"], row["declined"]) for row in report["regions"]] == [
        ("init", 1, 0),
        ("axpy", 2, 0),
    ]
    assert report["speed_up"] > 0
    assert (report["regions"][1]["moved_bytes"] > 0) is (device == "emulator")


def test_a_run_alone_counts_why_regions_declined(cli, file):
    done = cli("offload", "run", file, "--export", "axpy", "--args", '[100, "inf"]', "--device", "cpu")
    assert done.code == 0
    assert "not_a_number: 1" in done.out
    assert "plain" not in done.out


class Page(HTMLParser):
    """What a timeline has: a lane's rectangles as place, width and title, by call; and the cells of its table."""

    def __init__(self, text) -> None:
        super().__init__()
        self.tags, self.calls, self.cells, self.at = set(), [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes) -> None:
        self.tags.add(tag)
        given = dict(attributes)
        assert not given.keys() & {"src", "href", "onclick", "onerror", "onload"}
        if tag == "section":
            self.calls.append([])
        elif tag == "rect":
            self.calls[-1].append([given["class"], float(given["x"]), float(given["width"]), ""])
        self.at = tag if tag != "td" else given["data-name"]
        self.cells += [{}] if self.at == "region" else []

    def handle_data(self, data) -> None:
        if self.at == "title" and self.calls:
            self.calls[-1][-1][3] += data
        elif self.cells and self.at != "script":
            self.cells[-1][self.at] = self.cells[-1].get(self.at, "") + data

    def handle_endtag(self, tag) -> None:
        self.at = ""


def timeline(cli, file, *arguments):
    page = file.with_suffix(".html")
    done = cli("offload", "run", file, *arguments, "--timeline", page)
    assert done.code == 0
    text = page.read_text()
    assert "default-src 'none'" in text
    assert "://" not in text
    return Page(text)


@pytest.mark.parametrize("device", ["cpu", "emulator"])
def test_a_timeline_shows_where_the_time_of_each_call_went(cli, file, device):
    call = ("--export", "axpy", "--args", "[200, 1.5]", "--setup", "init [256]", "--repeat", "2", "--compare")
    page = timeline(cli, file, *call, "--device", device)
    elsewhere = {"run"} if device == "cpu" else {"in", "run", "out"}
    assert [{kind for kind, *_ in rects} for rects in page.calls] == [{"guest", "plan", *elsewhere}] * 3
    for rects in page.calls:
        spans = sorted((x, width) for _, x, width, _ in rects)
        assert spans[0][0] == 0
        assert all(before[0] <= after[0] for before, after in pairwise(spans))
        assert spans[-1][0] + spans[-1][1] <= 1001
        assert 990 < sum(width for _, width in spans) < 1000 + len(spans)  # they fill the call and do not overlap
    plans = [title for kind, *_, title in page.calls[1] if kind == "plan"]
    assert all(
        re.search(r"region 1 of axpy: plan making, .* ms, isl [\d.]+ ms, LLVM [\d.]+ ms", plan) for plan in plans
    )
    assert [(row["region"], row["function"], row["taken"]) for row in page.cells] == [
        ("0", "init", "1"),
        ("1", "axpy", "2"),
    ]
    assert page.cells[1]["line"].endswith(f"x.c:{PROGRAM.splitlines().index('axpy(int n, double a) {') + 2}")
    moved = r"copies in: [\d,]+ bytes, \S+ GB/s; kernels: 2 launches; copies out: [\d,]+ bytes, \S+ GB/s"
    assert re.fullmatch(moved if device == "emulator" else "kernels: 2 launches", page.cells[1]["moved"])


def test_a_timeline_shows_why_a_region_ran_in_the_guest_and_how_long(cli, file):
    page = timeline(cli, file, "--export", "axpy", "--args", '[100, "inf"]', "--device", "cpu")
    (title,) = [title for kind, *_, title in page.calls[0] if kind == "declined"]
    assert re.fullmatch("region 1 of axpy: region in the guest, [0-9.e-]+ ms, not_a_number", title)
    assert page.cells[1]["declined"] == "not_a_number: 1"
    assert float(page.cells[1]["in the guest"].split()[0]) > 0


def test_names_of_functions_are_text_in_a_timeline(cli, tmp_path, file):
    name = "<img src=x onerror=alert(1)>"
    loop = "for (int i = 0; i < n; i++) x[i] = i;"
    (tmp_path / "named.wasm").write_bytes(
        compile_c(f'int x[99]; __attribute__((export_name("{name}"))) void f(int n) {{ {loop} }}', "-O2")
    )
    page = timeline(cli, tmp_path / "named.wasm", "--export", name, "--args", "[40]", "--device", "cpu")
    assert "img" not in page.tags
    assert page.cells[0]["function"] in {name, "f"}


def test_a_timeline_that_cannot_be_written_is_refused(cli, file):
    page = file.parent / "missing" / "page.html"
    done = cli("offload", "run", file, "--export", "init", "--args", "[8]", "--device", "cpu", "--timeline", page)
    assert done.code == 2
    assert "cannot be written" in done.err


def test_a_difference_is_the_exit_code_and_named(cli, file, monkeypatch):
    monkeypatch.setattr(comparison, "_memory_difference", lambda *_: "byte 0x10 differs")
    done = cli("offload", "run", file, "--export", "init", "--args", "[8]", "--device", "cpu", "--compare")
    assert done.code == 1
    assert "difference  byte 0x10 differs" in done.out


def test_a_setup_that_is_no_call_is_refused(cli, file):
    done = cli("offload", "run", file, "--export", "init", "--setup", " [8]")
    assert done.code == 2
    assert "--setup takes a name" in done.err


def test_the_loops_that_a_call_reaches_are_explained_with_their_order(cli, file):
    call = ("--export", "axpy", "--args", "[200, 1.5]", "--setup", "init [256]")
    done = cli("offload", "explain", file, *call)
    assert "region 1 with" in done.out
    assert "  parallel p0 = 0 to" in done.out
    assert "read and written" in done.out
    assert ".target" not in done.out
    report = json.loads(cli("offload", "explain", file, *call, "--ptx", "--output", "json").out)
    assert [plan["region"] for plan in report["plans"]] == [0, 1]
    assert all(".target sm_90" in plan["ptx"] and not plan["reason"] for plan in report["plans"])


def test_why_a_loop_that_a_call_reaches_runs_as_it_is_is_explained(cli, tmp_path, file):
    scan = "void f(int n) { for (int i = 1; i < n; i++) x[i] += 3 * x[i - 1]; }"
    source = f'int x[99]; __attribute__((export_name("f"))) {scan}'
    (tmp_path / "scan.wasm").write_bytes(compile_c(source, "-O1"))
    report = json.loads(
        cli("offload", "explain", tmp_path / "scan.wasm", "--export", "f", "--args", "[40]", "--output", "json").out
    )
    assert [(plan["reason"], plan["listing"]) for plan in report["plans"]] == [("sequential", [])]


def test_a_module_without_loops_has_none(cli, tmp_path):
    empty = tmp_path / "empty.wasm"
    empty.write_bytes(b"\0asm\1\0\0\0")
    assert cli("offload", "explain", empty).out == "no loops\n"


@pytest.mark.parametrize("place", ["cpu", "gpu"])
def test_a_module_is_run_with_its_loops_elsewhere(cli, file, place):
    done = cli(
        "run", file, "--export", "init", "--args", "[200]", "--offload", place, "--device", "emulator", "--verbose"
    )
    assert (done.code, done.out) == (0, "ok\n")
    assert "loops: 1 runs elsewhere" in done.err


def test_a_module_is_run_as_it_is_unless_it_is_said(cli, file):
    done = cli("run", file, "--export", "init", "--args", "[200]", "--verbose")
    assert (done.code, "loops" in done.err) == (0, False)
    assert cli("run", file, "--export", "init", "--args", "[200]", "--offload", "tpu").code == 2


TOTAL = """
static double z[2048];
double __attribute__((export_name("total")))
total(int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) z[i] = 1.0 / (i + 3);
  for (int i = 0; i < n; i++) sum += z[i];
  return sum;
}
"""


def test_floats_are_added_up_in_another_order_where_that_is_said(cli, file):
    file.write_bytes(compile_c(TOTAL, "-O1"))
    given = ["--export", "total", "--args", "[2000]"]
    in_order = sum(1.0 / (i + 3) for i in range(2000))
    found = []
    for math in ("exact", "relaxed"):
        alone = cli("run", file, *given, "--offload", "cpu", "--offload-math", math)
        counted = cli("offload", "run", file, *given, "--offload-math", math, "--output", "json")
        found.append(float(alone.out))
        assert json.loads(json.loads(counted.out)["offloaded"]["results"]) == found[-1:]
    assert found[0] == in_order
    assert 0 < abs(found[1] - in_order) < 1e-12


def test_an_unknown_order_of_sums_is_refused(cli, file):
    done = cli("offload", "run", file, "--export", "init", "--args", "[9]", "--offload-math", "fast")
    assert done.code == 2
    assert "--offload-math is one of exact, relaxed" in done.err
