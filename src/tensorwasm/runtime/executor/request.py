"""`Request`: what an executor must know to make one call, as plain values that can cross to another process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final

from tensorwasm.errors import InvalidArgs, StdinTooLarge
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.guest.sandbox.wasi_io import Directory
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.values import MEMORY_KINDS, MIB, Limits, MemoryKind

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


@dataclass(frozen=True, slots=True)
class Request:
    """One call of one export of one module."""

    # The binary. Give the same object again for the same module: it is then neither sent nor compiled again.
    module: bytes = field(repr=False)
    export: str | None = None  # None takes ``_start``, and where there is none, ``main``
    args: tuple[Argument, ...] = ()  # values for its parameters; integers are -2**63 to 2**64 - 1
    name: str = "module"  # the module's, for people and for ``argv[0]``
    argv: tuple[str, ...] | None = None  # WASI arguments, the program's name first; None gives the name
    env: tuple[tuple[str, str], ...] = ()  # WASI environment, as pairs
    stdin: bytes = field(default=b"", repr=False)  # all of standard input
    input: bytes = field(default=b"", repr=False)  # what the guest reads with ``read-input``
    grants: Grants = NOTHING  # what it may use
    tenant: str = DEFAULT_TENANT  # whose call it is: separates quotas, workers and compiled modules
    limits: Limits = USUAL  # what its sandbox may use
    # Seconds from `Executor.submit` on within which it must have ended; None for ``limits.wall_s`` alone.
    deadline_s: float | None = None
    # How kernels reach its linear memory; None takes the setting TENSOR_WASM_GPU_MEMORY.
    memory_kind: MemoryKind | None = None
    gpu_bytes: int | None = None  # the tenant's cap on device memory where it runs, None for `Runtime.gpu_bytes` there


def check_request(request: Request) -> None:
    """Require every field to be of its exact type, because a subclass cannot be sent, and in its range.

    The module, and whether the arguments fit its export, are checked where it runs. Raises `InvalidArgs`, which names
    the field, or `StdinTooLarge` for the request's own limit.
    """
    _check_sizes(request)
    grants = request.grants
    _require(type(grants) is Grants and type(grants.cuda) is bool, "grants are Grants, and cuda is True or False")
    _require(type(request.tenant) is str and _TENANT.fullmatch(request.tenant), f"a tenant is {TENANT_PATTERN}")
    kind = request.memory_kind
    _require(kind is None or (type(kind) is str and kind in MEMORY_KINDS), f"memory_kind is {', '.join(MEMORY_KINDS)}")
    _require(request.gpu_bytes is None or _is_count(request.gpu_bytes), f"gpu_bytes is 0 to {MAX_COUNT}, or None")
    _require(request.deadline_s is None or _is_seconds(request.deadline_s), "deadline_s is in seconds, or None")
    weight = sum(_weigh_text(what, text) for what, text in _texts(request)) + _weigh_arguments(request.args)
    _require(weight <= TEXT_BYTES, f"texts and arguments have at most {TEXT_BYTES} bytes together")


def _check_sizes(request: Request) -> None:
    limits = request.limits
    _require(type(limits) is Limits, "limits are Limits")
    for each in fields(Limits):
        if each.name != "wall_s":
            _require(_is_count(getattr(limits, each.name)), f"limits.{each.name} is 0 to {MAX_COUNT}")
    _require(_is_seconds(limits.wall_s) and limits.wall_s > 0, "limits.wall_s is a positive number of seconds")
    for name, most_bytes in (("module", limits.module_bytes), ("stdin", limits.stdin_bytes), ("input", STREAM_BYTES)):
        data = getattr(request, name)
        _require(type(data) is bytes, f"{name} is bytes, not {type(data).__name__}")
        if name == "stdin" and len(data) > most_bytes:
            raise StdinTooLarge(f"standard input has {len(data)} bytes; the limit is {most_bytes}")
        _require(len(data) <= most_bytes, f"{name} has {len(data)} bytes, more than {most_bytes}")


def _texts(request: Request) -> Iterator[tuple[str, object]]:
    """Yield every text of a request, with the field's name."""
    yield "name", request.name
    if request.export is not None:
        yield "export", request.export
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
