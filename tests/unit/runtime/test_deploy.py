"""Deploying: from memory, from the disk, or compiled, once for each tenant."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import closing
from functools import partial

import pytest
from wasmtime import wat2wasm

from tensorwasm import Limits, Runtime, settings
from tensorwasm.artifacts.keys import HmacKey, machine_key
from tensorwasm.errors import (
    CompileFailed,
    CompileMemory,
    InvalidArgs,
    InvalidWasm,
    MissingExport,
    ModuleMemoryTooLarge,
    ModuleTooLarge,
    UnknownImport,
)
from tensorwasm.guest.engine import precompiled
from tensorwasm.guest.engine.compiler import Compiler
from tensorwasm.guest.engine.engine import Engine, EngineConfig, settings_of
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.runtime import LocalExecutor, Request
from tensorwasm.runtime.deploy import code_files
from tensorwasm.runtime.deploy.code_files import CodeFolder
from tensorwasm.runtime.deploy.deployer import Deployer, StopHook
from tensorwasm.runtime.invoke.deployed_module import check_export
from tensorwasm.values import MIB

WASM = bytes(
    wat2wasm('(module (memory 2) (func (export "f") (param i32) (result i32) (i32.add (local.get 0) (i32.const 1))))')
)
OTHER = bytes(wat2wasm('(module (func (export "f") (result i32) (i32.const 9)))'))
LIMITS = Limits()


@pytest.fixture
def engine():
    return Engine.shared(EngineConfig(slots=8))


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Settings with a disk, in folders of the test's own."""
    changed = dataclasses.replace(
        settings.current(), cache=str(tmp_path / "cache"), state=str(tmp_path / "state"), code_cache_mib=64
    )
    monkeypatch.setattr(settings, "current", lambda: changed)
    return changed


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "code"


@pytest.fixture
def compiled(monkeypatch):
    """Every module that the compiler was given."""
    seen, real = [], Compiler.compile

    def count(self, wasm, *rest):
        seen.append(wasm)
        return real(self, wasm, *rest)

    monkeypatch.setattr(Compiler, "compile", count)
    return seen


def call(module, *args):
    with Instance(Linker(module.engine).prepare(module)) as instance:
        return instance.call("f", list(args))


def only(folder):
    (path,) = folder.iterdir()
    return path


def test_memory_then_the_disk_then_the_compiler(engine, config, compiled, folder):
    first = Deployer(config)
    assert call(first.deploy(engine, WASM, LIMITS, "a"), 4) == [5]
    assert first.deploy(engine, WASM, LIMITS, "a") is first.deploy(engine, WASM, LIMITS, "a")
    seen = first.statistics()
    assert (seen.compiled, seen.disk_hits, seen.memory_hits, seen.kept_modules, seen.in_flight) == (1, 0, 2, 1, 0)
    assert 0 < seen.kept_bytes < seen.disk_bytes == only(folder).stat().st_size
    second = Deployer(config)
    assert call(second.deploy(engine, WASM, LIMITS, "a"), 5) == [6]
    seen = second.statistics()
    assert (seen.compiled, seen.disk_hits, seen.memory_hits, seen.disk_bytes) == (0, 1, 0, 0)
    assert compiled == [WASM]


@pytest.mark.rule("8-modules")
def test_tenants_share_neither_memory_nor_disk(engine, config, compiled, folder):
    deployer = Deployer(config)
    mine, theirs = (deployer.deploy(engine, WASM, LIMITS, tenant) for tenant in ("a", "b"))
    assert mine is not theirs
    assert compiled == [WASM, WASM]
    assert len(list(folder.iterdir())) == 2
    assert deployer.statistics().memory_hits == deployer.statistics().disk_hits == 0


def test_engines_of_one_shape_share_the_disk_and_others_do_not(config, compiled):
    deployer = Deployer(config)
    for changed in ({}, {"fibers": True}, {"stack_bytes": 1 << 20}, {"host_memory": True}, {"host_memory": True}):
        engine = Engine.shared(EngineConfig(slots=8, **changed))
        assert deployer.deploy(engine, WASM, LIMITS, "a").engine is engine
    assert len(compiled) == 2


