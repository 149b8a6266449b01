"""Deploying: a module becomes code that can be instantiated, compiled once for each tenant and kept.

The code is looked for in this process's memory, then on the disk (`tensorwasm.runtime.deploy.code_files`), then
compiled in a process of its own (`tensorwasm.guest.engine.compiler`). An entry's key is a hash of everything that
shapes it: the module's bytes as they are compiled, the engine (`tensorwasm.guest.engine.precompiled.fingerprint`), and
the tenant. So a hit, or its time, tells no tenant what another one has deployed: the same module of another tenant is
compiled again. Capacity is shared: a tenant who deploys very much evicts what others have not used for long.

A module's declarations are checked before it is compiled: imports, exports and initial sizes. A compilation that no
client waits for is ended.

Without a safe and writable disk everything works, but slower; that is logged once.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from tensorwasm import settings
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.keys import machine_key
from tensorwasm.errors import InternalError, InvalidWasm, ModuleTooLarge, TensorWasmError
from tensorwasm.guest.engine import capi, folders, precompiled
from tensorwasm.guest.engine.compile_capacity import Share
from tensorwasm.guest.engine.compiler import CompileLimits, Compiler
from tensorwasm.guest.engine.engine import Engine, settings_of
from tensorwasm.guest.engine.module import CompiledModule, check_declared, compile_module
from tensorwasm.guest.engine.traps import SourceLines
from tensorwasm.runtime.deploy.code_files import CodeFile, CodeFolder, UnfitFile
from tensorwasm.runtime.deploy.lru_cache import LruCache
from tensorwasm.runtime.deploy.module_reader import ModuleReader
from tensorwasm.values import MIB, Limits
from tensorwasm.wasm.preamble import Preamble

if TYPE_CHECKING:
    from tensorwasm.guest.saved.instrumented import InstrumentedModule
    from tensorwasm.offload.module import CutModule

KEPT_MODULES: Final = 1024
KEPT_CODE_BYTES: Final = 512 * MIB

_NAME: Final = b"tensorwasm code 1\0"
_HASH_DIGITS: Final = 16

_log = logging.getLogger(__name__)


class StopHook:
    """A function that stops a piece of work, set once the work has begun, and whether it was stopped. Thread-safe."""

    __slots__ = ("_lock", "_stop", "stopped")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop: Callable[[], object] | None = None
        self.stopped = False  # `stop` was called

    def stop(self) -> None:
        """Stop the work, now or as soon as `stop_with` is called."""
        with self._lock:
            self.stopped, stop = True, self._stop
        if stop is not None:
            stop()

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Set what stops the work; it is called at once if the work was stopped already."""
        with self._lock:
            self._stop = stop
        if self.stopped:
            stop()

    def forget(self) -> None:
        """Drop what stops the work: it has ended, and its outcome may be kept for long."""
        with self._lock:
            self._stop = None


@dataclass(frozen=True, slots=True)
class DeployStatistics:
    """A snapshot of a deployer."""

    memory_hits: int  # deploys that found their code in this process, or waited for another one's
    disk_hits: int  # deploys that found it on the disk
    compiled: int  # deploys that had to compile
    unfit_files: int  # files that failed a check
    in_flight: int  # modules that are being compiled, or read from the disk, now
    kept_modules: int  # those in memory, of `kept_bytes` of code
    kept_bytes: int
    disk_bytes: int  # code on the disk after this process last wrote there; 0 before


