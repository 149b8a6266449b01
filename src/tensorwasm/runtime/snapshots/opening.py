"""What a live instance is given when it is made, what it may be made of, and what it tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT
from tensorwasm.guest.memory.images import Image
from tensorwasm.guest.sandbox.wasi_io import Sink
from tensorwasm.guest.saved.restoring import RestorePlan
from tensorwasm.runtime.invoke.grants import Grants
from tensorwasm.saved import SavedSession
from tensorwasm.values import Deadline, MemoryKind

if TYPE_CHECKING:
    from tensorwasm.gpu.session import SessionStatistics


class Surroundings(TypedDict, total=False):
    """Keyword arguments of `tensorwasm.runtime.Function.open` that a restored instance is given anew."""

    argv: tuple[str, ...] | None
    env: Mapping[str, str]
    memory_kind: MemoryKind | None
    stdout: Sink | None
    stderr: Sink | None


@dataclass(frozen=True, slots=True)
class Opening:
    """What a live instance is given when it is made; `tensorwasm.runtime.Function.open` documents it."""

    granted: Grants = field(default_factory=Grants)
    tenant: str = DEFAULT_TENANT
    input: bytes = b""
    argv: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    memory_kind: MemoryKind | None = None
    deadline: Deadline | None = None
    stdout: Sink | None = None
    stderr: Sink | None = None


@dataclass(frozen=True, slots=True)
class Revival:
    """What an instance is restored from.

    Attributes:
        plan: for everything but memory.
        image: of its memory, None without one.
        session: of the GPU, None without one.
    """

    plan: RestorePlan
    image: Image | None
    session: SavedSession | None


@dataclass(frozen=True, slots=True)
class Ancestor:
    """An earlier state of an instance, to save only what changed since.

    Attributes:
        content_hash: of its file.
        image: of its memory, None without one.
        session: of the GPU, whole, None without one.
    """

    content_hash: bytes
    image: Image | None
    session: SavedSession | None


@dataclass(frozen=True, slots=True)
class LiveStatistics:
    """A snapshot of a live instance.

    Attributes:
        calls: that have ended.
        failures: of them, those that raised.
        elapsed_s: wall-clock seconds of all of them.
        memory_bytes: linear memory it has now, 0 once it is closed.
        gpu: what it holds on the device, None without the grant.
    """

    calls: int
    failures: int
    elapsed_s: float
    memory_bytes: int
    gpu: SessionStatistics | None
