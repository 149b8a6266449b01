"""`Executor`, the port behind which requests run, and `Request`: one call, as values that can cross to another process.

Callers do not know whether a request runs here, in a worker process or on another machine.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from tensorwasm.errors import InvalidArgs, StdinTooLarge
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.guest.sandbox.wasi_io import Directory
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.values import (
    MAX_WEIGHT,
    MEMORY_KINDS,
    MIB,
    OFFLOAD_MATHS,
    OFFLOAD_MODES,
    Limits,
    MemoryKind,
    OffloadMath,
    OffloadMode,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tensorwasm.runtime.invoke.invocation import Invocation, Listener, PendingInvocation

Argument = bool | int | float | str | None
"""What an argument may be; `tensorwasm.guest.engine.codec` judges it against the export's signature."""

NOTHING: Final = Grants()
USUAL: Final = Limits()

MAX_COUNT: Final = (1 << 63) - 1
"""Largest number that a size, a limit or a cap may be."""

NAME_CHARACTERS: Final = 64 << 10
"""Most characters of one text: a name, a word of ``argv``, a folder."""

TEXT_BYTES: Final = 4 * MIB
"""Most bytes of all texts and arguments of a request together, each counted with `_ITEM_BYTES` more."""

STREAM_BYTES: Final = 64 * MIB
"""Most bytes of input."""

TENANT_PATTERN: Final = r"[A-Za-z0-9._-]{1,64}"

_ITEM_BYTES: Final = 9
_TENANT: Final = re.compile(TENANT_PATTERN)
_LEAST_INTEGER: Final = -(1 << 63)
_MOST_INTEGER: Final = (1 << 64) - 1

# Made here, because each request is checked by them.
_TENANT_RULE: Final = f"a tenant is {TENANT_PATTERN}"
_KIND_RULE: Final = f"memory_kind is {', '.join(MEMORY_KINDS)}"
_OFFLOAD_RULE: Final = f"offload is {', '.join(OFFLOAD_MODES)}"
_MATH_RULE: Final = f"offload_math is {', '.join(OFFLOAD_MATHS)}"
_GPU_RULE: Final = f"gpu_bytes is 0 to {MAX_COUNT}, or None"
_WEIGHT_RULE: Final = f"weight is 1 to {MAX_WEIGHT}"
_TEXT_RULE: Final = f"texts and arguments have at most {TEXT_BYTES} bytes together"


class Request(msgspec.Struct, frozen=True):
    """One call of one export of one module. A struct, because making one costs a tenth of a frozen dataclass."""

    # The binary. Give the same object again for the same module: it is then neither sent nor compiled again.
    module: bytes
    export: str | None = None  # None takes ``_start``, and where there is none, ``main``
    args: tuple[Argument, ...] = ()  # values for its parameters; integers are -2**63 to 2**64 - 1
    name: str = "module"  # the module's, for people and for ``argv[0]``
    argv: tuple[str, ...] | None = None  # WASI arguments, the program's name first; None gives the name
    env: tuple[tuple[str, str], ...] = ()  # WASI environment, as pairs
    stdin: bytes = b""  # all of standard input
    input: bytes = b""  # what the guest reads with ``read-input``
    grants: Grants = NOTHING  # what it may use
    tenant: str = DEFAULT_TENANT  # whose call it is: separates quotas, workers and compiled modules
    limits: Limits = USUAL  # what its sandbox may use
    # Seconds from `Executor.submit` on within which it must have ended; None for ``limits.wall_s`` alone.
    deadline_s: float | None = None
    # How kernels reach its linear memory; None takes the setting TENSOR_WASM_GPU_MEMORY.
    memory_kind: MemoryKind | None = None
    gpu_bytes: int | None = None  # the tenant's cap on device memory where it runs, None for `Runtime.gpu_bytes` there
    weight: int = 1  # the tenant's share of a device's time while others want it too, relative to theirs
    offload: OffloadMode = "off"  # where its loops run that can run in parallel
    offload_math: OffloadMath = "exact"  # whether these add up and multiply floats in WebAssembly's order

    @property
    def on_device(self) -> bool:
        """Whether it may use a device."""
        return self.grants.cuda or self.offload in {"auto", "gpu"}

    @property
    def is_native(self) -> bool:
        """Whether code of its own runs that wasmtime has not made: kernels, or loops as machine code."""
        return self.grants.cuda or self.offload != "off"

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if name not in _NOT_SHOWN)
        return f"Request({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