class Deployer:
    """Deploys modules, each once. Thread-safe; uses neither the disk nor the keys before the first module.

    Attributes:
        weigh: returns a tenant's share of the compiler relative to others'; called on any thread.
        reader: decodes modules.
    """

    def __init__(self, config: settings.Settings) -> None:
        self.weigh: Callable[[str], float] = lambda _tenant: 1.0
        room = config.compile_room_mib
        self._compiler = Compiler(
            CompileLimits(
                config.compile_timeout_s, config.compile_memory_mib * MIB, None if room is None else room * MIB
            )
        )
        self.reader = ModuleReader(self._compiler)
        self._cap_bytes = config.code_cache_mib * MIB
        self._lock = threading.Lock()
        self._kept: LruCache[CompiledModule] = LruCache(KEPT_MODULES, KEPT_CODE_BYTES)
        self._compilations: dict[_Key, _Compilation] = {}
        self._folder: CodeFolder | None = None
        self._opened = False
        self._logged: set[str] = set()
        self._memory_hits = self._disk_hits = self._compiled = self._unfit_files = self._disk_bytes = 0

    def deploy(
        self,
        engine: Engine,
        wasm: bytes,
        limits: Limits,
        tenant: str,
        check: Callable[[Preamble], object] = lambda _: None,
        work: StopHook | None = None,
    ) -> CompiledModule:
        """Return a module's code, from where that is fastest; concurrent calls for the same code share one compilation.

        Blocks for as long as compiling takes, where it was never compiled for this tenant. `check` is called with
        the module's declarations before it is compiled, and may raise. `work` stops this; compiling goes on while
        another thread waits for it.

        Raises:
            InvalidWasm: not a valid module under the enabled proposals, or precompiled code.
            ModuleTooLarge: more bytes than the limit.
            ModuleMemoryTooLarge: it declares more memory or larger tables than the limits.
            CompileFailed: the compiler crashed on it; `CompileTimeout` and `CompileMemory` if it exceeded its limits.
            CapacityExhausted: the system starts no process for the compiler.
            CancelledError: it was stopped.
        """
        if wasm.startswith(precompiled.MAGIC):
            raise InvalidWasm("this is precompiled code, which is not accepted: give the .wasm that it was made from")
        if len(wasm) > limits.module_bytes:
            raise ModuleTooLarge(f"the module has {len(wasm)} bytes; the limit is {limits.module_bytes}")
        digest = blake3(wasm)
        key = engine, _name(engine, digest, tenant)
        with self._lock:
            found = self._kept.get(key)
            self._memory_hits += found is not None
        if found is not None:
            check_declared(found.preamble, limits)
            check(found.preamble)
            return found
        share, work = Share(tenant, self.weigh(tenant)), work or StopHook()
        try:
            declared = self.reader.scan(wasm, share, work)
        finally:
            work.forget()
        check_declared(declared, limits)
        check(declared)
        return self._make_once(key, _Source(wasm, declared, digest.hex(), share), work)

    def instrument(self, wasm: bytes, tenant: str) -> InstrumentedModule:
        """Return the forms of a tenant's module whose instances are saved. Blocks; raises as `ModuleReader` does."""
        return self.reader.instrument(wasm, Share(tenant, self.weigh(tenant)))

    def cut(self, wasm: bytes, tenant: str, work: StopHook | None = None) -> CutModule:
        """Return a tenant's module with guards in front of its loops. Blocks; raises as `ModuleReader` does."""
        return self.reader.cut(wasm, Share(tenant, self.weigh(tenant)), work)

    def hold(self, tenant: str, memory_bytes: int, work: StopHook | None = None) -> AbstractContextManager[None]:
        """Hold a slot and memory for other work of a tenant, as one of its compilations; see `CompileCapacity.hold`."""
        capacity = self._compiler.capacity
        return capacity.hold(min(memory_bytes, capacity.whole_bytes), Share(tenant, self.weigh(tenant)), stop=work)

    def statistics(self) -> DeployStatistics:
        """Return a snapshot."""
        with self._lock:
            return DeployStatistics(
                memory_hits=self._memory_hits,
                disk_hits=self._disk_hits,
                compiled=self._compiled,
                unfit_files=self._unfit_files,
                in_flight=len(self._compilations),
                kept_modules=len(self._kept),
                kept_bytes=self._kept.held_bytes,
                disk_bytes=self._disk_bytes,
            )

    def _make_once(self, key: _Key, source: _Source, work: StopHook) -> CompiledModule:
        try:
            while True:
                with self._lock:
                    found = self._kept.get(key)
                    compilation = self._compilations.get(key)
                    mine = found is None and compilation is None
                    if mine:
                        compilation = self._compilations[key] = _Compilation()
                    if found is None and compilation is not None:
                        compilation.wanted += 1
                if mine and compilation is not None:
                    return self._compile(key, compilation, source, work)
                found = found or (self._wait(compilation, work) if compilation is not None else None)
                if found is not None:
                    with self._lock:
                        self._memory_hits += 1
                    return found
        finally:
            work.forget()

    def _compile(self, key: _Key, compilation: _Compilation, source: _Source, work: StopHook) -> CompiledModule:
        """Make a module for all threads that wait: they get it, or the error, or, if this is interrupted, make it."""
        made, error = None, None
        work.stop_with(partial(self._leave, compilation))
        try:
            made, size_bytes = self._make(key, source, compilation.work)
            made.lines = SourceLines.of(source.wasm)
        except TensorWasmError as failed:
            error = failed
            raise
        finally:
            with self._lock:
                del self._compilations[key]
                if made is not None:
                    self._kept.put(key, made, size_bytes)
            if error is not None:
                compilation.made.set_exception(error)
            else:
                compilation.made.set_result(made)
        return made

    def _wait(self, compilation: _Compilation, work: StopHook) -> CompiledModule | None:
        """Return what another thread makes, None if that was interrupted, or raise `CancelledError`."""
        mine: Future[CompiledModule | None] = Future()
        compilation.made.add_done_callback(partial(_pass_on, mine))

        def leave() -> None:
            if mine.cancel():
                self._leave(compilation)

        work.stop_with(leave)
        return mine.result()

    def _leave(self, compilation: _Compilation) -> None:
        """Note that one thread less waits for a module; stop making one that no thread waits for."""
        with self._lock:
            compilation.wanted -= 1
            alone = not compilation.wanted
        if alone:
            compilation.work.stop()

    def _make(self, key: _Key, source: _Source, work: StopHook) -> tuple[CompiledModule, int]:
        """Return a module and the size of its code, from the disk or from the compiler."""
        engine, name = key
        found = self._read(engine, name, source)
        if found is not None:
            with self._lock:
                self._disk_hits += 1
            return found
        with self._lock:
            self._compiled += 1
        if sys.platform == "win32":  # without limits and private folders
            return compile_module(engine, source.wasm), len(source.wasm)
        capi.check_bindings()
        try:
            name_digits = source.digest[:_HASH_DIGITS]
            code = self._compiler.compile(source.wasm, settings_of(engine.config), name_digits, work, source.share)
        except InvalidWasm as refused:
            raise self.reader.explain(source.wasm, source.share, work) or refused from None
        if self._write(name, code):
            found = self._read(engine, name, source)
        if found is not None:
            return found
        module = precompiled.load_bytes(engine, bytes(code), source.declared, len(source.wasm))
        if module is None:
            raise InternalError("the compiler's process makes code for another engine")
        return module, len(code)

    def _read(self, engine: Engine, name: bytes, source: _Source) -> tuple[CompiledModule, int] | None:
        """Return what is kept on the disk, None if there is nothing usable."""
        folder = self._open_folder()
        if folder is None:
            return None
        try:
            file = folder.open(name)
            return _load(engine, file, source) if file is not None else None
        except UnfitFile as unfit:
            with self._lock:
                self._unfit_files += 1
            self._log_once("a file of compiled code is not used, and made anew: %s", unfit)
        except OSError as error:
            self._log_once("compiled code cannot be read: %s", error.strerror)
        return None

    def _write(self, name: bytes, code: memoryview) -> bool:
        """Keep code on the disk; return whether that succeeded."""
        folder = self._open_folder()
        if folder is None:
            return False
        try:
            held_bytes = folder.put(name, code)
        except OSError as error:
            self._log_once("compiled code is not kept: %s", error.strerror)
            with self._lock:
                self._opened = self._opened and not isinstance(error, FileNotFoundError)  # the cache was cleared
            return False
        with self._lock:
            self._disk_bytes = held_bytes
        return True

    def _open_folder(self) -> CodeFolder | None:
        """Return the folder of precompiled code, None where there is no safe one."""
        if sys.platform == "win32" or not self._cap_bytes:
            return None
        with self._lock:
            if self._opened:
                return self._folder
            self._opened = True
            try:
                self._folder = CodeFolder(folders.open_own("code"), machine_key("code"), self._cap_bytes)
            except OSError as error:
                reason: object = error
            except TensorWasmError as error:
                reason = error.message
            else:
                return self._folder
        self._log_once("compiled code is not kept on the disk: %s", reason)
        return None

    def _log_once(self, message: str, reason: object) -> None:
        """Log something, once."""
        with self._lock:
            new = message not in self._logged
            self._logged.add(message)
        if new:
            _log.warning(message, reason)


