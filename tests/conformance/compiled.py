"""The functions that compiled code calls, called as it would."""

from __future__ import annotations

import ctypes

from conformance.rig import Rig, until
from tensorwasm.values import NEVER, Deadline

INT, UINT, U64, SIZE, AT = ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
SIGNATURES = {
    "launch_kernel": (AT, *[UINT] * 7, AT, AT, AT),
    "stream_query": (AT,),
    "memcpy_htod_async": (U64, AT, SIZE, AT),
    "memcpy_dtoh_async": (AT, U64, SIZE, AT),
    "graph_launch": (AT, AT),
    "launch_host_func": (AT, AT, AT),
    "context_current": (AT,),
}
HOST_FUNCTION = ctypes.CFUNCTYPE(None, AT)
NOT_READY = 600


class Compiled:
    """Calls the table as compiled code would, on one stream of its own.

    Args:
        rig: what its kernels are.
    """

    def __init__(self, rig: Rig) -> None:
        self.device, self.rig = rig.device, rig
        self.own = rig.stream()
        native = rig.device.native
        self.stream = native.stream(self.own)
        self.kernel = native.kernel(rig.loaded, "mix", NEVER).handle
        for name, kinds in SIGNATURES.items():
            setattr(self, name, ctypes.CFUNCTYPE(INT, *kinds)(getattr(native.table, name)))

    def confine(self, deadline: Deadline = NEVER) -> None:
        self.device.native.confine(self.own, self.rig.regions, deadline)

    def mix(self, to: int, source: int, factor: int) -> int:
        """Start the kernel ``mix``; return the code. The parameters may change as soon as the call is over."""
        values = (U64(to), U64(source), UINT(factor))
        places = (AT * 3)(*(ctypes.addressof(value) for value in values))
        code = self.launch_kernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, self.stream, ctypes.addressof(places), None)
        for value in values:
            value.value = 0
        self.device.native.started(self.own, NEVER)
        return code

    def spin(self) -> int:
        """Query until the answer is not "not ready"; return it."""
        codes = []
        until(lambda: codes.append(self.stream_query(self.stream)) or codes[-1] != NOT_READY)
        return codes[-1]
