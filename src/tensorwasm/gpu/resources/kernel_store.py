"""Guarded kernels in the form in which they are kept between processes: compiled, with what launches need.

Guarding, verifying and compiling a kernel takes much longer than loading its image. Every entry was verified by this
edition of the code, on this machine; the store has to ensure that entries are not changed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from tensorwasm import ptx
from tensorwasm.artifacts.hashing import blake3, hasher
from tensorwasm.gpu.device.admission import LIMITS
from tensorwasm.gpu.device.guarded_kernel import GuardedKernel
from tensorwasm.ptx.checked import Site
from tensorwasm.settings import package_version
from tensorwasm.values import KernelSignature


class KernelStore(Protocol):
    """Where compiled kernels are kept. What it returns is what was put, or nothing. Raises nothing. Thread-safe."""

    def get(self, name: bytes) -> bytes | None:
        """Return what is kept under a name of 32 bytes, None if nothing is."""

    def put(self, name: bytes, data: bytes) -> None:
        """Keep something under a name, if there is room for it."""


class StoredKernel(msgspec.Struct, frozen=True, array_like=True):
    """A guarded kernel.

    Attributes:
        image: what the device loads (`Device.assemble`).
        signature: of the program's kernel.
        guarded: what launches need.
        writable: whether it may write to variables of its module.
        sites: its checked accesses.
    """

    image: bytes
    signature: KernelSignature
    guarded: GuardedKernel
    writable: bool
    sites: tuple[Site, ...] = ()


_decoder = msgspec.msgpack.Decoder(StoredKernel)


def encode(kernel: StoredKernel) -> bytes:
    """Return a kernel as bytes."""
    return msgspec.msgpack.encode(kernel)


def decode(data: bytes) -> StoredKernel | None:
    """Return the kernel that some bytes are, None if they are none."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return None


def name_of(*depends_on: object) -> bytes:
    """Return the name of a kernel: a hash of what its image and its admission depend on, and of this edition."""
    return blake3(msgspec.msgpack.encode((depends_on, package_version(), _sources(), LIMITS)))


@cache
def _sources() -> bytes:
    """Return the hash of the code that guards and verifies: what another edition has accepted is not used."""
    total = hasher()
    for path in sorted(Path(ptx.__file__).parent.rglob("*.py")):
        total.update(path.read_bytes())
    return bytes(total.digest())