def test_of_many_at_once_one_compiles(engine, config, compiled):
    deployer, together, made = Deployer(config), threading.Barrier(16), []

    def work():
        together.wait()
        made.append(deployer.deploy(engine, WASM, LIMITS, "a"))

    run_all(work, 16)
    assert len(set(made)) == len(compiled) == 1
    assert deployer.statistics().memory_hits == 15
    assert deployer.statistics().in_flight == 0


def run_all(work, count):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Gate:
    """A compiler that waits until it may fail, and tells that it was asked."""

    def __init__(self, error):
        self.asked, self.may_fail, self.error, self.calls = threading.Event(), threading.Event(), error, 0

    def compile(self, *_):
        self.calls += 1
        self.asked.set()
        assert self.may_fail.wait(60)
        raise self.error


def fail_first(deployer, gate, engine, others, seen):
    """Deploy with a compiler that fails, while others wait for it; what comes of each goes to `seen`."""

    def work():
        try:
            seen.append(deployer.deploy(engine, WASM, LIMITS, "a"))
        except BaseException as error:  # noqa: BLE001 - whatever it is
            seen.append(error)

    real, deployer._compiler = deployer._compiler, gate
    first = threading.Thread(target=work)
    first.start()
    assert gate.asked.wait(60)
    deployer._compiler = real
    waiting = [threading.Thread(target=work) for _ in range(others)]
    for thread in waiting:
        thread.start()
    gate.may_fail.set()
    for thread in (first, *waiting):
        thread.join()


def test_a_failed_compilation_fails_for_all_waiters_and_is_not_kept(engine, config):
    deployer, gate, seen = Deployer(config), Gate(CompileFailed("it burst")), []
    fail_first(deployer, gate, engine, 0, seen)
    assert [type(each) for each in seen] == [CompileFailed]
    assert call(deployer.deploy(engine, WASM, LIMITS, "a"), 1) == [2]


def test_when_the_one_that_compiles_is_interrupted_another_does(engine, config, compiled):
    deployer, gate, seen = Deployer(config), Gate(KeyboardInterrupt()), []
    fail_first(deployer, gate, engine, 4, seen)
    assert sum(isinstance(each, KeyboardInterrupt) for each in seen) == 1
    assert len({each for each in seen if not isinstance(each, KeyboardInterrupt)}) == 1
    assert len(compiled) == gate.calls == 1


class Endless:
    """A compiler that goes on until it is stopped, and tells that it was asked."""

    def __init__(self):
        self.asked, self.stopped = threading.Event(), threading.Event()

    def compile(self, _wasm, _settings, _name, stop, _share):
        stop.stop_with(self.stopped.set)
        self.asked.set()
        assert self.stopped.wait(60)
        raise CancelledError


def test_a_compilation_that_its_only_caller_gives_up_is_ended(engine, config):
    deployer, work, seen = Deployer(config), StopHook(), []
    deployer._compiler = endless = Endless()

    def deploy():
        with pytest.raises(CancelledError):
            deployer.deploy(engine, WASM, LIMITS, "a", work=work)
        seen.append(deployer.statistics().in_flight)

    thread = threading.Thread(target=deploy)
    thread.start()
    assert endless.asked.wait(60)
    work.stop()
    thread.join()
    assert seen == [0]


