"""What the fake driver is made of: result codes, handles, enumerations, and the table of its entry points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, NOT_FOUND, NOT_READY = 0, 1, 2, 201, 500, 600
ILLEGAL_STATE, CONTEXT_IS_DESTROYED, NOT_SUPPORTED = 401, 709, 801
INVALID_HANDLE, ALREADY_REGISTERED, NOT_REGISTERED, INVALID_DEVICE = 400, 712, 713, 101
INVALID_RESOURCE_CONFIGURATION = 915
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_ISOLATION = 900, 901, 905

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "COMPUTE_MODE": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MANAGED_MEMORY": 1,
    "CONCURRENT_MANAGED_ACCESS": 1,
    "MEMORY_POOLS_SUPPORTED": 1,
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 1,
    "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 1,
    "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 1,
    "HOST_NUMA_ID": -1,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64,
}

ENTRY_POINTS: dict[str, Callable[..., tuple[Any, ...]]] = {}
WITHOUT_CONTEXT: set[str] = set()


def entry_point(name: str, *, context: bool = True):
    """Enter a function of a fake and the driver's arguments into the table under the driver's own name."""

    def enter(function):
        ENTRY_POINTS[name] = function
        if not context:
            WITHOUT_CONTEXT.add(name)
        return function

    return enter


class Names:
    """An enumeration whose every member is its own name."""

    def __getattr__(self, name: str) -> str:
        return name


class Flags:
    """An enumeration of bit flags that are all 1."""

    def __getattr__(self, name: str) -> int:
        return 1


class Structure:
    """A structure of the driver: fields by name, the location inside another one there from the start."""

    def __init__(self) -> None:
        self.maxSize = 0
        self.location: Any = None


@dataclass(eq=False)
class Handle:
    """What the driver hands out: a stream, an event, a module, a function, a context, a pool, a graph.

    Attributes:
        nodes: what a stream has recorded, or a graph holds; None for a stream that runs.
        source: the stream that an event was recorded on.
        worked: whether kernels were given to a stream.
        size: bytes of a piece of memory, or what a pool holds at most (0: no cap).
        multiprocessors: of a green context: which.
    """

    kind: str
    number: int
    entry: str = ""
    alive: bool = True
    shared_limit: int = 48 << 10
    waits: list[Handle] = field(default_factory=list)
    nodes: list[Callable[[], object]] | None = None
    spoilt: bool = False
    source: Handle | None = None
    worked: bool = False
    size: int = 0
    context: Handle | None = None
    multiprocessors: frozenset[int] = frozenset()

    def __int__(self) -> int:
        return self.number
