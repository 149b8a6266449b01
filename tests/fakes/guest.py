"""A guest that never runs: its memory and one call into the host."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorwasm.errors import InvalidPointer
from tensorwasm.values import WASM_PAGE_BYTES, Deadline

MEMORY_ADDRESS = 1 << 46


@dataclass
class FakeMemory:
    """Linear memory over any buffer; its address is made up."""

    buffer: bytearray | memoryview = field(default_factory=lambda: bytearray(WASM_PAGE_BYTES))
    address: int = MEMORY_ADDRESS

    @property
    def size_bytes(self) -> int:
        return len(self.buffer)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.view(offset, length))

    def write(self, offset: int, data: bytes | memoryview) -> None:
        self.view(offset, len(data))[:] = data

    def view(self, offset: int, length: int) -> memoryview:
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise InvalidPointer(f"{length} bytes at {offset} of {self.size_bytes}")
        return memoryview(self.buffer)[offset : offset + length]


@dataclass
class FakeCall:
    """One call from a guest."""

    memory_or_none: FakeMemory | None = field(default_factory=FakeMemory)
    deadline: Deadline = field(default_factory=Deadline)
    services: dict[str, object] = field(default_factory=dict)

    @property
    def memory(self) -> FakeMemory:
        if self.memory_or_none is None:
            raise InvalidPointer("the guest exports no memory")
        return self.memory_or_none

    def service(self, name: str) -> object | None:
        return self.services.get(name)
