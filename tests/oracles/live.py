"""Judges for live instances: what a call came to, and everything that a guest could ever see of its state."""

from __future__ import annotations

from tensorwasm.errors import GuestTrap
from tensorwasm.runtime.snapshots.live import LiveInstance
from tensorwasm.saved import SavedInstance


def outcome_of(live: LiveInstance, export: str, args: tuple[int | float, ...]) -> object:
    """Return a call's results to the bit, or the name of its trap."""
    try:
        return live.call(export, args).to_json()
    except GuestTrap as trap:
        return trap.trap


def state_of(saved: SavedInstance) -> object:
    """Return what is saved of an instance as values of their own, whatever the memory that they lie in."""
    memories = []
    for memory in saved.memories:
        data = bytearray(memory.size_bytes)
        for run in memory.runs:
            data[run.offset_bytes : run.offset_bytes + len(run.data)] = run.data
        memories.append(bytes(data))
    return memories, saved.globals, saved.tables, saved.dropped_data, saved.dropped_elements, saved.input


def state_now(live: LiveInstance) -> object:
    """Return the state of a live instance."""
    with live.captured() as saved:
        return state_of(saved)
