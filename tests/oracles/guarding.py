"""A kernel as it runs beside others on the emulator: guarded, printed and verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorwasm import ptx
from tensorwasm.gpu.device.guarded_kernel import GuardedKernel, guard_kernel, verify_kernel
from tensorwasm.ptx.guard import Guarded
from tensorwasm.ptx.guarded import Width
from tensorwasm.ptx.model import Module
from tensorwasm.values import Dim3

EMULATOR_SHARED_BASE = 0
"""Where the emulator puts the first variable in shared memory."""


@dataclass(frozen=True)
class GuardedText:
    """A text with the launch parameter, for the emulator.

    Attributes:
        text: what is launched.
        kernel: what launches ensure; None for a text that did not pass the verifier.
    """

    text: str
    kernel: GuardedKernel | None = None

    @property
    def wide(self) -> bool:
        """Whether it is for windows of any size."""
        return self.kernel is not None and self.kernel.verified.width == "wide"

    @property
    def aligns(self) -> Sequence[int]:
        """What a launch makes the program's arguments multiples of."""
        return () if self.kernel is None else self.kernel.verified.param_aligns

    def takes(self, block: Dim3) -> bool:
        """Return whether a launch with such blocks is not refused."""
        return self.kernel is None or self.kernel.verified.takes(block)

    def shared_bytes(self, dynamic_bytes: int) -> int:
        """Return the dynamic shared memory of a launch that asks for some."""
        return dynamic_bytes if self.kernel is None else self.kernel.shared.total(dynamic_bytes)

    def image(self, address: int) -> bytes:
        """Return the first contents of the module's variables at an address."""
        return b"" if self.kernel is None else self.kernel.image(address)


def guarded_text(text: str, entry: str, width: Width = "narrow") -> GuardedText:
    """Guard and verify a kernel; raise what the guard or the verifier raises."""
    module = ptx.extract(ptx.parse_variants(text)[0], entry)
    return _printed(*guard_kernel(module, EMULATOR_SHARED_BASE, width=width))


def verified_text(made: Guarded, module: Module | None = None) -> GuardedText:
    """Verify what a guard has written, or another module in its place."""
    return _printed(*verify_kernel(replace(made, module=module or made.module), EMULATOR_SHARED_BASE))


def _printed(module: Module, kernel: GuardedKernel) -> GuardedText:
    return GuardedText(ptx.render(module), kernel)
