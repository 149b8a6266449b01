"""How a guest reaches the device: its session, which kind of linear memory, and whether through compiled code."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from tensorwasm import settings
from tensorwasm.errors import InvalidPointer, NotSupported
from tensorwasm.guest.engine import memory_creator
from tensorwasm.guest.engine.memory_creator import MemoryBacking
from tensorwasm.guest.memory import huge_pages
from tensorwasm.guest.memory.linear_memory import GuestMemory
from tensorwasm.guest.native.session_layouts import return_layout, take_layout
from tensorwasm.settings.parsing import checked_memory_kind
from tensorwasm.values import WASM_PAGE_BYTES, MemoryKind

if TYPE_CHECKING:
    from tensorwasm.gpu.memory import BufferKind, UnifiedBuffer
    from tensorwasm.gpu.session import Session
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.values import Limits

DIRECT: Final[Mapping[MemoryKind, BufferKind]] = {"managed": "managed", "vmm": "vmm"}
"""Kinds of linear memory that the device reaches from the start, and the kinds of buffer behind them."""


class MemoryOwner(Protocol):
    """A sandbox with a linear memory."""

    @property
    def memory(self) -> GuestMemory:
        """The memory that the guest exports; `InvalidPointer` if it exports none."""


def wants_compiled(shared: SharedDevice) -> bool:
    """Return whether compiled host functions are wanted, rather than Python's."""
    mode = settings.current().native
    return mode == "on" or (mode == "auto" and shared.info.kind == "cuda")


def resolve_memory_kind(memory: MemoryKind | None) -> MemoryKind:
    """Return a kind of memory, the setting's for None; raise `InvalidArgs` if there is no such kind."""
    return checked_memory_kind("memory_kind", settings.current().gpu_memory if memory is None else memory)


def is_direct(shared: SharedDevice, memory: MemoryKind, module: LinkedModule) -> bool:
    """Return whether the host makes a module's linear memory of a kind, instead of wasmtime.

    Guarded kernels reach memory in place only in their session's window. Kind ``auto`` is staged there, whatever the
    size, unless the module may start kernels without waiting for them.
    """
    if not shared.guarded:
        return memory in DIRECT
    return memory != "staged" and (memory != "auto" or module.starts_kernels)


def device_memory(
    shared: SharedDevice,
    session: Session,
    tenant: str,
    memory: MemoryKind,
    limits: Limits,
    size_bytes: int = 0,
    *,
    waits: bool = True,
) -> AbstractContextManager[None]:
    """Make the sandbox's linear memory where the device reaches it, for kinds that are `is_direct`.

    It is charged to the tenant. Its initial size is `size_bytes`, if that is more than the module declares. Without
    ``waits``, memory that guarded kernels reach does not grow while they run; otherwise it waits for them.

    Raises:
        NotSupported: it is to be managed, and the device faults a CPU that touches such memory while a kernel runs.
            Source: CUDA C++ Programming Guide, "Unified Memory", devices without concurrent managed access.
    """
    if shared.guarded:

        def provide_in_window(size_bytes: int, capacity_bytes: int) -> MemoryBacking:
            least = WASM_PAGE_BYTES
            return session.open_memory(max(size_bytes, least), max(capacity_bytes, least), waits=waits)

        return memory_creator.supplying(provide_in_window, limits.memory_bytes, size_bytes)
    if memory == "managed" and not shared.info.concurrent_managed_access:
        raise NotSupported(f"a guest's memory cannot be managed on {shared.info.name}: choose staged, pinned or auto")
    account = shared.accounts.account(tenant)

    from tensorwasm.gpu.memory import UnifiedBuffer  # noqa: PLC0415 - for guests with a GPU

    def provide(size_bytes: int, capacity_bytes: int) -> UnifiedBuffer:
        return UnifiedBuffer.allocate(
            shared.device,
            max(size_bytes, WASM_PAGE_BYTES),  # a buffer has bytes, a linear memory need not
            DIRECT[memory],
            capacity_bytes=max(capacity_bytes, WASM_PAGE_BYTES),
            account=account,
        )

    return memory_creator.supplying(provide, limits.memory_bytes, size_bytes)


def prefer_huge_pages(sandbox: MemoryOwner, limits: Limits) -> Callable[[], object]:
    """Give a guest huge pages for memory that kernels stream over in place: a tenth faster on an H200.

    Called before the guest touches its memory. Call the result before the memory goes back to the pool.
    """
    try:
        address = sandbox.memory.address
    except InvalidPointer:  # there is no memory to stream over
        return lambda: None
    size_bytes = limits.memory_bytes // mmap.PAGESIZE * mmap.PAGESIZE
    huge_pages.prefer_huge(address, size_bytes)
    return partial(huge_pages.prefer_small, address, size_bytes)


@contextmanager
def huge_pages_preferred(sandbox: MemoryOwner, limits: Limits) -> Iterator[None]:
    """Prefer huge pages during a call; see `prefer_huge_pages`."""
    undo = prefer_huge_pages(sandbox, limits)
    try:
        yield
    finally:
        undo()


def open_session(shared: SharedDevice, tenant: str, memory: MemoryKind, *, with_layout: bool) -> Session:
    """Return a session, with a memory layout for compiled code, which its sandbox returns to the pool."""
    layout = take_layout() if with_layout else None
    try:
        return shared.open_session(tenant, architecture=settings.current().cuda_arch, memory_kind=memory, layout=layout)
    except BaseException:
        if layout is not None:
            return_layout(layout)
        raise


def end_session(session: Session) -> bool:
    """Close a session; return whether nothing of it reaches the guest's memory any more."""
    session.close()
    return not session.abandoned