_COUNTED_LIMITS: Final = tuple(each.name for each in fields(Limits) if each.name != "wall_s")
_NOT_SHOWN: Final = frozenset({"module", "stdin", "input"})


@dataclass(frozen=True, slots=True)
class TenantStatistics:
    """A snapshot of one tenant."""

    tenant: str  # its name
    in_flight: int = 0  # requests without an outcome
    device_bytes: int = 0  # device memory charged to it
    pinned_bytes: int = 0  # pinned host memory charged to it


@dataclass(frozen=True, slots=True)
class ExecutorStatistics:
    """A snapshot of an executor."""

    submitted: int  # requests taken since it was made
    in_flight: int  # those without an outcome
    quota_refusals: int  # allocations refused by a device quota, in the requests that ended
    tenants: tuple[TenantStatistics, ...]  # those with anything in flight or charged, by name


class Executor(Protocol):
    """Runs requests. Every method may be called from any thread."""

    def submit(self, request: Request, listener: Listener | None = None) -> PendingInvocation:
        """Take a request and return at once; whatever fails after that is the outcome.

        Args:
            request: what to call.
            listener: takes the guest's output as it is written, on a thread of the executor's, in order; the result
                then holds none. It must not wait for another request. When it returns False the guest's next write
                fails; an error of ours that it raises is the outcome. None collects the output.

        Raises:
            CapacityExhausted: too many requests are under way, or the executor is closed.
            InvalidArgs: a field of the request is out of range.
        """

    def statistics(self) -> ExecutorStatistics:
        """Return a snapshot."""

    def close(self) -> None:
        """End what still runs and release everything. Idempotent; blocks.

        Every request has its outcome then, or gets it once its listener has taken what was written.
        """


