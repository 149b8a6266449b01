"""Memory of the fake driver: device memory, pools, managed memory, ranges that grow, registered pages, copies."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

from fakes.driver_base import (
    ALREADY_REGISTERED,
    INVALID_VALUE,
    NOT_REGISTERED,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    SUCCESS,
    entry_point,
)

GRANULARITY = 2 << 20
DIRT = 0xAA


NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux


def host_block(size: int) -> tuple[int, mmap.mmap]:
    """Return real memory of this process, and where it is."""
    block = mmap.mmap(-1, size + GRANULARITY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(block))
    return -(-start // GRANULARITY) * GRANULARITY, block


def used(fake) -> int:
    located = sum(handle.size for handle in fake.handles if handle.entry == "DEVICE")
    return sum(map(len, fake.memory.values())) + sum(size for size, _ in fake.managed.values()) + located


@entry_point("cuMemGetInfo")
def mem_get_info(fake):
    return SUCCESS, fake.capacity - used(fake) - fake.kept, fake.capacity


@entry_point("cuMemAlloc")
def mem_alloc(fake, size):
    if size < 1:
        return (INVALID_VALUE,)
    if size + used(fake) > fake.capacity:
        return (OUT_OF_MEMORY,)
    return SUCCESS, fake.place(size)


@entry_point("cuMemFree")
def mem_free(fake, address):
    if address in fake.managed:
        del fake.managed[address]
        return (SUCCESS,)
    return (SUCCESS,) if fake.memory.pop(address, None) is not None else (INVALID_VALUE,)


@entry_point("cuMemPoolCreate")
def mem_pool_create(fake, props):
    assert props.location.type == "CU_MEM_LOCATION_TYPE_DEVICE"
    pool = fake.make("pool")
    pool.size = props.maxSize
    return SUCCESS, pool


@entry_point("cuMemPoolSetAttribute")
def mem_pool_set_attribute(fake, pool, attribute, value):
    assert (attribute, value) == ("CU_MEMPOOL_ATTR_RELEASE_THRESHOLD", (1 << 64) - 1)
    return (SUCCESS,)


@entry_point("cuMemPoolTrimTo")
def mem_pool_trim_to(fake, pool, keep):
    if not fake.unseen:
        fake.kept = 0
    return (SUCCESS,)


@entry_point("cuMemPoolDestroy")
def mem_pool_destroy(fake, pool):
    assert pool not in fake.pool_of.values(), "the driver would keep the pool until its memory is free"
    return fake.drop(pool)


@entry_point("cuMemAllocFromPoolAsync")
def mem_alloc_from_pool_async(fake, size, pool, stream):
    assert stream.nodes is None, "an allocation was recorded"
    if size < 1:
        return (INVALID_VALUE,)
    held = sum(len(fake.memory[address]) for address, owner in fake.pool_of.items() if owner is pool)
    if (pool.size and held + size > pool.size) or size + used(fake) + fake.kept > fake.capacity:
        return (OUT_OF_MEMORY,)
    address = fake.place(size)
    fake.pool_of[address] = pool
    return SUCCESS, address


@entry_point("cuMemFreeAsync")
def mem_free_async(fake, address, stream):
    assert stream.nodes is None, "a free was recorded"
    if fake.pool_of.pop(address, None) is None:
        return (INVALID_VALUE,)
    del fake.memory[address]
    fake.unseen.add(stream)
    return (SUCCESS,)


@entry_point("cuMemAllocManaged")
def mem_alloc_managed(fake, size, flags):
    if size < 1:
        return (INVALID_VALUE,)
    address, block = host_block(size)
    ctypes.memset(address, DIRT, size)
    fake.managed[address] = size, block
    return SUCCESS, address


@entry_point("cuMemAdvise")
def mem_advise(fake, address, size, advice, location):
    return fake.hint(address, "advise", advice, location, modern=fake.bindings > 12)


@entry_point("cuMemAdvise_v2")
def mem_advise_by_location(fake, address, size, advice, location):
    return fake.hint(address, "advise", advice, location, modern=True)


@entry_point("cuMemPrefetchAsync")
def mem_prefetch_async(fake, address, size, location, *flags_and_stream):
    assert len(flags_and_stream) == (2 if fake.bindings > 12 else 1)
    return fake.hint(address, "prefetch", "", location, modern=fake.bindings > 12)


@entry_point("cuMemPrefetchAsync_v2")
def mem_prefetch_async_by_location(fake, address, size, location, flags, stream):
    return fake.hint(address, "prefetch", "", location, modern=True)


@entry_point("cuMemGetAllocationGranularity")
def mem_get_allocation_granularity(fake, prop, option):
    return SUCCESS, GRANULARITY


@entry_point("cuMemAddressReserve")
def mem_address_reserve(fake, size, alignment, address, flags):
    assert size % GRANULARITY == alignment % GRANULARITY == address == flags == 0
    start, block = host_block(size)
    fake.reserved[start] = size, block
    return SUCCESS, start


@entry_point("cuMemAddressFree")
def mem_address_free(fake, address, size):
    if fake.reserved.get(address, (0,))[0] != size:
        return (INVALID_VALUE,)
    del fake.reserved[address]
    return (SUCCESS,)


@entry_point("cuMemCreate")
def mem_create(fake, size, prop, flags):
    place = prop.location.type.removeprefix("CU_MEM_LOCATION_TYPE_")
    if size % GRANULARITY or place not in {"DEVICE", "HOST", "HOST_NUMA"}:
        return (NOT_SUPPORTED,)
    if size > (fake.capacity - used(fake) - fake.kept if place == "DEVICE" else fake.host_bytes):
        return (OUT_OF_MEMORY,)
    memory = fake.make("memory")
    memory.size, memory.entry = size, place
    return SUCCESS, memory


@entry_point("cuMemRelease")
def mem_release(fake, handle):
    return fake.drop(handle)


@entry_point("cuMemMap")
def mem_map(fake, address, size, offset, handle, flags):
    assert (offset, flags) == (0, 0)
    assert handle in fake.handles
    inside = any(start <= address and address + size <= start + room for start, (room, _) in fake.reserved.items())
    if handle.size != size or not inside or address in fake.mapped:
        return (INVALID_VALUE,)
    fake.mapped[address] = size
    fake.shows[address] = handle
    return (SUCCESS,)


def run(fake, address: int, size: int) -> list[int]:
    """Return where the mappings begin that fill a range; none if they do not fill it."""
    found, end = [], address + size
    while address < end:
        if address not in fake.mapped:
            return []
        found.append(address)
        address += fake.mapped[address]
    return found if address == end else []


@entry_point("cuMemSetAccess")
def mem_set_access(fake, address, size, users, count):
    assert len(users) == count
    starts = run(fake, address, size)
    assert starts, "a range that is not filled by mappings"
    kinds = {user.location.type.removeprefix("CU_MEM_LOCATION_TYPE_") for user in users}
    for start in starts:
        fake.users[start] = kinds
        if fake.shows[start].entry != "DEVICE" and kinds > {"DEVICE"}:
            ctypes.memset(start, DIRT, fake.mapped[start])
    return (SUCCESS,)


@entry_point("cuMemUnmap")
def mem_unmap(fake, address, size):
    starts = run(fake, address, size)
    if not starts:
        return (INVALID_VALUE,)
    for start in starts:
        del fake.mapped[start], fake.shows[start]
        fake.users.pop(start, None)
    return (SUCCESS,)


@entry_point("cuMemHostRegister")
def mem_host_register(fake, address, size, flags):
    if address in fake.registered:
        return (ALREADY_REGISTERED,)
    fake.registered[address] = size
    return (SUCCESS,)


@entry_point("cuMemHostUnregister")
def mem_host_unregister(fake, address):
    return (SUCCESS,) if fake.registered.pop(address, None) else (NOT_REGISTERED,)


@entry_point("cuMemHostGetDevicePointer")
def mem_host_get_device_pointer(fake, address, flags):
    return SUCCESS, address + fake.shift


@entry_point("cuMemsetD8Async")
def memset_bytes_async(fake, address, value, size, stream):
    def fill() -> None:
        if address in fake.shows and fake.shows[address].entry == "DEVICE":
            fake.cleared.append((address, size))  # what is in windows is not modelled
        elif on_host(fake, address):
            ctypes.memset(address, value, size)
        else:
            store(fake, address, bytes([value]) * size)

    return fake.give(stream, fill)


@entry_point("cuMemcpyHtoDAsync")
def memcpy_to_device_async(fake, address, source, size, stream):
    return fake.give(stream, lambda: store(fake, address, host_bytes(source, size)))


@entry_point("cuMemcpyDtoHAsync")
def memcpy_to_host_async(fake, target, address, size, stream):
    def copy() -> None:
        data = fetch(fake, address, size)
        if isinstance(target, int):
            ctypes.memmove(target, data, size)
        else:
            target[:] = data

    return fake.give(stream, copy)


def host_bytes(source: Any, size: int) -> bytes:
    return ctypes.string_at(source, size) if isinstance(source, int) else bytes(source)


def store(fake, address: int, data: bytes) -> None:
    if on_host(fake, address):
        ctypes.memmove(address, data, len(data))
        return
    block, at = find(fake, address)
    block[at : at + len(data)] = data


def fetch(fake, address: int, size: int) -> bytes:
    if on_host(fake, address):
        return ctypes.string_at(address, size)
    block, at = find(fake, address)
    return bytes(block[at : at + size])


def on_host(fake, address: int) -> bool:
    spans = [*((start, size) for start, (size, _) in fake.managed.items()), *fake.mapped.items()]
    return any(start <= address < start + size for start, size in spans)


def find(fake, address: int) -> tuple[bytearray, int]:
    for start, block in fake.memory.items():
        if start <= address < start + len(block):
            return block, address - start
    raise AssertionError(f"the driver was given a bad address: {address:#x}")
