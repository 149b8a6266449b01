"""What makes plans off the request path: limits, crashes, what is kept, and who waits for what."""

from __future__ import annotations

import gc
import json
import os
import pickle
import select
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import pytest
from msgspec.structs import replace

from loops import compile_c
from tensorwasm import settings
from tensorwasm.errors import InvalidArgs
from tensorwasm.guest.imports.offload import shadow
from tensorwasm.offload.analysis.regions import LoopRegion
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.codegen.sizes import MadePlan
from tensorwasm.offload.codegen.values import Location
from tensorwasm.offload.costs import RegionCosts, RunPlace
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.module import LoneRegion, cut_module
from tensorwasm.offload.plan_cache import NOT_READY, PlanRefusal
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.deploy.deployer import Deployer
from tensorwasm.runtime.deploy.kernel_folder import open_kernel_folder
from tensorwasm.runtime.invoke.offloading import Offloading
from tensorwasm.runtime.offload import compiler, plan_job, plan_service, tenant_threads
from tensorwasm.runtime.offload.compiler import OffloadCompiler
from tensorwasm.runtime.offload.mismatches import MOST_KEPT, MismatchRecords
from tensorwasm.runtime.offload.plan_job import PlanJob
from tensorwasm.runtime.offload.tenant_threads import TenantThreads

PROGRAM = """
#define EXPORT(name) __attribute__((export_name(#name))) name
static double x[256], y[256];
void EXPORT(axpy)(int n, double a) { for (int i = 0; i < n; i++) y[i] += a * x[i]; }
int EXPORT(last)(int n) { int at = 0; for (int i = 0; i < n; i++) { y[i] += 3; at = 5 * i; } return at; }
"""
# The tenant says what becomes of the process: no guest can.
HOOKED = """
import os, signal, sys
from tensorwasm.runtime.offload import plan_process

def make(job, make=plan_process.make):
    if job.tenant == "crash":
        os.abort()
    if job.tenant == "endless":
        while True:
            pass
    if job.tenant == "greedy":
        bytearray(1 << 50)
    if job.tenant == "killer":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    if job.tenant == "silent":
        signal.pause()
    if job.tenant == "long":
        return bytes(plan_process.MAX_ANSWER_BYTES)
    if job.tenant == "foreign":
        return os.getcwd
    if job.tenant.startswith("told"):
        with open(job.tenant.removeprefix("told ") + "/begun", "w") as begun:
            begun.write(f"{os.getpid()} {os.getppid()}")
        signal.pause()
    return make(job)

plan_process.make = make
sys.exit(plan_process.main(sys.argv[1:], sys.stdin.buffer, sys.stdout.buffer))
"""
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def whatever_it_costs(monkeypatch):
    """Have small loops run elsewhere, too."""
    monkeypatch.setattr(RegionCosts, "choose", lambda *_: RunPlace.ELSEWHERE)


@pytest.fixture(scope="module")
def wasm():
    return compile_c(PROGRAM, "-O2")


@pytest.fixture(scope="module")
def lone(wasm):
    return cut_module(wasm).lone[4]


def job(lone, tenant="default", memory_bytes=1 << 17):
    """Return the job of four iterations of `last` at a time: addresses from, to, and of the array."""
    return PlanJob(tenant, lone, (65536, 0, 148), memory_bytes, "this machine")


@pytest.fixture
def open_compiler():
    made = []

    def make(program=("-c", HOOKED)):
        made.append(OffloadCompiler(Deployer(settings.current()), program=program))
        made[-1].urgent = True
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Keep plans in a folder of the test's own."""
    for name, value in {"CACHE": tmp_path / "cache", "STATE_DIR": tmp_path / "state", "KERNEL_CACHE": 64}.items():
        monkeypatch.setenv(f"TENSOR_WASM_{name}", str(value))
    settings.current.cache_clear()
    yield tmp_path / "cache" / "kernels"
    settings.current.cache_clear()


def ask(made, job):
    return made.request(job).result(LIMIT_S)


@pytest.mark.parametrize(
    ("tenant", "reason"),
    [
        ("crash", DeclineReason.CRASH),
        ("endless", DeclineReason.OUT_OF_TIME),
        ("greedy", DeclineReason.OUT_OF_MEMORY),
        ("killer", DeclineReason.CRASH),
        ("silent", DeclineReason.OUT_OF_TIME),
        ("long", DeclineReason.CRASH),
    ],
)
def test_what_a_plan_does_to_its_process_costs_that_plan(open_compiler, lone, monkeypatch, tenant, reason):
    monkeypatch.setattr(plan_service, "CPU_S", 1)
    monkeypatch.setattr(plan_service, "WALL_S", 4.0 if tenant == "silent" else LIMIT_S)
    made = open_compiler()
    assert isinstance(ask(made, job(lone)), MadePlan)
    assert ask(made, job(lone, tenant)).reason is reason
    assert isinstance(ask(made, job(lone, "other")), MadePlan)


