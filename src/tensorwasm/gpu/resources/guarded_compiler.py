"""Guarding, verifying and compiling of kernels, which needs a description of the device and a ptxas, but no device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from tensorwasm import ptx
from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.device.admission import CompiledKernel, admit
from tensorwasm.gpu.device.guarded_kernel import GuardedKernel, guard_kernel
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.resources.kernel_store import KernelStore, StoredKernel, decode, encode, name_of
from tensorwasm.ptx.checked import Site, instrument
from tensorwasm.ptx.guarded import Width
from tensorwasm.ptx.model import Module
from tensorwasm.values import Deadline, KernelSignature

Assemble = Callable[[Module, Deadline], CompiledKernel | None]
"""`tensorwasm.gpu.device.port.Device.assemble`."""


class KernelTarget(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What kernels are compiled for; fields as in `tensorwasm.gpu.device.port.Device` and its `DeviceInfo`."""

    compute_capability: tuple[int, int]
    ptx_version: tuple[int, int]
    shared_base: int
    assembler: str


class KernelJob(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A kernel to compile.

    Attributes:
        tenant: whose it is.
        text: PTX, as a guest gave it.
        entry: name of the kernel.
        architecture: compute capability that the text is chosen for.
        width: of the windows that it is guarded for.
        target: the device.
        checked: whether it checks its accesses (`tensorwasm.ptx.checked`).
    """

    tenant: str
    text: bytes
    entry: str
    architecture: tuple[int, int]
    width: Width
    target: KernelTarget
    checked: bool = False

    @property
    def name(self) -> bytes:
        """What the compiled kernel is kept under: a hash of all that it depends on, tenant and our code included."""
        text = digest(self.text.removesuffix(b"\0"))  # which means nothing
        return name_of(self.tenant, text, self.entry, self.architecture, self.width, self.target, self.checked)


class KernelCompiler(Protocol):
    """Compiles guarded kernels. Thread-safe."""

    def compile(self, job: KernelJob, deadline: Deadline) -> StoredKernel:
        """Return a kernel that the verifier has accepted and that is admitted. Blocks.

        Raises:
            MalformedPtx: the text does not parse, or ptxas refuses it.
            UnsupportedPtx: it asks for what the device lacks, or cannot be confined.
            InvalidKernel: it has no such entry.
            KernelTooLarge: it takes more of the device than a guarded kernel may, or too long to compile.
            InvokeTimeout: the deadline passed.
            DeviceUnavailable: this machine cannot run its ptxas.
            CapacityExhausted: too much waits to be compiled.
        """


@dataclass(frozen=True, slots=True)
class GuardedProgram:
    """A kernel that was guarded and verified.

    Attributes:
        module: that prints as the text which the verifier has accepted.
        signature: what launches are checked against.
        guarded: what launches need besides.
        writable: whether it may write to variables of its module.
        sites: its checked accesses.
    """

    module: Module
    signature: KernelSignature
    guarded: GuardedKernel
    writable: bool
    sites: tuple[Site, ...] = ()


def guard_program(job: KernelJob, deadline: Deadline) -> GuardedProgram:
    """Guard and verify a kernel; raises what `KernelCompiler.compile` does before ptxas has it."""
    # A guarded text may name an older ISA than the guest's: the verifier reads each of its instructions anyway.
    variants = ptx.parse_variants(job.text, deadline)
    chosen = ptx.select(variants, job.architecture, job.target.ptx_version, lower=True)
    module = ptx.extract(chosen, job.entry, deadline)
    signature = ptx.signature(module, job.entry, deadline)
    program, sites = instrument(module, job.target.shared_base, deadline) if job.checked else (module, ())
    written, kernel = guard_kernel(program, job.target.shared_base, deadline, job.width)
    writable = bool(kernel.data.size_bytes) and ptx.may_write(module, signature.entry, deadline)
    return GuardedProgram(written, _checked_signature(signature, kernel), kernel, writable, sites)


def compile_guarded(job: KernelJob, assemble: Assemble, deadline: Deadline) -> StoredKernel:
    """Guard, verify, compile and admit a kernel; see `KernelCompiler.compile`."""
    program = guard_program(job, deadline)
    compiled = assemble(program.module, deadline)
    if compiled is None:
        raise UnsupportedPtx("ptxas does not take the module")
    admit(compiled)
    return StoredKernel(compiled.image, program.signature, program.guarded, program.writable, program.sites)


class LocalCompiler:
    """Compiles in this process, with ptxas in a child, and keeps what it has made.

    Args:
        device: has a ptxas.
        store: keeps compiled kernels between processes; None keeps none.
    """

    def __init__(self, device: Device, store: KernelStore | None) -> None:
        self._device = device
        self._store = store

    def compile(self, job: KernelJob, deadline: Deadline) -> StoredKernel:
        """See `KernelCompiler.compile`."""
        name, store = job.name, self._store
        kept = None if store is None else store.get(name)
        found = None if kept is None else decode(kept)
        if found is None:
            found = compile_guarded(job, self._device.assemble, deadline)
            if store is not None:
                store.put(name, encode(found))
        return found


def target_of(device: Device) -> KernelTarget:
    """Return what kernels for a device are compiled for."""
    info = device.info
    return KernelTarget(info.compute_capability, info.ptx_version, device.shared_base, device.assembler)


def digest(text: bytes) -> bytes:
    """Return the digest that stands for a text in a key."""
    return hashlib.sha256(text).digest()


def _checked_signature(signature: KernelSignature, kernel: GuardedKernel) -> KernelSignature:
    """Return what launches are checked against: the verifier's word on alignment counts, not the analysis of flow."""
    params = tuple(
        replace(param, pointer=param.pointer or align > 1, access_align_bytes=max(param.access_align_bytes, align))
        for param, align in zip(signature.params, kernel.verified.param_aligns, strict=True)
    )
    return replace(signature, params=params, static_shared_bytes=kernel.verified.arrays.shared_bytes)
