"""What programs over streams mean: their steps, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.schedules import SLOTS, Step


def outcome(steps: Sequence[Step]) -> tuple[list[int], list[int]]:
    """Return the words of the device and of the host after a program; at first slot ``n`` holds n and 100 + n."""
    device, host = list(range(SLOTS)), [100 + slot for slot in range(SLOTS)]
    for step in steps:
        match step.kind:
            case "mix":
                device[step.to] = (device[step.to] * step.factor + device[step.source] + 1) & 0xFFFF_FFFF
            case "zero":
                device[step.to] = 0
            case "in":
                device[step.to] = host[step.source]
            case "out":
                host[step.source] = device[step.to]
    return device, host
