"""Instances of sessions in this process: made, saved and restored. `InstanceFactory` blocks; `GuestThreads` run it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, ParamSpec, TypeVar

from tensorwasm.artifacts.store import ContentStore, TenantView
from tensorwasm.database.sessions import SessionOptions
from tensorwasm.errors import (
    ArtifactCorrupt,
    ArtifactInUse,
    ArtifactNotFound,
    InvalidSnapshot,
    NotSupported,
    SealRefused,
    UnknownKey,
)
from tensorwasm.runtime.snapshots import stored
from tensorwasm.runtime.snapshots.live import LiveInstance, RestoreOptions
from tensorwasm.runtime.snapshots.snapshot import Snapshot
from tensorwasm.service.functions.loading import Resolved
from tensorwasm.service.snapshot_keys import SnapshotKeys, key_missing
from tensorwasm.values import Deadline
from tensorwasm.yielding import begin_yielding

FOLDER: Final = "session/"

_BATCH: Final = 256
"""Names that are looked up in the database at a time."""

_Params = ParamSpec("_Params")
_Value = TypeVar("_Value")


class GuestThreads:
    """A pool of threads that yield to others as guests' threads do."""

    def __init__(self, count: int, name: str) -> None:
        """Start no thread yet."""
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name, initializer=begin_yielding)

    async def run(self, function: Callable[_Params, _Value], *args: _Params.args, **kwargs: _Params.kwargs) -> _Value:
        """Call a function that blocks, on one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **kwargs))

    def close(self) -> None:
        """Accept no more calls and drop waiting ones; does not wait for running ones."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def session_name(session_id: str, save: str) -> str:
    """Return the artifact name of one save of a session."""
    return f"{FOLDER}{session_id}/{save}"


def require_host_only(resolved: Resolved) -> None:
    """Refuse functions that need a device, since the serving process uses none: NotSupported if one is granted CUDA."""
    if resolved.cuda:
        raise NotSupported(
            "the function is granted cuda: sessions are in the serving process, which uses no GPU; invoke it instead"
        )


@contextmanager
def reading_saved_state() -> Iterator[None]:
    """Convert errors of reading a stored file.

    Raises:
        SnapshotKeyMissing: the key that it was signed with is missing.
        ArtifactCorrupt: it is gone or damaged.
    """
    try:
        yield
    except UnknownKey as error:
        raise key_missing(error) from error
    except (ArtifactNotFound, SealRefused, InvalidSnapshot) as error:
        raise ArtifactCorrupt(f"the saved state cannot be read: {error.kind}") from error


@dataclass(frozen=True, slots=True, eq=False)
class InstanceFactory:
    """Makes, saves and restores instances. Thread-safe; every method blocks, and raises as its store does."""

    store: ContentStore
    keys: SnapshotKeys

    def open(self, tenant: int, resolved: Resolved, options: SessionOptions, deadline: Deadline) -> LiveInstance:
        """Return a new instance whose start function has run; raises as `Function.open`."""
        return resolved.function.open(
            tenant=str(tenant), deadline=deadline, input=options.input, **_surroundings(resolved, options)
        )

    def restore(
        self, tenant: int, resolved: Resolved, options: SessionOptions, snapshot: Snapshot, deadline: Deadline
    ) -> LiveInstance:
        """Return an instance with a snapshot's state; raises as `Snapshot.restore`."""
        opening = snapshot.opening((), str(tenant), deadline, _surroundings(resolved, options))
        return snapshot.restore(resolved.function, opening)

    def load(
        self, tenant: int, resolved: Resolved, options: SessionOptions, name: str, deadline: Deadline
    ) -> LiveInstance:
        """Return an instance with a save's state; raises as `reading_saved_state` and `restore`."""
        with reading_saved_state():
            found = stored.fetch_snapshot(TenantView(self.store, str(tenant)), name).read(self.keys.ring(tenant))
        with found as snapshot:
            return self.restore(tenant, resolved, options, snapshot, deadline)

    def save(self, tenant: int, resolved: Resolved, live: LiveInstance, name: str) -> None:
        """Write an instance to the store, under a name; raises what `store_snapshot` does."""
        view = TenantView(self.store, str(tenant))
        stored.store_snapshot(view, name, live, resolved.module, keys=self.keys.ring(tenant))

    def copy(self, tenant: int, name: str, to: str) -> tuple[bytes, int]:
        """Verify a save, give it another name, and return the hash of its content, 32 bytes, and its length.

        Raises as `reading_saved_state`, and `QuotaExceeded`.
        """
        view = TenantView(self.store, str(tenant))
        with reading_saved_state():
            found = stored.fetch_snapshot(view, name)
            with found.open(self.keys.ring(tenant)) as file:
                saved = file.content_hash, file.file_bytes
        view.bind(to, found.digest)
        return saved

    def drop(self, tenant: int, names: Iterable[str]) -> None:
        """Delete names, and files without another name; missing ones are skipped."""
        view = TenantView(self.store, str(tenant))
        for name in names:
            with suppress(ArtifactNotFound, ArtifactInUse):
                digest = view.resolve(name)
                view.unbind(name)
                view.delete(digest)

    def tenants(self) -> tuple[str, ...]:
        """Return all tenants that ever stored a file."""
        return self.store.tenants()

    def names(self, tenant: str, folder: str, before_ns: int) -> tuple[str, ...]:
        """Return a tenant's names in a folder whose files were stored before a time, in nanoseconds since 1970."""
        names = {name: digest for name, digest in self.store.names(tenant).items() if name.startswith(folder)}
        old = {stat.digest for stat in self.store.list(tenant) if stat.made_ns < before_ns} if names else set()
        return tuple(name for name, digest in names.items() if digest in old)


async def delete_orphans(
    threads: GuestThreads,
    factory: InstanceFactory,
    folder: str,
    before_ns: int,
    find_orphans: Callable[[Sequence[str]], Awaitable[Collection[str]]],
) -> int:
    """Delete files whose names start with a folder and that no row refers to; return their number.

    Files stored after a time, in nanoseconds since 1970, are kept: their rows may be about to be written.
    """
    count = 0
    for tenant in await threads.run(factory.tenants):
        names = await threads.run(factory.names, tenant, folder, before_ns)
        for start in range(0, len(names), _BATCH):
            orphans = await find_orphans(names[start : start + _BATCH])
            await threads.run(factory.drop, int(tenant), orphans)
            count += len(orphans)
    return count


def _surroundings(resolved: Resolved, options: SessionOptions) -> RestoreOptions:
    return {"argv": options.argv, "env": dict(resolved.options.env) | dict(options.env)}
