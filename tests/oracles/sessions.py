"""What a saved session means: the bytes of its buffers, and what one that only adds comes to upon its parent."""

from __future__ import annotations

from dataclasses import replace

from tensorwasm.saved import PAGE_BYTES, SavedBuffer, SavedRun, SavedSession


def contents(buffer: SavedBuffer, parent: SavedBuffer | None = None) -> bytes:
    """Return what a buffer holds."""
    found = bytearray(buffer.size_bytes if parent is None else contents(parent))
    for run in buffer.runs:
        found[run.offset_bytes : run.offset_bytes + len(run.data)] = run.data
    assert len(found) == buffer.size_bytes
    return bytes(found)


def flattened(saved: SavedSession, parent: SavedSession) -> SavedSession:
    """Return the whole of a session that only adds to another."""
    old = {buffer.handle: buffer for buffer in parent.buffers}
    return replace(
        saved,
        buffers=tuple(
            replace(buffer, runs=(SavedRun(0, contents(buffer, old.get(buffer.handle))),)) for buffer in saved.buffers
        ),
    )


def assert_sparse(buffer: SavedBuffer, parent: SavedBuffer | None = None) -> None:
    """Check that exactly the pages that differ from the parent's, or from zero, are there, in as few runs as can be."""
    before = bytes(buffer.size_bytes) if parent is None else contents(parent)
    now = contents(buffer, parent)
    pages = range(0, buffer.size_bytes, PAGE_BYTES)
    wanted = [page for page in pages if now[page : page + PAGE_BYTES] != before[page : page + PAGE_BYTES]]
    kept = [
        page for run in buffer.runs for page in range(run.offset_bytes, run.offset_bytes + len(run.data), PAGE_BYTES)
    ]
    assert kept == wanted
    ends = [run.offset_bytes + len(run.data) for run in buffer.runs]
    assert all(end < run.offset_bytes for end, run in zip(ends, buffer.runs[1:], strict=False))
    assert all(isinstance(run.data, bytes) for run in buffer.runs)
