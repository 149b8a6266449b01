"""Why an engine has refused a module, where that is a proposal that only its code uses."""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import InvalidWasm, UnsupportedProposal
from tensorwasm.values import MIB
from tensorwasm.wasm.module import decode

MAX_BYTES: Final = 4 * MIB
"""Most code that is looked through: Python reads some megabytes of it a second."""


def find_proposal(wasm: bytes) -> UnsupportedProposal | None:
    """Return the error that names the proposal of the first instruction that belongs to one that is off.

    Returns:
        The error; None if there is no such instruction in the first `MAX_BYTES` of code, or the code is malformed
        before it.
    """
    looked_bytes = 0
    try:
        for body in decode(wasm).bodies:
            looked_bytes += len(body.raw)
            if looked_bytes > MAX_BYTES:
                return None
            body.instructions()
    except UnsupportedProposal as found:
        return found
    except InvalidWasm:
        return None
    return None
