"""Writes snapshots, and checks them."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from tensorwasm.artifacts.ring import KeyRing
from tensorwasm.artifacts.scratch import map_scratch, scratch
from tensorwasm.artifacts.sealed import DEFAULT, Content, Digest, Sealing, renew_sealed, write_sealed
from tensorwasm.artifacts.snapshot.file import FindParent, SnapshotFile, require_base
from tensorwasm.artifacts.snapshot.head import decode_head, encode_head, list_bytes
from tensorwasm.errors import WrongParent
from tensorwasm.saved import SavedInstance


def write_snapshot(
    to: Path | BinaryIO,
    instance: SavedInstance,
    ring: KeyRing,
    sealing: Sealing = DEFAULT,
    *,
    parent: SnapshotFile | None = None,
) -> Digest:
    """Write a snapshot; at a path whole or not at all, and it is on the disk when this returns.

    Blocks while it hashes, compresses and waits for the disk; nothing of the instance may change meanwhile.

    Args:
        to: the path that it replaces or becomes, or a new file that is open.
        instance: what is saved; its runs are not copied.
        ring: its signer signs, its first cipher encrypts.
        sealing: how.
        parent: the snapshot that the instance adds to, if it does.

    Raises:
        InvalidSnapshot: the instance contradicts itself, or has more of something than a snapshot may.
        WrongParent: its parent is not the one that is given.
        SigningNotConfigured: the ring has no key for what is asked.
        TooLarge: there is more than a reader takes.
        OSError: it cannot be written; the path has what it had before (`durable.replace`).
    """
    if (None if parent is None else parent.content_hash) != instance.parent:
        raise WrongParent("the instance adds to another snapshot than the one that is given")
    head = encode_head(instance, 0 if parent is None else parent.depth + 1)
    rest = list(list_bytes(instance))
    layout = decode_head(head, len(head) + sum(map(len, rest)))
    if parent is not None:
        require_base(layout, parent.layers[0])
    return write_sealed(to, head, rest, ring, sealing, content=Content.SNAPSHOT, module_hash=instance.module_hash)


def flatten(path: Path, snapshot: SnapshotFile, ring: KeyRing, sealing: Sealing = DEFAULT) -> Digest:
    """Write a snapshot, with all that it adds to, as one that adds to none.

    It takes as much memory as the instance has.

    Raises:
        WrongParent: what it adds to was not opened.
        Damaged: a file was changed since it was opened.
        SigningNotConfigured: the ring has no key for what is asked.
        TooLarge: there is more than a reader takes.
        OSError: something cannot be read or written; the path has what it had before.
    """
    return write_snapshot(path, snapshot.load_whole(), ring, sealing)


def renew_snapshot(data: memoryview, ring: KeyRing) -> memoryview | None:
    """Return a snapshot's bytes signed, and encrypted if they were, with the keys of today; None if they are already.

    What adds to it still does, and it to its parent: hashes of content do not change.

    Raises:
        SealRefused: one of its kinds says why.
        SigningNotConfigured: the ring has no key that signs.
        TooLarge: it says, or is, more than a writer makes.
        StoreUnavailable: there is no room for it.
    """
    with scratch() as file:
        done = renew_sealed(data, file, ring, content=Content.SNAPSHOT)
        return None if done is None else map_scratch(file)


def verify_snapshot(
    path: Path, ring: KeyRing, *, find_parent: FindParent | None = None, allow_unsigned: bool = False
) -> None:
    """Check everything that can be checked of a snapshot and all that it adds to, down to the last block.

    Raises:
        SealRefused: one of its kinds says why.
        InvalidSnapshot: what is in it makes no sense, although it was signed.
        TooLarge: it says, or is, more than a writer makes.
        OSError: it cannot be read.
    """
    with SnapshotFile.open(path, ring, find_parent=find_parent, allow_unsigned=allow_unsigned) as snapshot:
        snapshot.check_content()