def test_a_compilation_goes_on_while_one_of_its_callers_waits(engine, config):
    deployer, works, seen = Deployer(config), [StopHook() for _ in range(3)], []
    deployer._compiler = endless = Endless()

    def deploy(work):
        try:
            deployer.deploy(engine, WASM, LIMITS, "a", work=work)
        except CancelledError:
            seen.append(work)

    threads = [threading.Thread(target=deploy, args=(work,)) for work in works]
    threads[0].start()
    assert endless.asked.wait(60)
    (compilation,) = deployer._compilations.values()
    for thread in threads[1:]:
        thread.start()
    while compilation.wanted < 3:
        time.sleep(0)
    works[0].stop()
    works[1].stop()
    threads[1].join()
    assert not endless.stopped.is_set()
    works[2].stop()
    for thread in threads:
        thread.join()
    assert endless.stopped.is_set()
    assert set(seen) == set(works)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('(module (import "nowhere" "f" (func)) (func (export "main")))', UnknownImport),
        ('(module (import "wasi_snapshot_preview1" "fd_wrote" (func)) (func (export "main")))', UnknownImport),
        ('(module (memory (import "env" "memory") 1) (func (export "main")))', UnknownImport),
        ('(module (func (export "other")))', MissingExport),
        ('(module (memory 60000) (func (export "main")))', ModuleMemoryTooLarge),
    ],
)
def test_a_module_refused_by_its_preamble_is_not_compiled(config, compiled, text, error):
    module = bytes(wat2wasm(text))
    with Runtime("emulator", slots=8) as runtime, closing(LocalExecutor(runtime)) as executor:
        with pytest.raises(error):
            runtime.load(module, check=partial(check_export, export=None))
        with pytest.raises(error):
            executor.submit(Request(module)).result(60)
    assert compiled == []


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    plant(path, bytes(data))


def plant(path, data):
    path.unlink()
    path.write_bytes(data)
    path.chmod(0o400)


def sign_anew(path):
    """Put what another machine made in a file's place."""
    CodeFolder(path.parent, HmacKey(bytes(32)), 1 << 30).put(bytes.fromhex(path.stem), path.read_bytes()[:5000])


def sign_as_a_snapshot(path):
    """Sign the very code with the key that this machine has for snapshots."""
    code = path.read_bytes()[: -code_files._TRAILER.size]
    CodeFolder(path.parent, machine_key("snapshot"), 1 << 30).put(bytes.fromhex(path.stem), code)


def of_another_version(path):
    """Put what this machine made for another engine in a file's place."""
    code = Compiler(Deployer(settings.current())._compiler._limits).compile(
        WASM, settings_of(EngineConfig(host_memory=True)), "x"
    )
    CodeFolder(path.parent, machine_key("code"), 1 << 30).put(bytes.fromhex(path.stem), code)


def link(path):
    path.rename(path.parent.parent / path.stem)
    path.symlink_to(path.parent.parent / path.stem)


@pytest.mark.rule("6-key")
@pytest.mark.parametrize(
    "damage",
    [
        flip,
        sign_anew,
        sign_as_a_snapshot,
        of_another_version,
        link,
        lambda path: plant(path, path.read_bytes()[:-1]),
        lambda path: plant(path, b""),
        lambda path: plant(path, b"\x7fELF" + bytes(9000)),
        lambda path: path.chmod(0o644),
    ],
)
def test_a_file_that_fails_a_check_is_replaced_and_that_is_logged_once(
    engine, config, compiled, folder, caplog, damage
):
    first, second, third = Deployer(config), Deployer(config), Deployer(config)
    for tenant in "ab":
        first.deploy(engine, WASM, LIMITS, tenant)
    for path in tuple(folder.iterdir()):
        damage(path)
    for tenant in "ab":
        assert call(second.deploy(engine, WASM, LIMITS, tenant), 1) == [2]
    assert second.statistics().unfit_files == second.statistics().compiled == 2
    assert [record.message for record in caplog.records if "made anew" in record.message] == caplog.messages[:1]
    for tenant in "ab":
        third.deploy(engine, WASM, LIMITS, tenant)
    assert third.statistics().disk_hits == 2


def test_code_runs_on_after_its_file_is_replaced_and_gone(engine, config, folder):
    Deployer(config).deploy(engine, WASM, LIMITS, "a")
    mapped = Deployer(config).deploy(engine, WASM, LIMITS, "a")
    CodeFolder(folder, machine_key("code"), 1 << 30).put(bytes.fromhex(only(folder).stem), bytes(1 << 20))
    only(folder).unlink()
    assert call(mapped, 41) == [42]


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_a_folder_that_is_open_to_others_is_not_used_and_that_is_logged_once(
    engine, config, compiled, folder, caplog, mode
):
    folder.mkdir(parents=True)
    folder.chmod(mode)
    deployer = Deployer(config)
    for wasm in (WASM, OTHER):
        deployer.deploy(engine, wasm, LIMITS, "a")
    assert list(folder.iterdir()) == []
    assert [record.message for record in caplog.records if "not kept on the disk" in record.message] == [
        f"compiled code is not kept on the disk: {folder} has mode {mode:o}, not 700"
    ]
    assert deployer.statistics().disk_bytes == 0


