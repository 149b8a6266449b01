"""`Request`: all that an executor must know to make one call, as plain values that can cross to another process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tensorwasm.gpu.accounts import DEFAULT_TENANT
from tensorwasm.runtime.grants import Grants
from tensorwasm.values import Limits, MemoryKind

Argument = bool | int | float | str | None
"""What an argument may be; `tensorwasm.guest.codec` judges it against the export's signature."""

NOTHING: Final = Grants()
USUAL: Final = Limits()


@dataclass(frozen=True, slots=True)
class Request:
    """One call of one export of one module.

    Attributes:
        module: the binary. Give the same object again for the same module: it is then neither sent nor compiled again.
        export: None takes ``_start``, and where there is none, ``main``.
        args: values for its parameters; integers are -2**63 to 2**64 - 1.
        name: the module's, for people and for ``argv[0]``.
        argv: WASI arguments, the program's name first; None gives the name.
        env: WASI environment, as pairs.
        stdin: all of standard input.
        input: what the guest reads with ``read-input``.
        grants: what it may use.
        tenant: whose call it is: quotas, workers and compiled modules are apart by it.
        limits: what its sandbox may use.
        deadline_s: seconds from `Executor.submit` on within which it must have ended; None for ``limits.wall_s`` alone.
        memory_kind: how kernels reach its linear memory; None takes the setting TENSOR_WASM_GPU_MEMORY.
        gpu_bytes: the tenant's cap on device memory where it runs, None for `Runtime.gpu_bytes` there.
    """

    module: bytes = field(repr=False)
    export: str | None = None
    args: tuple[Argument, ...] = ()
    name: str = "module"
    argv: tuple[str, ...] | None = None
    env: tuple[tuple[str, str], ...] = ()
    stdin: bytes = field(default=b"", repr=False)
    input: bytes = field(default=b"", repr=False)
    grants: Grants = NOTHING
    tenant: str = DEFAULT_TENANT
    limits: Limits = USUAL
    deadline_s: float | None = None
    memory_kind: MemoryKind | None = None
    gpu_bytes: int | None = None
