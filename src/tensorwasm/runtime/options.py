"""Keyword arguments of `tensorwasm.runtime.Function.invoke`, which documents them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypedDict

from tensorwasm.guest.sandbox.output import Inherit, Sink
from tensorwasm.runtime.grants import Grants
from tensorwasm.values import Deadline, DeviceInfo, MemoryKind


class Given(TypedDict, total=False):
    """What a guest is given."""

    argv: Sequence[str] | None
    env: Mapping[str, str] | None
    stdin: bytes | Inherit
    input: bytes
    grants: Iterable[str] | Grants
    tenant: str
    memory_kind: MemoryKind | None
    deadline: Deadline | None
    stdout: Sink | Inherit | None
    stderr: Sink | Inherit | None
    on_chunk: Callable[[bytes], bool] | None


class Options(Given, total=False):
    """All of them."""

    on_device: Callable[[DeviceInfo, str], object] | None