class RunningCalls:
    """Counts requests by tenant. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._submitted = 0
        self._quota_refusals = 0
        self._in_flight: dict[str, int] = {}

    def enter(self, tenant: str, pending: PendingInvocation) -> None:
        """Count a request until it has an outcome."""
        self.begin(tenant)
        pending.add_done_callback(partial(self._leave, tenant))

    def begin(self, tenant: str) -> None:
        """Count a request until `end`."""
        with self._lock:
            self._submitted += 1
            self._in_flight[tenant] = self._in_flight.get(tenant, 0) + 1

    def _leave(self, tenant: str, ended: Future[Invocation]) -> None:
        self.end(tenant, None if ended.cancelled() else ended.exception() or ended.result())

    def refuse(self, tenant: str) -> None:
        """Undo one `begin`."""
        self.end(tenant, None)
        with self._lock:
            self._submitted -= 1

    def end(self, tenant: str, outcome: Invocation | BaseException | None) -> None:
        """Count a request off, with its outcome, if it has one."""
        gpu = getattr(outcome, "gpu", None)  # an error has none
        refusals = gpu.quota_refusals if gpu is not None else 0
        with self._lock:
            self._quota_refusals += refusals
            self._in_flight[tenant] -= 1
            if not self._in_flight[tenant]:
                del self._in_flight[tenant]

    def statistics(self, charged: dict[str, tuple[int, int]]) -> ExecutorStatistics:
        """Return a snapshot, given device and pinned bytes by tenant."""
        with self._lock:
            counts, submitted, refusals = dict(self._in_flight), self._submitted, self._quota_refusals
        tenants = tuple(
            TenantStatistics(name, counts.get(name, 0), *charged.get(name, (0, 0)))
            for name in sorted(counts.keys() | charged.keys())
        )
        return ExecutorStatistics(submitted, sum(counts.values()), refusals, tenants)


def check_request(request: Request) -> None:
    """Require every field to be of its exact type, because a subclass cannot be sent, and in its range.

    The module, and whether the arguments fit its export, are checked where it runs. Raises `InvalidArgs`, which names
    the field, or `StdinTooLarge` for the request's own limit.
    """
    _require(type(request.limits) is Limits, "limits are Limits")
    _check_limits(request.limits)
    _check_sizes(request)
    grants = request.grants
    _require(type(grants) is Grants and type(grants.cuda) is bool, "grants are Grants, and cuda is True or False")
    _require(type(request.tenant) is str and _TENANT.fullmatch(request.tenant), _TENANT_RULE)
    kind = request.memory_kind
    _require(kind is None or (type(kind) is str and kind in MEMORY_KINDS), _KIND_RULE)
    _require(type(request.offload) is str and request.offload in OFFLOAD_MODES, _OFFLOAD_RULE)
    _require(type(request.offload_math) is str and request.offload_math in OFFLOAD_MATHS, _MATH_RULE)
    _require(request.gpu_bytes is None or _is_count(request.gpu_bytes), _GPU_RULE)
    weight_fits = type(request.weight) is int and 1 <= request.weight <= MAX_WEIGHT
    _require(weight_fits, _WEIGHT_RULE)
    _require(request.deadline_s is None or _is_seconds(request.deadline_s), "deadline_s is in seconds, or None")
    weight = _weigh_text("name", request.name) + _weigh_arguments(request.args)
    if request.export is not None:
        weight += _weigh_text("export", request.export)
    if request.argv is not None or request.env != () or grants.directories != ():
        weight += sum(_weigh_text(what, text) for what, text in _other_texts(request))
    _require(weight <= TEXT_BYTES, _TEXT_RULE)


def _check_sizes(request: Request) -> None:
    limits = request.limits
    _check_bytes("module", request.module, limits.module_bytes)
    if type(request.stdin) is bytes and len(request.stdin) > limits.stdin_bytes:
        raise StdinTooLarge(f"standard input has {len(request.stdin)} bytes; the limit is {limits.stdin_bytes}")
    _check_bytes("stdin", request.stdin, limits.stdin_bytes)
    _check_bytes("input", request.input, STREAM_BYTES)


def _check_bytes(name: str, data: object, most_bytes: int) -> None:
    if type(data) is not bytes or len(data) > most_bytes:
        _require(type(data) is bytes, f"{name} is bytes, not {type(data).__name__}")
        raise InvalidArgs(f"{name} has more than {most_bytes} bytes")


def _check_limits(limits: Limits) -> None:
    for name in _COUNTED_LIMITS:
        value = getattr(limits, name)
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            raise InvalidArgs(f"limits.{name} is 0 to {MAX_COUNT}")
    _require(_is_seconds(limits.wall_s) and limits.wall_s > 0, "limits.wall_s is a positive number of seconds")


def _other_texts(request: Request) -> Iterator[tuple[str, object]]:
    """Yield the texts of a request that few have, with the field's name."""
    yield from (("argv", word) for word in _items("argv", () if request.argv is None else request.argv))
    for pair in _items("env", request.env):
        if type(pair) is not tuple or len(pair) != 2:
            raise InvalidArgs("env is pairs of name and value")
        yield from (("env", text) for text in pair)
    for directory in _items("directories", request.grants.directories):
        if type(directory) is not Directory or type(directory.writable) is not bool:
            raise InvalidArgs("directories are Directory, each writable or not")
        yield from (("directory", path) for path in (directory.host_path, directory.guest_path))


def _weigh_text(what: str, text: object) -> int:
    """Return what a text takes of `TEXT_BYTES`."""
    if type(text) is not str or len(text) > NAME_CHARACTERS:
        raise InvalidArgs(f"{what} is text of at most {NAME_CHARACTERS} characters")
    return _encoded_bytes(what, text) + _ITEM_BYTES


def _weigh_arguments(args: Iterable[object]) -> int:
    """Return what arguments take of `TEXT_BYTES`."""
    weight = 0
    for value in _items("args", args):
        if type(value) is int:
            _require(_LEAST_INTEGER <= value <= _MOST_INTEGER, "integers in args are -2**63 to 2**64 - 1")
        elif type(value) is str:
            weight += _encoded_bytes("args", value)
        else:
            fits = value is None or type(value) in {bool, float}
            _require(fits, f"args are numbers, text and None, not {type(value).__name__}")
        weight += _ITEM_BYTES
    return weight


def _encoded_bytes(what: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgs(f"{what} holds half of a surrogate pair, which is no text") from None


def _items(what: str, items: Iterable[object]) -> Iterable[object]:
    _require(type(items) in {tuple, list}, f"{what} is a tuple")
    return items


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _is_seconds(value: object) -> bool:
    """Return whether a value is a number of seconds; `Deadline` interprets NaN and infinity."""
    return type(value) is float or (type(value) is int and abs(value) <= MAX_COUNT)


def _require(holds: Any, what: str) -> None:
    if not holds:
        raise InvalidArgs(what)