def hard_nest(depth, statements):
    """Return loops over statements with dependences in all directions, which isl works on for long."""
    source, names = Random(3), "ijklmn"[:depth]

    def place():
        return "a" + "".join(f"[{name} + {source.randint(0, 4)}]" for name in source.sample(names, 3))

    loops = "".join(f"for (int {name} = 0; {name} < n; {name}++) " for name in names)
    return f"{loops} {{ {''.join(f'{place()} = {place()} + {place()};' for _ in range(statements))} }}"


def test_a_nest_that_isl_works_on_for_long_is_given_up_and_others_go_on(monkeypatch):
    monkeypatch.setattr(plan_service, "CPU_S", 2)
    source = f"""
    static double a[16][16][16], y[256];
    void __attribute__((export_name("hard"))) hard(int n) {{ {hard_nest(5, 30)} }}
    void __attribute__((export_name("easy"))) easy(int n) {{ for (int i = 0; i < n; i++) y[i] += 3; }}
    """
    with Runtime("emulator") as runtime:
        function = runtime.load(compile_c(source, "-O1"), offload="cpu", offload_waits=True)
        function.invoke("hard", (4,))
        function.invoke("easy", (200,))
        hard, easy = function.offloading.statistics
    assert [refusal.reason for refusal in hard.declined] == [DeclineReason.OUT_OF_TIME]
    assert easy.taken == 1


def test_a_plan_of_foreign_classes_is_not_read(open_compiler, lone):
    made = open_compiler()
    with pytest.raises(pickle.UnpicklingError, match="is in no plan"):
        ask(made, job(lone, "foreign"))
    assert isinstance(ask(made, job(lone)), MadePlan)


@pytest.mark.parametrize("named", [Location, DeclineReason, LoopRegion, Scope])
def test_what_is_read_changes_no_class(named):
    by_name, change = pickle.dumps(named, 2)[:-1], pickle.dumps((None, {"changed": 1}), 2)[2:-1]
    with suppress(TypeError, pickle.UnpicklingError):
        plan_job.decode(by_name + change + pickle.BUILD + pickle.STOP)
    assert not hasattr(named, "changed")


def test_a_job_is_plain_values_and_code_is_kept_by_region(lone):
    asked = job(lone)
    assert plan_job.read_job(plan_job.pack(asked)) == asked
    pickled = replace(asked, region=pickle.dumps(lone))
    with pytest.raises(InvalidArgs):
        plan_job.read_job(plan_job.pack(pickled))
    other = replace(asked, region=LoneRegion(lone.wasm + b"\0", lone.region))
    assert other.code_name(b"1") != asked.code_name(b"1")


@pytest.mark.parametrize("found", [os.system, threading.Thread, compiler.OffloadCompiler, plan_job.decode])
def test_only_plain_values_are_read(found):
    with pytest.raises(pickle.UnpicklingError, match="is in no plan"):
        plan_job.decode(pickle.dumps(found))


def test_a_plan_that_many_ask_for_is_made_once(open_compiler, lone):
    made = open_compiler()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: made.request(job(lone)), range(64)))
    assert {type(each.result(LIMIT_S)) for each in found} == {MadePlan}
    assert made.plans.made == len(set(map(id, found))) < 64


def test_plans_are_kept_for_the_next_process_by_tenant(open_compiler, lone, kept):
    one, other = open_compiler(), open_compiler()
    first = ask(one, job(lone))
    found = ask(other, job(lone))
    assert (found.fingerprint, found.code) == (first.fingerprint, first.code)
    assert (other.plans.made, other.plans.kept) == (0, 1)
    ask(other, job(lone, "other"))
    ask(other, job(lone, memory_bytes=1 << 18))
    assert (other.plans.made, other.plans.kept) == (2, 1)


def test_refusals_are_kept_unless_another_process_may_not_meet_them(open_compiler, lone, kept):
    one, other = open_compiler(), open_compiler()
    small, crashing = job(lone, memory_bytes=0), job(lone, "crash")
    assert ask(one, small) == ask(other, small) == PlanRefusal(DeclineReason.OUT_OF_BOUNDS)
    assert ask(one, crashing).reason is ask(other, crashing).reason is DeclineReason.CRASH
    assert (other.plans.made, other.plans.kept) == (1, 1)


