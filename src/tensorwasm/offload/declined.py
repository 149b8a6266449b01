"""Why a loop nest stays on WebAssembly's own code."""

from __future__ import annotations

from enum import Enum


class DeclineReason(Enum):
    """A reason's stable name, and what it means."""

    BUSY = "kernels that the guest has started may still reach its memory"
    CALL = "it calls a function"
    CONTROL_FLOW = "a loop is left in more than one place, or its iterations cannot be counted"
    CRASH = "the process that was to make its code ended"
    DATA_DEPENDENT = "control flow, an address or a bound depends on data that it loads or computes"
    DEVICE = "the device refused its work"
    DIFFERED = "a run of it that was compared differed from WebAssembly"
    FAULT = "the analysis itself failed"
    INSTRUCTION = "it has an instruction that is not handled"
    MALFORMED = "its code is not valid"
    NOT_AFFINE = "an address, a bound or a condition is not affine in loop counters"
    NOT_A_NUMBER = "arithmetic made a NaN whose bits can be seen"
    NOT_READY = "its code is being made"
    NOT_WORTH = "it is faster in the guest, or too little work"
    NO_MACHINE_CODE = "no machine code can be made of it"
    OUT_OF_BOUNDS = "an access is beyond the end of memory"
    OUT_OF_MEMORY = "making its code takes more memory than it may have"
    OUT_OF_TIME = "making its code takes too long"
    SEQUENTIAL = "none of its loops can run in parallel"
    TOO_LARGE = "it exceeds a limit of the analysis"
    UNSETTLED = "its integer inputs differ at nearly every call"
    WRAPS = "a pointer passes 2**32"


class Declined(Exception):
    """A nest is not offloaded; the loop runs as it is."""

    def __init__(self, reason: DeclineReason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
