"""Snapshots in a store of artifacts, by name, each with its module and the snapshots that it adds to."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.keys import KeyRing
from tensorwasm.artifacts.private_files import map_scratch, scratch
from tensorwasm.artifacts.sealed.writer import DEFAULT, SealedInfo, Sealing
from tensorwasm.artifacts.snapshot.file import SnapshotFile
from tensorwasm.artifacts.snapshot.head import MAX_DEPTH
from tensorwasm.artifacts.store import TenantView
from tensorwasm.artifacts.values import Buffer
from tensorwasm.errors import ArtifactNotFound, InvalidArgs, InvalidSnapshot, WrongModule, WrongParent
from tensorwasm.runtime.snapshots.archive import Name, open_file, read_file, write_live
from tensorwasm.runtime.snapshots.live import LiveInstance
from tensorwasm.runtime.snapshots.snapshot import Snapshot
from tensorwasm.values import Deadline

_MODULE: Final = "module"
_SNAPSHOT: Final = "snapshot"
_TRIES: Final = 3
"""Again if something is not there: a renewal may just have put it under another hash."""


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot in a store. Its signature has not been verified yet: `open` and `read` do that, as of any file."""

    digest: bytes  # of the artifact
    # Its bytes, and those of the snapshots that it adds to, nearest first; mappings that outlive the artifacts.
    files: tuple[memoryview, ...]

    def open(self, keys: KeyRing | None = None, module_hash: bytes | None = None) -> SnapshotFile:
        """Open it and all that it adds to, with the settings' keys and for any module unless given.

        Raises:
            SealRefused: one of its kinds says why.
            InvalidSnapshot: its content makes no sense, although it was signed.
            TooLarge: it declares, or has, more than a writer makes.
        """
        return open_file(self.files[0], keys or KeyRing.from_settings(), self.files[1:], module_hash)

    def read(self, keys: KeyRing | None = None) -> Snapshot:
        """Read it into memory, as one, for `tensorwasm.runtime.Runtime.restore`; close it when done.

        Raises what `open` raises, and `CapacityExhausted` if the system has no memory for it.
        """
        return read_file(self.files[0], keys or KeyRing.from_settings(), self.files[1:])


def fetch_snapshot(view: TenantView, name: str) -> StoredSnapshot:
    """Return the snapshot of a name, with all that it adds to. Blocks.

    Raises:
        ArtifactNotFound: the tenant has none of that name.
        InvalidArgs: the name leads to something else.
        InvalidSnapshot: it adds to more than any snapshot may.
        ArtifactCorrupt: a part of it is damaged.
        StoreUnavailable: the store cannot be reached.
    """
    for _ in range(_TRIES):
        with suppress(ArtifactNotFound):
            return _walk(view, name, view.resolve(name))
    return _walk(view, name, view.resolve(name))


def _walk(view: TenantView, name: str, first: bytes) -> StoredSnapshot:
    files: list[memoryview] = []
    digest: bytes | None = first
    while digest is not None:
        stat = view.stat(digest)
        if stat.kind != _SNAPSHOT:
            raise InvalidArgs(f"{name[:64]!r} is the name of a {stat.kind}, not of a snapshot")
        if len(files) > MAX_DEPTH:  # an attacker who can write to the store may have made a cycle
            raise InvalidSnapshot(f"at most {MAX_DEPTH} snapshots add to each other")
        files.append(view.get(digest))
        digest = next((other for other in stat.refers_to if view.stat(other).kind == _SNAPSHOT), None)
    return StoredSnapshot(first, tuple(files))


def fetch_module(view: TenantView, snapshot: Snapshot) -> memoryview:
    """Return the module of a snapshot, by the hash that is signed with it. Blocks; errors as of `fetch_snapshot`."""
    return view.get(snapshot.saved.module_hash)


def store_snapshot(
    view: TenantView,
    name: str,
    source: LiveInstance | Name,
    module: Buffer,
    *,
    parent: str | None = None,
    keys: KeyRing | None = None,
    sealing: Sealing = DEFAULT,
    deadline: Deadline | None = None,
) -> SealedInfo:
    """Store an instance, or a snapshot file, with its module, and bind a name to it. Blocks.

    A file is verified as a whole. The name is bound last: a crash leaves it as it was, and what was stored by then to
    `Store.collect`. With `parent`, the name of an earlier state, only what changed since is kept; of a file, `parent`
    is what it adds to. The settings' keys are used for None; `sealing` and `deadline` are those of
    `tensorwasm.runtime.Runtime.snapshot`.

    Raises:
        QuotaExceeded: the tenant has no room for it.
        WrongModule: it runs another module.
        ArtifactNotFound: there is no such parent, or it was removed meanwhile.
        StoreUnavailable: the store cannot be reached, or there is no room to write to.
        InvalidArgs: the file cannot be read, or the name cannot be one.
        TensorWasmError: what `fetch_snapshot` and `tensorwasm.runtime.Runtime.snapshot` raise.
    """
    ring = keys or KeyRing.from_settings()
    module_hash = blake3(module)
    if isinstance(source, LiveInstance) and source.function.module_hash != module_hash:
        raise WrongModule(f"the instance runs the module {source.function.module_hash.hex()}, not {module_hash.hex()}")
    older = None if parent is None else fetch_snapshot(view, parent)
    files = () if older is None else older.files
    with scratch() as file:
        if isinstance(source, LiveInstance):
            written = write_live(source, file, ring, files, sealing, deadline)
            data = map_scratch(file)
        else:
            _copy(source, file)
            data = map_scratch(file)
            written = _verify(open_file(data, ring, files, module_hash), adds=older is not None)
    references = [view.put(_MODULE, module), *(() if older is None else (older.digest,))]
    view.bind(name, view.put(_SNAPSHOT, data, references))
    return written


def _copy(source: Name, file: BinaryIO) -> None:
    """Copy a file, so that what is stored is what was verified, even if the file changes."""
    try:
        with Path(source).open("rb") as given:
            shutil.copyfileobj(given, file)
    except (OSError, ValueError) as error:
        raise InvalidArgs(f"cannot copy {source}: {getattr(error, 'strerror', 'no such path')}") from None


def _verify(file: SnapshotFile, *, adds: bool) -> SealedInfo:
    with file:
        if adds and file.instance.parent is None:
            raise WrongParent("the snapshot is whole: it adds to no other")
        file.check_content()
        return SealedInfo(file.content_hash, file.header.content_bytes, file.file_bytes, file.header.key_id)
