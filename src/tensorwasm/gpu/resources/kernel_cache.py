"""Kernels that are loaded once for all sandboxes of a tenant that bring the same text.

Loading a kernel takes milliseconds to seconds. No data of one sandbox reaches the next: a module with variables in
global or constant memory, which a kernel can write, is loaded anew for each; only its parsed and checked text is kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final

from tensorwasm import ptx
from tensorwasm.errors import InternalError
from tensorwasm.gpu.device.guarded_kernel import GuardedKernel
from tensorwasm.gpu.device.port import Device, KernelOutput, LoadedModule, attempt
from tensorwasm.gpu.native.layout import KernelImage
from tensorwasm.gpu.resources.guarded_compiler import (
    GuardedProgram,
    KernelCompiler,
    KernelJob,
    guard_program,
    target_of,
)
from tensorwasm.gpu.resources.kernel_store import StoredKernel
from tensorwasm.ptx.checked import Site
from tensorwasm.ptx.guarded import LAUNCH, Width
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import Block, Module, Variable
from tensorwasm.values import MIB, Deadline, KernelParam, KernelSignature
from tensorwasm.watch import Watch

MAX_IDLE_KERNELS: Final = 256
MAX_IDLE_GUARDED: Final = 4096
"""Where tenants share the device: some kernels of a thousand of them."""
MAX_IDLE_BYTES: Final = 64 * MIB
MAX_DRAFTS: Final = 16
MAX_DRAFT_BYTES: Final = 256 << 10
_CHARGED_SPACES: Final = frozenset({"global", "const"})

Architecture = tuple[int, int]
Key = tuple[str, bytes, str, Architecture, Width]
"""Tenant, digest of the text, entry, architecture, and the windows that it is guarded for."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A parsed and checked text.

    Attributes:
        module: the kernel that was asked for and what it reaches, from the variant that suits the device best.
        device_bytes: what the module's variables take in global and constant memory.
        private: whether it is for one sandbox only: it has such variables, or prints.
        writable: whether the kernel may write to some of them.
        prints: whether it prints.
        guarded: what launches of the guarded kernel need, which ``module`` and ``signature`` are of then; None without
            a guard. Each session has the module's variables in its window, so that nothing is private.
        image: the guarded kernel compiled, None if it has to be, or the device has no images.
    """

    module: Module | None
    signature: KernelSignature
    text: bytes
    device_bytes: int
    private: bool
    writable: bool
    prints: bool = False
    guarded: GuardedKernel | None = None
    image: bytes | None = None
    sites: tuple[Site, ...] = ()  # checked accesses


class SharedKernel:
    """A kernel on the device, for one sandbox or several.

    Attributes:
        device_bytes: what the module's variables take.
        text: as a guest gave it; the sum of the texts bounds what is kept idle.
        private: whether one sandbox only may have it.
        writable: whether it may have written to the module's variables.
        guarded, sites: as in `Draft`.
    """

    __slots__ = (
        "_image",
        "_lock",
        "device_bytes",
        "entry",
        "guarded",
        "holders",
        "key",
        "loaded",
        "private",
        "signature",
        "sites",
        "text",
        "text_bytes",
        "writable",
    )

    def __init__(self, loaded: LoadedModule, draft: Draft, key: Key) -> None:
        self.loaded = loaded
        self.key = key
        self.signature, self.entry = draft.signature, draft.signature.entry
        self.text, self.text_bytes, self.device_bytes = draft.text, len(draft.text), draft.device_bytes
        self.private, self.writable, self.guarded = draft.private, draft.writable, draft.guarded
        self.sites = draft.sites
        self.holders = 1
        self._image: KernelImage | None = None
        self._lock = threading.Lock()

    def image(self, device: Device, deadline: Deadline) -> KernelImage:
        """Return what compiled code launches; lives as long as the kernel."""
        if self._image is None:
            native = device.native.kernel(self.loaded, self.entry, deadline)
            with self._lock:  # a second image would free the first, whose address layouts have
                if self._image is None:
                    self._image = KernelImage(self.signature, native, self.guarded, device.info.multiprocessors)
        return self._image


class KernelCache:
    """The kernels of one device. Thread-safe.

    A kernel belongs to a tenant, so a quick load does not reveal that another tenant has the same text. Kernels that no
    session holds are kept, newest first, within a count and a size of their texts.

    Args:
        device: where they are loaded.
        max_idle: kernels kept that no session holds.
        max_idle_bytes: their texts.
        guarded: whether kernels are guarded, so that those of several tenants can share the device.
        compiler: of guarded kernels; None where the device takes modules as they are.
        checked: whether guarded kernels check their accesses.
    """

    def __init__(
        self,
        device: Device,
        max_idle: int = MAX_IDLE_KERNELS,
        max_idle_bytes: int = MAX_IDLE_BYTES,
        *,
        guarded: bool = False,
        compiler: KernelCompiler | None = None,
        checked: bool = False,
    ) -> None:
        self._device = device
        self._guarded, self._checked = guarded, checked
        self.compiler = compiler
        self._max_idle = max_idle
        self._max_idle_bytes = max_idle_bytes
        self._lock = threading.RLock()
        self._shared: dict[Key, SharedKernel] = {}
        self._idle: OrderedDict[Key, SharedKernel] = OrderedDict()
        self._idle_bytes = 0
        self._stuck: list[SharedKernel] = []
        self._drafts: OrderedDict[Key, Draft] = OrderedDict()

    @property
    def held(self) -> int:
        """Shared kernels on the device that a session holds."""
        with self._lock:
            return len(self._shared) - len(self._idle)

    @property
    def idle(self) -> int:
        """Kernels on the device that no session holds."""
        with self._lock:
            return len(self._idle)

    def find(self, key: Key) -> SharedKernel | None:
        """Return a cached kernel, held until `release`; None if it has to be loaded."""
        with self._lock:
            if (kernel := self._shared.get(key)) is not None:
                self.hold(kernel)
            return kernel

    def hold(self, kernel: SharedKernel) -> None:
        """Hold a shared kernel once more; `release` gives it back."""
        with self._lock:
            if not kernel.holders:
                del self._idle[kernel.key]
                self._idle_bytes -= kernel.text_bytes
            kernel.holders += 1

    def draft(self, key: Key, text: bytes, deadline: Deadline) -> Draft:
        """Parse and check a text; raises what `SessionKernels.load` does."""
        with self._lock:
            if (draft := self._drafts.get(key)) is not None:
                return draft
        if self._guarded:
            return self._draft_guarded(key, text, deadline)
        _, _, entry, architecture, _ = key
        variants = ptx.parse_variants(text, deadline)
        chosen = ptx.select(variants, architecture, self._device.info.ptx_version)
        module = ptx.extract(chosen, entry, deadline)
        signature = ptx.signature(module, entry, deadline)
        variables = _device_variables(module, Watch(deadline, "while the variables of the PTX were measured"))
        prints = ptx.find_printf(module) is not None
        draft = Draft(
            module,
            signature,
            text,
            device_bytes=sum(map(variable_bytes, variables)),
            private=prints or bool(variables),
            writable=bool(variables) and ptx.may_write(module, entry, deadline),
            prints=prints,
        )
        if draft.private and len(text) <= MAX_DRAFT_BYTES:
            with self._lock:
                self._drafts[key] = draft
                if len(self._drafts) > MAX_DRAFTS:
                    self._drafts.popitem(last=False)
        return draft

    def _draft_guarded(self, key: Key, text: bytes, deadline: Deadline) -> Draft:
        tenant, _, entry, architecture, width = key
        job = KernelJob(tenant, text, entry, architecture, width, target_of(self._device), self._checked)
        program: GuardedProgram | StoredKernel
        module = image = None
        if self.compiler is None:
            program = guard_program(job, deadline)
            module = program.module
        else:
            program = self.compiler.compile(job, deadline)
            image = program.image
        return Draft(
            module,
            program.signature,
            text,
            device_bytes=program.guarded.data.size_bytes,
            private=False,
            writable=program.writable,
            guarded=program.guarded,
            image=image,
            sites=program.sites,
        )

    def load(self, key: Key, draft: Draft, deadline: Deadline, output: KernelOutput | None = None) -> SharedKernel:
        """Load a kernel; it is held until `release`. What it prints goes to ``output``.

        Two sessions that bring the same text at once may both load it; one of the two is dropped.
        """
        kernel = SharedKernel(self._load(draft, deadline, output), draft, key)
        return kernel if kernel.private else self._share(kernel)

    def _load(self, draft: Draft, deadline: Deadline, output: KernelOutput | None) -> LoadedModule:
        if draft.image is not None and draft.guarded is not None:
            # The image's kernel has one parameter more than the program's.
            params = (*draft.signature.params, KernelParam(LAUNCH, draft.guarded.launch_bytes, 8, scalar=False))
            return self._device.load_image(draft.image, replace(draft.signature, params=params))
        if draft.module is None:
            raise InternalError("a kernel was kept without its image")
        return self._device.load(draft.module, deadline, *([output] if draft.prints else []))

    def release(self, kernel: SharedKernel) -> None:
        """Give back a kernel that the session's streams no longer run; if a private one fails to unload, it is held.

        Kernels that are idle for longest are unloaded until the rest is within the limits.
        """
        if kernel.private:
            self._device.unload(kernel.loaded)
            return
        surplus = []
        with self._lock:
            kernel.holders -= 1
            if kernel.holders:
                return
            self._idle[kernel.key] = kernel
            self._idle_bytes += kernel.text_bytes
            while len(self._idle) > self._max_idle or self._idle_bytes > self._max_idle_bytes:
                key, oldest = self._idle.popitem(last=False)
                self._idle_bytes -= oldest.text_bytes
                surplus.append(self._shared.pop(key))
        self._unload(surplus)

    def close(self) -> list[Exception]:
        """Unload what no session holds; return what the device raised."""
        with self._lock:
            idle, self._idle = list(self._idle.values()), OrderedDict()
            self._idle_bytes = 0
            for kernel in idle:
                del self._shared[kernel.key]
            self._drafts.clear()
            stuck, self._stuck = self._stuck, []
        return self._unload(stuck + idle)

    def _unload(self, kernels: list[SharedKernel]) -> list[Exception]:
        """Unload kernels that no session holds; what fails is tried again by `close`."""
        failures = []
        for kernel in kernels:
            if failed := attempt(self._device.unload, kernel.loaded):
                self._stuck.append(kernel)
                failures += failed
        return failures

    def _share(self, kernel: SharedKernel) -> SharedKernel:
        with self._lock:
            other = self._shared.setdefault(kernel.key, kernel)
            if other is kernel:
                return kernel
            self.hold(other)
        if failures := self._unload([kernel]):
            self.release(other)
            raise failures[0]
        return other


def _device_variables(module: Module, watch: Watch) -> list[Variable]:
    """Return each variable in device memory: a guest could otherwise declare what it may not allocate."""
    bodies = [function.body for function in module.functions() if function.body is not None]
    found = [variable for variable in module.variables() if variable.space in _CHARGED_SPACES]
    while bodies:
        for statement in watch.over(bodies.pop()):
            if isinstance(statement, Block):
                bodies.append(statement.body)
            elif isinstance(statement, Variable) and statement.space in _CHARGED_SPACES:
                found.append(statement)
    return found
