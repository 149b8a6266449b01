"""The settings of every process: names, defaults and meanings, for command-line options and documentation too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tensorwasm.settings.parsing import (
    Setting,
    architecture,
    checked_isolation,
    checked_memory_kind,
    count,
    flag,
    memory,
    native,
    ptx_version,
    read,
    seconds,
    setting,
    settings_of,
    size,
    text,
)
from tensorwasm.values import MIB, Isolation, Limits, MemoryKind

SERVER: Final = "http://127.0.0.1:8080"
"""Default URL of the server, for the client commands."""

_DEFAULTS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process."""

    device: str = setting("TENSOR_WASM_DEVICE", text, "auto", "Device: auto, emulator, cuda or cuda:N.")
    timeout_s: float = setting(
        "TENSOR_WASM_TIMEOUT",
        seconds,
        _DEFAULTS.wall_s,
        "Wall-clock seconds for the start function, and for each call.",
    )
    memory_mib: int = setting(
        "TENSOR_WASM_MEMORY",
        memory,
        _DEFAULTS.memory_bytes // MIB,
        "Linear memory of one sandbox in MiB, at most 4096.",
    )
    stack_kib: int = setting(
        "TENSOR_WASM_STACK", count, _DEFAULTS.stack_bytes >> 10, "Wasm stack of each call in KiB, 16 to 65536."
    )
    module_mib: int = setting(
        "TENSOR_WASM_MODULE", count, _DEFAULTS.module_bytes // MIB, "Maximum size of a module in MiB."
    )
    output_mib: int = setting(
        "TENSOR_WASM_OUTPUT",
        size,
        _DEFAULTS.output_bytes // MIB,
        "Maximum standard output of a call in MiB, and likewise standard error; writing more fails, and the response "
        "says so.",
    )
    stdin_mib: int = setting(
        "TENSOR_WASM_STDIN",
        size,
        _DEFAULTS.stdin_bytes // MIB,
        "Maximum standard input of a call in MiB; more is refused.",
    )
    pool_slots: int | None = setting(
        "TENSOR_WASM_POOL_SLOTS",
        count,
        None,
        "Sandboxes alive at once in one process, as many again with a GPU; by default 1000, or as many as "
        "vm.max_map_count allows.",
    )
    guest_threads: int | None = setting(
        "TENSOR_WASM_GUEST_THREADS",
        count,
        None,
        "Threads for long-running guests without a GPU; by default the number of processors.",
    )
    offload_threads: int | None = setting(
        "TENSOR_WASM_OFFLOAD_THREADS",
        count,
        None,
        "Threads for loops that are offloaded to the host's cores, shared by the tenants whose loops run at the time; "
        "by default the number of processors.",
    )
    offload_shadow: int = setting(
        "TENSOR_WASM_OFFLOAD_SHADOW",
        size,
        1000,
        "Of so many runs of an offloaded loop one is made in the guest too, and compared; 0 for none.",
    )
    warm_sandboxes: int = setting(
        "TENSOR_WASM_WARM_SANDBOXES",
        count,
        64,
        "Sandboxes kept ready at a time in one process, for all warm functions together.",
    )
    emulator_memory_mib: int = setting(
        "TENSOR_WASM_EMULATOR_MEMORY", count, 1024, "Device memory of the emulator in MiB."
    )
    emulator_arch: tuple[int, int] | None = setting(
        "TENSOR_WASM_EMULATOR_ARCH",
        architecture,
        None,
        "Compute capability that the emulator reports, such as sm_100; by default sm_90.",
    )
    emulator_ptx: tuple[int, int] | None = setting(
        "TENSOR_WASM_EMULATOR_PTX",
        ptx_version,
        None,
        "Newest PTX ISA version that the emulator accepts, such as 8.4; by default the newest that can be parsed.",
    )
    cuda_arch: tuple[int, int] | None = setting(
        "CUDA_ARCH",
        architecture,
        None,
        "Compute capability for which PTX is selected, such as sm_80; by default the device's.",
    )
    gpu_memory: MemoryKind = setting(  # noqa: RUF009 - a declaration
        "TENSOR_WASM_GPU_MEMORY",
        checked_memory_kind,
        "auto",
        "How kernels reach a guest's linear memory: auto, staged, pinned, managed or vmm.",
    )
    isolation: Isolation = setting(  # noqa: RUF009 - a declaration
        "TENSOR_WASM_ISOLATION",
        checked_isolation,
        "stream",
        "What keeps kernels of different guests apart in one process with a GPU: guarded, or stream for nothing.",
    )
    gpu_quota_mib: int | None = setting(
        "TENSOR_WASM_GPU_QUOTA",
        count,
        None,
        "Device memory in MiB that a tenant may hold unless its own cap is set; by default what the process may hold.",
    )
    gpu_session_mib: int = setting(
        "TENSOR_WASM_GPU_SESSION",
        count,
        4096,
        "Device memory in MiB that one guest may hold, within its tenant's cap. With more than 4096, guests of tenants "
        "whose caps are larger, too, get larger windows under guarded isolation.",
    )
    multiprocessors: int | None = setting(
        "TENSOR_WASM_MULTIPROCESSORS", count, None, "Share of the GPU, in multiprocessors; by default all of it."
    )
    native: str = setting(
        "TENSOR_WASM_NATIVE",
        native,
        "auto",
        "Compiled host functions for guests with a GPU: auto (on CUDA devices), on or off.",
    )
    cache: str = setting(
        "TENSOR_WASM_CACHE", text, "", "Folder for compiled code; by default tensor-wasm in the user's cache folder."
    )
    code_cache_mib: int = setting(
        "TENSOR_WASM_CODE_CACHE", size, 1024, "Maximum size of the compiled modules in the cache in MiB; 0 keeps none."
    )
    kernel_cache_mib: int = setting(
        "TENSOR_WASM_KERNEL_CACHE",
        size,
        256,
        "Maximum size of the compiled guarded kernels in the cache in MiB; 0 keeps none.",
    )
    compile_timeout_s: float = setting(
        "TENSOR_WASM_COMPILE_TIMEOUT",
        seconds,
        60.0,
        "Seconds for compiling one module, on each processor that it uses; on Linux without the time in which it waits "
        "for one. The guest's own time begins after that.",
    )
    compile_memory_mib: int = setting(
        "TENSOR_WASM_COMPILE_MEMORY",
        count,
        4096,
        "Address space for compiling one module in MiB; wasmtime itself takes 256.",
    )
    compile_room_mib: int | None = setting(
        "TENSOR_WASM_COMPILE_ROOM",
        count,
        None,
        "Memory for all compilations of a process together in MiB; by default a quarter of the machine's or its "
        "control group's, at least 512.",
    )
    state: str = setting(
        "TENSOR_WASM_STATE_DIR",
        text,
        "",
        "Folder for this machine's keys and artifacts; by default tensor-wasm in XDG_STATE_HOME or ~/.local/state.",
    )
    snapshot_cache_mib: int = setting(
        "TENSOR_WASM_SNAPSHOT_CACHE",
        size,
        1024,
        "Memory for caching snapshots that were read from files, in MiB; 0 keeps only the last one.",
    )
    snapshot_key: str = setting(
        "TENSOR_WASM_SNAPSHOT_KEY",
        text,
        "",
        "Key that signs snapshots: hmac: or ed25519:, then 64 hex digits or a file; by default the machine's own.",
        secret=True,
    )
    snapshot_trust: str = setting(
        "TENSOR_WASM_SNAPSHOT_TRUST",
        text,
        "",
        "Further keys whose snapshots are accepted, separated by commas; ed25519-public: is possible too.",
        secret=True,
    )
    snapshot_cipher_key: str = setting(
        "TENSOR_WASM_SNAPSHOT_CIPHER_KEY",
        text,
        "",
        "Keys that encrypt snapshots at rest, 64 hex digits or files, separated by commas; the first one encrypts.",
        secret=True,
    )
    artifacts: str = setting(
        "TENSOR_WASM_ARTIFACTS",
        text,
        "",
        "Where artifacts are stored: a folder or a URL (s3:, gs:, az:, memory:); by default in the state folder.",
    )
    artifacts_quota_mib: int = setting(
        "TENSOR_WASM_ARTIFACTS_QUOTA", count, 1024, "Maximum size of a tenant's artifacts in MiB, before compression."
    )
    artifacts_count: int = setting(
        "TENSOR_WASM_ARTIFACTS_COUNT",
        count,
        10_000,
        "Maximum number of a tenant's artifacts, and likewise of their names.",
    )
    ptxas: str = setting(
        "TENSOR_WASM_PTXAS",
        text,
        "",
        "Path of ptxas; by default it is searched on the PATH, in the toolkit, and in NVIDIA's packages for Python.",
    )
    traceback: bool = setting(
        "TENSOR_WASM_TRACEBACK", flag, False, "1 shows Python's traceback for errors that are bugs of this program."
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the environment variables.

        Raises:
            InvalidArgs: a variable is invalid; the message has its name and value.
        """
        return cls(**{each.field: read(each, environment) for each in SETTINGS})

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


SETTINGS: Final[tuple[Setting, ...]] = settings_of(Settings)

CLIENT_SETTINGS: Final = (
    Setting("server", "TENSOR_WASM_SERVER", text, SERVER, "URL of the server that the client commands talk to."),
    Setting("token", "TENSOR_WASM_TOKEN", text, "", "Bearer token that the client commands send."),
    Setting(
        "require_key_perms",
        "TENSOR_WASM_REQUIRE_KEY_PERMS",
        flag,
        False,
        "1 refuses key files that other users of this machine can read, instead of printing a warning.",
    ),
)
_SERVER, _TOKEN, _KEY_PERMS = CLIENT_SETTINGS

_given: Final[dict[str, str]] = {}
"""Variables set by a command's options, which precede the environment's."""


@cache
def current() -> Settings:
    """Return this process's settings, read from the environment once."""
    return Settings.from_environment({**os.environ, **_given})


def give(variables: Mapping[str, object]) -> Settings:
    """Read the settings again, with values of a command's options, unless None, before the environment.

    Raises:
        InvalidArgs: a value is invalid; the message names the variable.
    """
    _given.update((name, str(value)) for name, value in variables.items() if value is not None)
    current.cache_clear()
    return current()


def cache_dir() -> Path:
    """Return the folder for reproducible files, such as compiled code; it may not exist yet."""
    return Path(current().cache or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "tensor-wasm").expanduser()


def state_dir() -> Path:
    """Return the folder for files that only this machine has, such as keys; it may not exist yet."""
    return Path(
        current().state or Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "tensor-wasm"
    ).expanduser()


def server() -> str:
    """Return the server's URL from the environment."""
    return str(read(_SERVER, os.environ))


def bearer() -> str:
    """Return the token from the environment; empty for none."""
    return str(read(_TOKEN, os.environ))


def require_key_perms() -> bool:
    """Return whether key files must be unreadable for others, or raise InvalidArgs for an invalid flag."""
    return bool(read(_KEY_PERMS, os.environ))


def package_version() -> str:
    """Return the version of this package; ``source`` for a tree that is not installed."""
    from importlib import metadata  # noqa: PLC0415 - slow to import, and rarely needed

    try:
        return metadata.version("tensor-wasm")
    except metadata.PackageNotFoundError:
        return "source"
