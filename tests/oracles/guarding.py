"""A kernel as it runs beside others: guarded, printed and verified, with what a launch of it needs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorwasm import ptx
from tensorwasm.ptx.guard import DataImage, Guarded, guard
from tensorwasm.ptx.guarded import LAUNCH_BYTES
from tensorwasm.ptx.model import Module
from tensorwasm.ptx.verifier import Verified, verify
from tensorwasm.values import Dim3

EMULATOR_SHARED_BASE = 0
"""Where the emulator puts the first variable in shared memory."""


@dataclass(frozen=True)
class GuardedText:
    """A text with the launch parameter, for the emulator.

    Attributes:
        text: what is launched.
        verified: what the verifier says of it; None for a text that did not pass it.
    """

    text: str
    verified: Verified | None = None
    data: DataImage = field(default_factory=DataImage)
    program_shared_bytes: int = 0

    @property
    def aligns(self) -> Sequence[int]:
        """What a launch makes the program's arguments multiples of."""
        return () if self.verified is None else self.verified.param_aligns

    def takes(self, block: Dim3) -> bool:
        """Return whether a launch with such blocks is not refused."""
        return self.verified is None or self.verified.takes(block)

    def shared_bytes(self, dynamic_bytes: int) -> int:
        """Return the dynamic shared memory of a launch that asks for some."""
        if self.verified is None or not self.verified.arrays.dynamic:
            return dynamic_bytes
        reserve_bytes = self.verified.arrays.shared_reserve_bytes
        needed = -(-(self.program_shared_bytes + dynamic_bytes) // 16) * 16 + reserve_bytes
        return max(needed, reserve_bytes + 16, -(-self.verified.least_shared_bytes // 16) * 16)

    def image(self, address: int) -> bytes:
        """Return the first contents of the module's variables at an address."""
        made = bytearray(self.data.image.ljust(self.data.size_bytes, b"\0"))
        for at in self.data.pointers:
            value = int.from_bytes(made[at : at + 8], "little") + address
            made[at : at + 8] = (value % (1 << 64)).to_bytes(8, "little")
        return bytes(made)


def launch_block(high: int, data: int, deadline: int, flag: int, status: int, shared: int, dynamic: int) -> bytes:
    """Return the launch parameter: the window's high half, addresses, and the bytes of shared memory."""
    made = struct.pack("<IIQQQIIII", high, data, deadline, flag, status, shared, 0, dynamic, 0)
    assert len(made) == LAUNCH_BYTES
    return made


def guarded_text(text: str, entry: str) -> GuardedText:
    """Guard and verify a kernel; raise what the guard or the verifier raises."""
    return verified_text(guard(ptx.extract(ptx.parse_variants(text)[0], entry), EMULATOR_SHARED_BASE))


def verified_text(made: Guarded, module: Module | None = None) -> GuardedText:
    """Verify what a guard has written, or another module in its place."""
    printed = ptx.render(module or made.module)
    return GuardedText(printed, verify(printed, EMULATOR_SHARED_BASE), made.data, made.program_shared_bytes)
