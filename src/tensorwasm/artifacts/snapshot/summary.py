"""What a snapshot is, for people: sizes, numbers and names, and nothing that a guest keeps to itself."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwasm.artifacts.snapshot.file import SnapshotFile


@dataclass(frozen=True, slots=True)
class Summary:
    """A snapshot in numbers and names: no contents of memories, buffers, globals, input or kernels.

    Attributes:
        content_hash: hexadecimal, as are the other hashes and ids.
        module_hash: of the module it belongs to.
        parent: content hash of what it adds to, empty if it is whole.
        depth: how many snapshots it adds to, one after the other.
        made_unix_ms: when it was captured.
        signature: ``hmac_sha256``, ``ed25519`` or ``none``.
        key_id: of the key that signed it.
        compression: ``zstd`` or ``none``.
        cipher: ``chacha20_poly1305`` or ``none``.
        file_bytes: length of the file.
        content_bytes: length of what is in it.
        memory_bytes: length of each memory.
        memory_stored_bytes: of each memory, what this snapshot itself has.
        globals: how many there are.
        tables: how many differ from what the module makes.
        input_bytes: what has not been read yet.
        grants: names.
        gpu: whether there is a session.
        buffer_bytes: length of all device buffers together.
        buffers: how many there are.
        kernels: names of their entry points.
    """

    content_hash: str
    module_hash: str
    parent: str
    depth: int
    made_unix_ms: int
    signature: str
    key_id: str
    compression: str
    cipher: str
    file_bytes: int
    content_bytes: int
    memory_bytes: tuple[int, ...]
    memory_stored_bytes: tuple[int, ...]
    globals: int
    tables: int
    input_bytes: int
    grants: tuple[str, ...]
    gpu: bool
    buffer_bytes: int
    buffers: int
    kernels: tuple[str, ...]


def summarize(snapshot: SnapshotFile) -> Summary:
    """Return the summary of a snapshot that was verified; what it adds to need not be open."""
    header, instance, session = snapshot.header, snapshot.instance, snapshot.instance.session
    buffers = session.buffers if session else ()
    return Summary(
        content_hash=snapshot.content_hash.hex(),
        module_hash=instance.module_hash.hex(),
        parent=(instance.parent or b"").hex(),
        depth=snapshot.depth,
        made_unix_ms=instance.made_unix_ms,
        signature=header.algorithm.name.lower() if header.algorithm else "none",
        key_id=header.key_id,
        compression=header.compression.name.lower(),
        cipher=header.cipher.name.lower(),
        file_bytes=snapshot.file_bytes,
        content_bytes=header.content_bytes,
        memory_bytes=tuple(memory.size_bytes for memory in instance.memories),
        memory_stored_bytes=tuple(sum(size for _, size, _ in p.runs) for p in snapshot.layers[0].layout.memories),
        globals=len(instance.globals),
        tables=len(instance.tables),
        input_bytes=len(instance.input),
        grants=instance.grants,
        gpu=session is not None,
        buffer_bytes=sum(buffer.size_bytes for buffer in buffers),
        buffers=len(buffers),
        kernels=tuple(kernel.entry for kernel in session.kernels) if session else (),
    )