def test_code_that_is_known_is_neither_made_nor_read(open_compiler, lone, kept):
    one, other = open_compiler(), open_compiler()
    first = ask(one, job(lone))
    known = replace(job(lone, memory_bytes=1 << 18), known=frozenset({first.fingerprint}))
    assert ask(one, known).code is None
    assert (one.plans.made, one.plans.compiled) == (2, 1)
    assert ask(other, known).code is None
    assert ask(other, replace(known, known=frozenset())).code == first.code
    assert (other.plans.made, other.plans.kept) == (0, 2)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("how", ["changed", "cut", "foreign key"])
def test_a_file_that_was_not_signed_here_is_made_again(open_compiler, lone, kept, monkeypatch, tmp_path, how, which):
    first = ask(open_compiler(), job(lone))
    of_plan_and_code = sorted(kept.iterdir())
    assert len(of_plan_and_code) == 2
    file = of_plan_and_code[which]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    if how == "foreign key":
        monkeypatch.setenv("TENSOR_WASM_STATE_DIR", str(tmp_path / "another"))
        settings.current.cache_clear()
    else:
        file.unlink()
        file.write_bytes(data if how == "changed" else data[:-1])
        file.chmod(0o400)
    other = open_compiler()
    assert type(ask(other, job(lone))) is type(first)
    assert (other.plans.made, other.plans.kept) == (1, 0)


def test_a_second_runtime_makes_nothing(wasm, kept):
    for made in (2, 0):
        with Runtime("emulator") as runtime:
            function = runtime.load(wasm, offload="cpu", offload_waits=True)
            assert function.invoke("last", (152,)).values == (755,)
            function.invoke("axpy", (152, 2.0))
            assert [each.taken for each in function.offloading.statistics] == [1, 0, 0, 1, 0, 0]
            assert runtime.offload_compiler.plans.made == made


def make_wrong(monkeypatch):
    """Have plans made for fewer elements than there are."""
    request = Offloading._request

    def ask_for_fewer(offloading, target, codes, key):
        fewer = tuple(n - 8 if n == 152 else n for n in key.integers)
        return request(offloading, target, codes, key._replace(integers=fewer))

    monkeypatch.setattr(Offloading, "_request", ask_for_fewer)


def call_last(runtime, wasm, tenant="default"):
    function = runtime.load(wasm, offload="cpu", offload_waits=True, tenant=tenant)
    use = function.invoke("last", (152,), tenant=tenant).offload
    return use.taken, use.compared, "differed" in dict(use.declined)


def test_a_region_that_differed_is_off_for_its_tenant_in_all_processes_and_later_ones(wasm, kept, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_OFFLOAD_SHADOW", "1")
    settings.current.cache_clear()
    monkeypatch.setattr(shadow, "LOOK_S", 0.0)
    with Runtime("emulator") as one, Runtime("emulator") as other, monkeypatch.context() as wrongly:
        make_wrong(wrongly)
        beside = other.load(wasm, offload="cpu", offload_waits=True)
        assert beside.invoke("axpy", (100, 1.5)).offload.compared == 1
        assert call_last(one, wasm) == (0, 1, False)
        assert "differed" in dict(beside.invoke("last", (152,)).offload.declined)
        assert "differed" not in dict(beside.invoke("axpy", (100, 1.5)).offload.declined)
    with Runtime("emulator") as later:
        later.accounts.register("other", 1 << 20)
        assert call_last(later, wasm) == (0, 0, True)
        assert call_last(later, wasm, "other") == (0, 1, False)


def test_mismatches_of_a_region_are_counted_and_the_latest_are_kept(lone, kept):
    for number in range(MOST_KEPT + 3):
        MismatchRecords(open_kernel_folder(), "default", [lone]).add(0, json.dumps(number))
    found = MismatchRecords(open_kernel_folder(), "default", [lone]).find(0)
    assert (found.count, found.evidence) == (MOST_KEPT + 3, ("3", "4", "5", "6"))
    assert MismatchRecords(None, "default", [lone]).find(0) is None


@pytest.mark.parametrize("change", [1, -1])
def test_a_record_that_this_machine_did_not_sign_switches_nothing_off(lone, kept, change):
    MismatchRecords(open_kernel_folder(), "default", [lone]).add(0, "{}")
    (file,) = kept.iterdir()
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:] if change > 0 else data[:change])
    file.chmod(0o400)
    assert not MismatchRecords(open_kernel_folder(), "default", [lone]).is_off(0)


def test_loops_run_as_they_are_until_their_code_is_ready(wasm):
    with Runtime("emulator") as runtime:
        function = runtime.load(wasm, offload="cpu")
        assert function.invoke("last", (152,)).values == (755,)
        assert function.cutting.result(LIMIT_S).regions
        assert function.invoke("last", (152,)).values == (755,)
        counted = function.offloading.statistics[3]  # of both loops that clang makes of it
        assert (counted.taken, counted.declined) == (0, {NOT_READY: 1})
        # What waits for the same plan gets it after the first function, which asked before.
        assert runtime.load(wasm, offload="cpu", offload_waits=True).invoke("last", (152,)).values == (755,)
        assert function.invoke("last", (152,)).values == (755,)
        assert counted.taken == 1


