"""What instances are, byte by byte, without the code that files them."""

from __future__ import annotations

import dataclasses

from tensorwasm.saved import SavedInstance


def spread(size_bytes, runs, under=b""):
    """The bytes of a memory or buffer: its runs over what was there, or over zeros."""
    found = bytearray(under.ljust(size_bytes, b"\0"))
    for run in runs:
        found[run.offset_bytes : run.offset_bytes + len(run.data)] = run.data
    return bytes(found)


def contents(instance: SavedInstance, parent=None):
    """Everything an instance is: fields by name, and each memory and buffer as bytes."""
    fields = {f.name: getattr(instance, f.name) for f in dataclasses.fields(instance) if f.name != "parent"}
    below = parent or {}
    under = below.get("memories", [])
    fields["memories"] = [
        spread(m.size_bytes, m.runs, under[i] if under else b"") for i, m in enumerate(instance.memories)
    ]
    session = instance.session
    fields["buffers"] = {}
    if session is not None:
        for buffer in session.buffers:
            old = below.get("buffers", {}).get(buffer.handle, b"")
            base = old if len(old) == buffer.size_bytes else b""
            fields["buffers"][buffer.handle] = spread(buffer.size_bytes, buffer.runs, base)
        bare = tuple(dataclasses.replace(buffer, runs=()) for buffer in session.buffers)
        fields["session"] = dataclasses.replace(session, buffers=bare)
    return fields


def freeze(instance: SavedInstance) -> SavedInstance:
    """The same instance with bytes of its own."""

    def copy(parts):
        return tuple(
            dataclasses.replace(p, runs=tuple(dataclasses.replace(r, data=bytes(r.data)) for r in p.runs))
            for p in parts
        )

    session = instance.session
    if session is not None:
        session = dataclasses.replace(session, buffers=copy(session.buffers))
    return dataclasses.replace(instance, memories=copy(instance.memories), session=session)