def test_a_key_that_others_can_read_is_not_used(engine, config, tmp_path, folder, caplog):
    machine_key("code")
    (tmp_path / "state" / "keys" / "code").chmod(0o644)
    assert call(Deployer(config).deploy(engine, WASM, LIMITS, "a"), 1) == [2]
    assert "not kept on the disk" in caplog.text
    assert list(folder.iterdir()) == []


def test_a_full_disk_is_done_without_and_that_is_logged_once(engine, config, compiled, caplog, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    machine_key("code")
    monkeypatch.setattr(os, "fsync", fail)
    deployer = Deployer(config)
    for wasm in (WASM, OTHER):
        deployer.deploy(engine, wasm, LIMITS, "a")
    assert call(deployer.deploy(engine, WASM, LIMITS, "a"), 1) == [2]
    assert [record.message for record in caplog.records] == ["compiled code is not kept: No space left on device"]


def test_a_disk_that_cannot_be_read_is_done_without(engine, config, caplog, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(CodeFolder, "_verify", fail)
    assert call(Deployer(config).deploy(engine, WASM, LIMITS, "a"), 1) == [2]
    assert call(Deployer(config).deploy(engine, WASM, LIMITS, "a"), 1) == [2]
    assert "compiled code cannot be read: Input/output error" in caplog.text


def test_a_cache_that_is_cleared_is_made_again(engine, config, tmp_path, folder):
    deployer = Deployer(config)
    deployer.deploy(engine, WASM, LIMITS, "a")
    shutil.rmtree(tmp_path / "cache")
    for tenant in "bc":
        assert call(deployer.deploy(engine, WASM, LIMITS, tenant), 1) == [2]
    assert len(list(folder.iterdir())) == 1


def test_switched_off_it_leaves_nothing_on_the_machine(engine, config, tmp_path, compiled):
    off = dataclasses.replace(config, code_cache_mib=0)
    for _ in range(2):
        assert call(Deployer(off).deploy(engine, WASM, LIMITS, "a"), 1) == [2]
    assert len(compiled) == 2
    assert list(tmp_path.iterdir()) == []


def test_without_a_way_to_map_files_they_are_copied(engine, config, compiled, monkeypatch):
    monkeypatch.setattr(precompiled, "can_map", lambda: False)
    for _ in range(2):
        assert call(Deployer(config).deploy(engine, WASM, LIMITS, "a"), 1) == [2]
    assert compiled == [WASM]


def test_a_module_that_does_not_fit_on_the_disk_is_compiled_each_time(engine, config, folder, compiled, monkeypatch):
    monkeypatch.setattr(CodeFolder, "put", lambda *_: 0)
    for _ in range(2):
        assert call(Deployer(config).deploy(engine, WASM, LIMITS, "a"), 1) == [2]
    assert len(compiled) == 2


def test_limits_are_those_of_each_deploy_wherever_the_code_is(engine, config):
    deployer = Deployer(config)
    small = Limits(memory_bytes=1 << 16)
    for _ in range(2):
        with pytest.raises(ModuleMemoryTooLarge):
            deployer.deploy(engine, WASM, small, "a")
        with pytest.raises(ModuleTooLarge):
            deployer.deploy(engine, WASM, Limits(module_bytes=9), "a")
        deployer.deploy(engine, WASM, LIMITS, "a")
    with pytest.raises(ModuleMemoryTooLarge):
        Deployer(config).deploy(engine, WASM, small, "a")


DEPLOY = """
import sys
from tensorwasm import Runtime
with Runtime("emulator", slots=8) as runtime:
    sys.stdin.read(1)
    for number in range(4):
        module = open(sys.argv[1], "rb").read() + bytes((0, 3, 1, 0x78, number))
        assert runtime.load(module).invoke("f", [1]).values == (2,)
    print(runtime.deploys().compiled, runtime.deploys().disk_hits, runtime.deploys().unfit_files)
"""


def test_two_processes_deploy_the_same_at_once(tmp_path):
    module = tmp_path / "module.wasm"
    module.write_bytes(WASM)
    environment = {
        **os.environ,
        "TENSOR_WASM_CACHE": str(tmp_path / "cache"),
        "TENSOR_WASM_STATE_DIR": str(tmp_path / "state"),
        "TENSOR_WASM_CODE_CACHE": "64",
    }
    both = [
        subprocess.Popen(
            [sys.executable, "-c", DEPLOY, str(module)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        for _ in range(2)
    ]
    for process in both:
        process.stdin.write(b"x")
        process.stdin.flush()
    said = [tuple(map(int, process.communicate()[0].split())) for process in both]
    for compiled, hits, unfit in said:
        assert (compiled + hits, unfit) == (4, 0)
    assert 4 <= said[0][0] + said[1][0] <= 8
    assert len(list((tmp_path / "cache" / "code").iterdir())) == 4
    again = subprocess.run(
        [sys.executable, "-c", DEPLOY, str(module)], input=b"x", capture_output=True, env=environment, check=True
    )
    assert again.stdout.split() == [b"0", b"4", b"0"]


class TestRuntime:
    """What `Runtime.load` makes of it."""

    def test_load_deploys_for_the_tenant(self, config, compiled):
        with Runtime("emulator", slots=8) as runtime:
            for tenant in ("default", "a", "a"):
                assert runtime.load(WASM, tenant=tenant).invoke("f", [1]).values == (2,)
            assert runtime.load(WASM, limits=Limits(wall_s=9)).invoke("f", [2]).values == (3,)
            assert (runtime.deploys().compiled, runtime.deploys().memory_hits) == (2, 2)
            with pytest.raises(InvalidArgs, match="a tenant is"):
                runtime.load(WASM, tenant="../a")

    @pytest.mark.rule("6-uploaded")
    def test_load_refuses_precompiled_code(self, engine, config):
        code = precompiled.serialize(compile_module(engine, WASM))
        with (
            Runtime("emulator", slots=8) as runtime,
            pytest.raises(InvalidWasm, match=r"precompiled code, which is not accepted: give the \.wasm"),
        ):
            runtime.load(code)

    @pytest.mark.rule("6-child")
    def test_a_module_that_bursts_is_refused_and_the_next_one_runs(self, config, monkeypatch):
        bomb = bytes(
            wat2wasm(f"(module (func (param i32) {'(local.set 0 (i32.mul (local.get 0) (i32.const 7)))' * 50_000}))")
        )
        tight = dataclasses.replace(config, compile_memory_mib=256)
        monkeypatch.setattr(settings, "current", lambda: tight)
        with Runtime("emulator", slots=8) as runtime:
            with pytest.raises(CompileMemory, match=r"module [0-9a-f]{16} takes more than the 256 MiB"):
                runtime.load(bomb)
            assert runtime.deploys().kept_modules == 0
        monkeypatch.setattr(settings, "current", lambda: config)
        with Runtime("emulator", slots=8) as runtime:
            assert runtime.load(WASM).invoke("f", [1]).values == (2,)


def test_the_number_of_modules_kept_in_memory_is_bounded(engine, config, monkeypatch):
    monkeypatch.setattr("tensorwasm.runtime.deploy.deployer.KEPT_MODULES", 2)
    deployer = Deployer(config)
    for tenant in "abcabc":
        deployer.deploy(engine, WASM, LIMITS, tenant)
    seen = deployer.statistics()
    assert (seen.kept_modules, seen.compiled, seen.disk_hits, seen.memory_hits) == (2, 3, 3, 0)
    assert seen.kept_bytes < MIB