class _Source(NamedTuple):
    """A module to deploy."""

    wasm: bytes
    declared: Preamble
    digest: str
    share: Share


def _load(engine: Engine, file: CodeFile, source: _Source) -> tuple[CompiledModule, int]:
    """Return the module of a verified file, and the size of its code; close the file."""
    with file:
        size_bytes = len(source.wasm)
        if precompiled.can_map():
            module = precompiled.load_file(engine, file.handle, source.declared, size_bytes)
        else:
            module = precompiled.load_bytes(engine, bytes(file.code), source.declared, size_bytes)
        if module is None:
            raise UnfitFile("it is code for another engine")
        return module, len(file.code)


_Key = tuple[Engine, bytes]


@dataclass(slots=True, eq=False)
class _Compilation:
    """A module that one thread makes for all that want it."""

    made: Future[CompiledModule | None] = field(default_factory=Future)  # the module, None where that was interrupted
    work: StopHook = field(default_factory=StopHook)  # ends the making
    wanted: int = 0  # threads that want it, counted under the deployer's lock


def _pass_on(mine: Future[CompiledModule | None], made: Future[CompiledModule | None]) -> None:
    """Settle a future like another, unless it was cancelled."""
    if not mine.set_running_or_notify_cancel():
        return
    error = made.exception()
    if error is not None:
        mine.set_exception(error)
    else:
        mine.set_result(made.result())


def _name(engine: Engine, digest: bytes, tenant: str) -> bytes:
    """Return 32 bytes that are equal only for deploys that may share code."""
    words = _NAME, precompiled.fingerprint(engine), digest, tenant.encode()
    return blake3(b"".join(len(word).to_bytes(4, "little") + word for word in words))
