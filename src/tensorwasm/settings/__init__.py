"""Every setting, once: name, default, meaning. Command-line options and documents are made from this table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Final

from tensorwasm.settings.parsing import (
    Setting,
    architecture,
    checked_memory_kind,
    count,
    flag,
    memory,
    native,
    ptx_version,
    read,
    seconds,
    size,
    text,
)
from tensorwasm.values import MIB, Limits, MemoryKind

_DEFAULTS: Final = Limits()


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("device", "TENSOR_WASM_DEVICE", text, "auto", "Device: auto, emulator, cuda or cuda:N."),
    Setting(
        "timeout_s",
        "TENSOR_WASM_TIMEOUT",
        seconds,
        _DEFAULTS.wall_s,
        "Wall-clock seconds for the start function and for every call.",
    ),
    Setting(
        "memory_mib",
        "TENSOR_WASM_MEMORY",
        memory,
        _DEFAULTS.memory_bytes // MIB,
        "Linear memory of one sandbox in MiB, at most 4096.",
    ),
    Setting(
        "stack_kib",
        "TENSOR_WASM_STACK",
        count,
        _DEFAULTS.stack_bytes >> 10,
        "Wasm stack of each call in KiB, 16 to 65536.",
    ),
    Setting("module_mib", "TENSOR_WASM_MODULE", count, _DEFAULTS.module_bytes // MIB, "Longest module in MiB."),
    Setting(
        "output_mib",
        "TENSOR_WASM_OUTPUT",
        size,
        _DEFAULTS.output_bytes // MIB,
        "Standard output of a call in MiB, and likewise standard error; what is more fails, and the answer says so.",
    ),
    Setting(
        "stdin_mib",
        "TENSOR_WASM_STDIN",
        size,
        _DEFAULTS.stdin_bytes // MIB,
        "Standard input that a caller gives a call, in MiB; more is refused.",
    ),
    Setting(
        "pool_slots",
        "TENSOR_WASM_POOL_SLOTS",
        count,
        None,
        "Sandboxes alive at once in one process; empty takes 1000, or as many as vm.max_map_count allows.",
    ),
    Setting(
        "guest_threads",
        "TENSOR_WASM_GUEST_THREADS",
        count,
        None,
        "Threads for submitted guests without a GPU that run long; empty takes the number of processors.",
    ),
    Setting(
        "warm_sandboxes",
        "TENSOR_WASM_WARM_SANDBOXES",
        count,
        64,
        "Sandboxes kept ready at a time in one process, of all functions that are to be warm together.",
    ),
    Setting(
        "emulator_memory_mib",
        "TENSOR_WASM_EMULATOR_MEMORY",
        count,
        1024,
        "Device memory of the emulator in MiB.",
    ),
    Setting(
        "emulator_arch",
        "TENSOR_WASM_EMULATOR_ARCH",
        architecture,
        None,
        "Compute capability that the emulator claims, such as sm_100; empty takes sm_90.",
    ),
    Setting(
        "emulator_ptx",
        "TENSOR_WASM_EMULATOR_PTX",
        ptx_version,
        None,
        "Newest PTX ISA that the emulator takes, such as 8.4; empty takes the newest that is read at all.",
    ),
    Setting(
        "cuda_arch",
        "CUDA_ARCH",
        architecture,
        None,
        "Compute capability that PTX is chosen for, such as sm_80; empty takes the device's.",
    ),
    Setting(
        "gpu_memory",
        "TENSOR_WASM_GPU_MEMORY",
        checked_memory_kind,
        "auto",
        "How kernels reach a guest's linear memory: auto, staged, pinned, managed or vmm.",
    ),
    Setting(
        "gpu_quota_mib",
        "TENSOR_WASM_GPU_QUOTA",
        count,
        None,
        "Device memory in MiB that a tenant may hold unless a caller sets its cap; empty takes what a process may.",
    ),
    Setting(
        "multiprocessors",
        "TENSOR_WASM_MULTIPROCESSORS",
        count,
        None,
        "Share of the GPU, in multiprocessors; empty takes all of it.",
    ),
    Setting(
        "native",
        "TENSOR_WASM_NATIVE",
        native,
        "auto",
        "Compiled host functions for guests with a GPU: auto (on CUDA devices), on or off.",
    ),
    Setting(
        "cache",
        "TENSOR_WASM_CACHE",
        text,
        "",
        "Folder where compiled code is kept; empty takes tensor-wasm in the user's cache folder.",
    ),
    Setting(
        "code_cache_mib",
        "TENSOR_WASM_CODE_CACHE",
        size,
        1024,
        "Compiled modules that are kept there, in MiB; 0 keeps none.",
    ),
    Setting(
        "compile_timeout_s",
        "TENSOR_WASM_COMPILE_TIMEOUT",
        seconds,
        60.0,
        "Wall-clock seconds for compiling one module; a guest's own time begins after that.",
    ),
    Setting(
        "compile_memory_mib",
        "TENSOR_WASM_COMPILE_MEMORY",
        count,
        4096,
        "Address space in MiB for compiling one module; wasmtime itself takes 256.",
    ),
    Setting(
        "compile_room_mib",
        "TENSOR_WASM_COMPILE_ROOM",
        count,
        None,
        "Memory in MiB of all compilations of a process together; empty takes a quarter of the machine's or its "
        "control group's, 512 at least.",
    ),
    Setting(
        "state",
        "TENSOR_WASM_STATE_DIR",
        text,
        "",
        "Folder of this machine's keys and artifacts; empty takes tensor-wasm in XDG_STATE_HOME or ~/.local/state.",
    ),
    Setting(
        "snapshot_cache_mib",
        "TENSOR_WASM_SNAPSHOT_CACHE",
        size,
        1024,
        "Memory for snapshots that were read from files, in MiB, so that they are read once; 0 keeps only the last.",
    ),
    Setting(
        "snapshot_key",
        "TENSOR_WASM_SNAPSHOT_KEY",
        text,
        "",
        "Key that signs snapshots: hmac: or ed25519: and 64 hex digits or a file; empty takes the machine's own.",
    ),
    Setting(
        "snapshot_trust",
        "TENSOR_WASM_SNAPSHOT_TRUST",
        text,
        "",
        "Further keys whose snapshots are taken, separated by commas; ed25519-public: too.",
    ),
    Setting(
        "snapshot_cipher_key",
        "TENSOR_WASM_SNAPSHOT_CIPHER_KEY",
        text,
        "",
        "Keys that encrypt snapshots at rest, 64 hex digits or files, separated by commas; the first encrypts.",
    ),
    Setting(
        "artifacts",
        "TENSOR_WASM_ARTIFACTS",
        text,
        "",
        "Where artifacts are kept: a folder or a URL (s3:, gs:, az:, memory:); empty takes the state folder's own.",
    ),
    Setting(
        "artifacts_quota_mib",
        "TENSOR_WASM_ARTIFACTS_QUOTA",
        count,
        1024,
        "Artifacts that a tenant may keep, in MiB as they were put.",
    ),
    Setting(
        "artifacts_count",
        "TENSOR_WASM_ARTIFACTS_COUNT",
        count,
        10_000,
        "Artifacts that a tenant may keep, and likewise names of them.",
    ),
    Setting("ptxas", "TENSOR_WASM_PTXAS", text, "", "Path of ptxas; empty looks on the PATH and in the toolkit."),
    Setting(
        "traceback",
        "TENSOR_WASM_TRACEBACK",
        flag,
        False,
        "1 shows Python's traceback when an error is a bug of this program.",
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process; `SETTINGS` says what each means."""

    device: str
    timeout_s: float
    memory_mib: int
    stack_kib: int
    module_mib: int
    output_mib: int
    stdin_mib: int
    pool_slots: int | None
    guest_threads: int | None
    warm_sandboxes: int
    emulator_memory_mib: int
    emulator_arch: tuple[int, int] | None
    emulator_ptx: tuple[int, int] | None
    cuda_arch: tuple[int, int] | None
    gpu_memory: MemoryKind
    gpu_quota_mib: int | None
    multiprocessors: int | None
    native: str
    cache: str
    code_cache_mib: int
    compile_timeout_s: float
    compile_memory_mib: int
    compile_room_mib: int | None
    state: str
    snapshot_cache_mib: int
    snapshot_key: str = field(repr=False)
    snapshot_trust: str = field(repr=False)
    snapshot_cipher_key: str = field(repr=False)
    artifacts: str
    artifacts_quota_mib: int
    artifacts_count: int
    ptxas: str
    traceback: bool

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the variables of `SETTINGS`.

        Raises:
            InvalidArgs: a variable does not parse; the message names it and the value that was found.
        """
        # The table's readers return what the fields say; their common type cannot say so.
        return cls(**{setting.field: read(setting, environment) for setting in SETTINGS})  # type: ignore[arg-type]

    def limits(self) -> Limits:
        """Return the limits of a sandbox under these settings."""
        return Limits(
            memory_bytes=self.memory_mib * MIB,
            module_bytes=self.module_mib * MIB,
            stack_bytes=self.stack_kib << 10,
            wall_s=self.timeout_s,
            output_bytes=self.output_mib * MIB,
            stdin_bytes=self.stdin_mib * MIB,
        )


_given: Final[dict[str, str]] = {}
"""Variables that a command's options stand for, before the environment's."""


@cache
def current() -> Settings:
    """Return this process's settings, read from the environment once."""
    return Settings.from_environment({**os.environ, **_given})


def give(variables: Mapping[str, object]) -> Settings:
    """Read the settings anew, with a command's options before the environment.

    Args:
        variables: values by the names of variables; None is not given.

    Raises:
        InvalidArgs: a value does not parse; the message names the variable.
    """
    _given.update((name, str(value)) for name, value in variables.items() if value is not None)
    current.cache_clear()
    return current()


def cache_dir() -> Path:
    """Return the folder of what can be made again, compiled code above all; it may not be there yet."""
    return Path(current().cache or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "tensor-wasm").expanduser()


def state_dir() -> Path:
    """Return the folder of what this machine keeps to itself, keys above all; it may not be there yet."""
    return Path(
        current().state or Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "tensor-wasm"
    ).expanduser()


def package_version() -> str:
    """Return the version of this package, ``source`` where it runs from a tree that is not installed."""
    from importlib import metadata  # noqa: PLC0415 - slow to import, and a guest does not ask

    try:
        return metadata.version("tensor-wasm")
    except metadata.PackageNotFoundError:
        return "source"


assert tuple(field.name for field in fields(Settings)) == tuple(setting.field for setting in SETTINGS)  # noqa: S101 - the table and the class are one list
