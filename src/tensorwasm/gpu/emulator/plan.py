"""What one kernel of a program needs: registers, shared and local memory, and how many blocks fit into a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorwasm.gpu.emulator.program import MAX_DEPTH, FunctionCode, Program
from tensorwasm.ptx.layout import variable_align, variable_bytes
from tensorwasm.ptx.model import Variable

_SHADOW_BYTES: Final = 24
_FRAME_ALIGN: Final = 32
_RETURN_BYTES: Final = 8
"""Of a place to return to; functions that do not call themselves are at most all active at once."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Needs of a kernel.

    Attributes:
        code: the kernel.
        widths: bits of every register slot of a batch.
        lane_bytes: registers, local memory and places to return to of one lane.
        shared: offset of each shared variable, by key.
        static_shared_bytes: shared memory that the program declares; dynamic shared memory follows.
        frame: offset of each local variable and what a call depth adds to it, by key.
        frame_bytes: local memory of one lane.
        mailbox: offset in it of the results of a returning function.
        granule_bytes: narrowest access to shared memory.
    """

    code: FunctionCode
    widths: tuple[int, ...]
    lane_bytes: int
    shared: dict[int, int]
    static_shared_bytes: int
    frame: dict[int, tuple[int, int]]
    frame_bytes: int
    mailbox: int
    granule_bytes: int

    def block_bytes(self, shared_bytes: int, threads: int) -> int:
        """Return the memory that the emulator needs for one block."""
        shadowed = shared_bytes * (1 + _SHADOW_BYTES // self.granule_bytes)
        return shadowed + threads * self.lane_bytes


def make_plan(program: Program, entry: str) -> Plan:
    """Work out what a kernel needs."""
    code = program.functions[entry]
    reached = _reach(program, code)
    widths = [0] * program.slots
    for one in reached:
        widths[one.first_slot : one.first_slot + len(one.widths)] = one.widths
    shared, static_bytes = _place_shared(reached)
    frame, frame_bytes, mailbox = _place_frames(reached)
    register_bytes = sum(-(-width // 8) for width in widths)
    saved_bytes = MAX_DEPTH * sum(-(-width // 8) for one in reached if one.recursive for width in one.widths)
    return Plan(
        code=code,
        widths=tuple(width or 32 for width in widths),
        lane_bytes=register_bytes + saved_bytes + frame_bytes + _RETURN_BYTES * len(reached) + 64,
        shared=shared,
        static_shared_bytes=static_bytes,
        frame=frame,
        frame_bytes=frame_bytes,
        mailbox=mailbox,
        granule_bytes=min(one.narrowest_bytes for one in reached),
    )


def _reach(program: Program, code: FunctionCode) -> list[FunctionCode]:
    reached, waiting = {code.function.name: code}, [code]
    while waiting:
        for name in waiting.pop().callees:
            if name not in reached:
                reached[name] = program.functions[name]
                waiting.append(program.functions[name])
    return list(reached.values())


def _place_shared(reached: list[FunctionCode]) -> tuple[dict[int, int], int]:
    """Place static variables one after the other and all of unknown size behind them."""
    found: dict[int, Variable] = {
        key: variable for one in reached for key, variable in one.variables.items() if variable.space == "shared"
    }
    places: dict[int, int] = {}
    end, dynamic_align = 0, 1
    for key, variable in found.items():
        align, size = variable_align(variable), variable_bytes(variable)
        if size == 0:
            dynamic_align = max(dynamic_align, align)
            continue
        places[key] = -(-end // align) * align
        end = places[key] + size
    dynamic = -(-end // max(dynamic_align, 16)) * max(dynamic_align, 16)
    unknown = [key for key in found if key not in places]
    places.update(dict.fromkeys(unknown, dynamic))
    return places, dynamic if unknown else end


def _place_frames(reached: list[FunctionCode]) -> tuple[dict[int, tuple[int, int]], int, int]:
    frame: dict[int, tuple[int, int]] = {}
    mailbox_bytes = max(sum(variable_bytes(one) for one in code.function.returns) for code in reached)
    end = mailbox_bytes
    for code in reached:
        if not code.recursive:
            end = _place_locals(code, frame, end, 0)
    base = end = -(-end // _FRAME_ALIGN) * _FRAME_ALIGN
    recursive = [code for code in reached if code.recursive]
    for code in recursive:
        end = _place_locals(code, frame, end, 0)
    stride = -(-(end - base) // _FRAME_ALIGN) * _FRAME_ALIGN
    for code in recursive:
        for key, variable in code.variables.items():
            if variable.space != "shared":
                frame[key] = (frame[key][0], stride)
    return frame, end + stride * MAX_DEPTH if stride else end, 0


def _place_locals(code: FunctionCode, frame: dict[int, tuple[int, int]], end: int, stride: int) -> int:
    for key, variable in code.variables.items():
        if variable.space in ("local", "param"):
            align = variable_align(variable)
            start = -(-end // align) * align
            frame[key] = (start, stride)
            end = start + variable_bytes(variable)
    return end
