"""Which kernels of a PTX text a device takes."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwasm import ptx
from tensorwasm.errors import MalformedPtx
from tensorwasm.gpu.device.port import Device
from tensorwasm.values import Deadline


@dataclass(frozen=True, slots=True)
class KernelState:
    """Whether a device takes one kernel.

    Attributes:
        kernel: its name.
        state: ``ok``, or the kind of the error that loading it raises.
        line: of the PTX that is refused, 0 if the error names none.
        reason: the error's message, empty for none.
    """

    kernel: str
    state: str = "ok"
    line: int = 0
    reason: str = ""


def survey(device: Device, text: str | bytes, deadline: Deadline) -> tuple[KernelState, ...]:
    """Load every kernel of a text by itself and return the results.

    Raises:
        MalformedPtx: the text is no PTX.
        UnsupportedPtx: none of its modules is for the device.
        InvokeTimeout: the deadline passed.
        DeviceUnavailable: this machine cannot assemble it now.
    """
    info = device.info
    module = ptx.select(ptx.parse_variants(text, deadline), info.compute_capability, info.ptx_version)
    names = [function.name for function in module.functions() if function.entry and function.body is not None]
    states = []
    for name in names:
        try:
            device.unload(device.load(ptx.extract(module, name, deadline), deadline))
        except MalformedPtx as error:
            states.append(KernelState(name, error.kind, error.line, error.message))
        else:
            states.append(KernelState(name))
    return tuple(states)