@pytest.mark.parametrize("tenant", ["default", "other"])
def test_a_module_is_cut_for_its_tenant(wasm, kept, tenant):
    with Runtime("emulator") as runtime:
        runtime.accounts.register("other", 1 << 20)
        function = runtime.load(wasm, offload="cpu", offload_waits=True, tenant=tenant)
        assert function.invoke("last", (152,), tenant=tenant).values == (755,)
        other = runtime.load(wasm, offload="cpu", offload_waits=True, tenant="third")
        assert other.offloading is not None
    assert len(list(kept.iterdir())) == 4


def test_closing_ends_a_plan_that_is_being_made(open_compiler, lone, tmp_path):
    os.mkfifo(tmp_path / "begun")
    made = open_compiler()
    tenant = f"told {tmp_path}"
    begun = made.request(job(lone, tenant))
    waiting = [made.request(job(lone, tenant, memory_bytes)) for memory_bytes in (1 << 18, 1 << 19)]
    processes = [os.pidfd_open(int(number)) for number in (tmp_path / "begun").read_text().split()]
    made.close()
    assert begun.result(0) == NOT_READY
    assert all(each.cancelled() for each in waiting)
    assert made.request(job(lone)).cancelled()
    for process in processes:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        assert poll.poll(1000 * LIMIT_S)
        os.close(process)


def test_closing_a_runtime_ends_modules_that_are_being_cut(wasm):
    with Runtime("emulator") as runtime:
        functions = [runtime.load(wasm, offload="cpu") for _ in range(3)]
    assert all(function.cutting.done() for function in functions)
    assert runtime.load(wasm, offload="cpu").cutting.cancelled()
    assert runtime.load(wasm, offload="cpu").invoke("last", (152,)).values == (755,)


def test_tenants_take_turns_and_what_waits_is_bounded():
    begun, go_on, order = threading.Semaphore(0), threading.Event(), []
    threads = TenantThreads("test")
    for tenant in ("ann", "bob"):
        threads.submit(tenant, lambda _: (begun.release(), go_on.wait(LIMIT_S)))
        assert begun.acquire(timeout=LIMIT_S)
    many = [threads.submit("ann", lambda _: order.append("ann")) for _ in range(tenant_threads.MOST_EACH)]
    last = threads.submit("carl", lambda _: order.append("carl"))
    assert (many[-1], last is not None) == (None, True)  # the first of hers counts until it has ended
    go_on.set()
    assert last.result(LIMIT_S) is None
    many[-2].result(LIMIT_S)
    assert order.index("carl") <= 1
    threads.close()


def test_a_tenant_has_one_thread_and_others_overtake_what_takes_long():
    begun, go_on, order = threading.Event(), threading.Event(), []
    threads = TenantThreads("test")
    first = threads.submit("ann", lambda _: (begun.set(), go_on.wait(LIMIT_S), order.append("ann")))
    assert begun.wait(LIMIT_S)
    second = threads.submit("ann", lambda _: order.append("ann again"))
    for tenant in ("bob", "carl", "bob"):
        threads.submit(tenant, lambda _, tenant=tenant: order.append(tenant)).result(LIMIT_S)
    assert not first.done()
    assert order == ["bob", "carl", "bob"]
    go_on.set()
    second.result(LIMIT_S)
    assert order[3:] == ["ann", "ann again"]
    threads.close()


def test_plans_of_others_are_made_beside_one_that_takes_long(open_compiler, lone, tmp_path):
    os.mkfifo(tmp_path / "begun")
    made = open_compiler()
    long = made.request(job(lone, f"told {tmp_path}"))
    (tmp_path / "begun").read_text()
    for tenant in ("ann", "bob"):
        assert isinstance(ask(made, job(lone, tenant)), MadePlan)
    assert not long.done()


def test_a_task_that_fails_is_its_own_matter():
    threads = TenantThreads("test")
    failed, done = threads.submit("ann", lambda _: 1 // 0), threads.submit("ann", lambda _: 7)
    assert isinstance(failed.exception(LIMIT_S), ZeroDivisionError)
    assert done.result(LIMIT_S) == 7
    threads.close()


def test_a_thread_at_rest_says_so():
    rested = threading.Event()
    threads = TenantThreads("test", rested.set, rest_s=0.01)
    threads.submit("ann", lambda _: None)
    assert rested.wait(LIMIT_S)
    threads.close()
    gc.collect()
