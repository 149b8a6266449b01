"""What sessions are made of: instances in this process, made, saved and brought back. All of it blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

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
from tensorwasm.runtime.snapshots.opening import LiveStatistics, Surroundings
from tensorwasm.runtime.snapshots.snapshot import Snapshot
from tensorwasm.service.snapshot_keys import SnapshotKeys, key_missing
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.runtime.invoke.invocation import Invocation
    from tensorwasm.runtime.snapshots.live import LiveInstance
    from tensorwasm.service.functions.resolution import Resolved

FOLDER: Final = "session/"


class Live(Protocol):
    """An instance that stays between calls; `tensorwasm.runtime.snapshots.live.LiveInstance` is one."""

    def call(
        self,
        export: str | None = None,
        args: Sequence[object] = (),
        *,
        input: bytes | None = None,  # noqa: A002 - the interface's own word for it
        deadline: Deadline | None = None,
    ) -> Invocation:
        """Call an export."""

    def cancel(self) -> None:
        """End the running call and refuse later ones, from any thread."""

    def resume(self) -> None:
        """Take calls again."""

    def statistics(self) -> LiveStatistics:
        """Return a snapshot."""

    def close(self) -> None:
        """Free everything."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What was written of an instance.

    Attributes:
        content_hash: of what is in the file, 32 bytes.
        size_bytes: length of the file.
    """

    content_hash: bytes
    size_bytes: int


def session_name(session_id: str, save: str) -> str:
    """Return the name that keeps one save of a session."""
    return f"{FOLDER}{session_id}/{save}"


def require_host_only(resolved: Resolved) -> None:
    """Refuse what needs a device: it would be in the process that serves, which touches none.

    Raises:
        NotSupported: the function is granted CUDA.
    """
    if resolved.cuda:
        raise NotSupported(
            "the function is granted cuda: sessions are in the serving process, which uses no GPU; invoke it instead"
        )


class InstanceFactory:
    """Makes, saves and brings back instances. Any thread may use it; every method blocks.

    Args:
        store: where saves are.
        seals: what signs them.
    """

    def __init__(self, store: ContentStore, seals: SnapshotKeys) -> None:
        """Take both; they outlive it."""
        self._store = store
        self._seals = seals

    def open(self, tenant: int, resolved: Resolved, options: SessionOptions, deadline: Deadline) -> Live:
        """Return a new instance, its start function run.

        Raises:
            NotCapturable: the module's instances cannot be saved.
            TensorWasmError: what `tensorwasm.runtime.Function.open` raises.
        """
        return resolved.function.open(
            tenant=str(tenant), deadline=deadline, input=options.input, **_surroundings(resolved, options)
        )

    def bring(
        self, tenant: int, resolved: Resolved, options: SessionOptions, snapshot: Snapshot, deadline: Deadline
    ) -> Live:
        """Return an instance that goes on where a saved one was.

        Raises:
            InvalidSnapshot: it is another module's, or contradicts itself.
            TensorWasmError: what `tensorwasm.runtime.Runtime.restore` raises.
        """
        opening = snapshot.opening((), str(tenant), deadline, _surroundings(resolved, options))
        return snapshot.restore(resolved.function, opening)

    def wake(self, tenant: int, resolved: Resolved, options: SessionOptions, name: str, deadline: Deadline) -> Live:
        """Return an instance that goes on from a save.

        Raises:
            SnapshotKeyMissing: the save is under a key that is not here.
            ArtifactCorrupt: the save is gone or damaged.
            TensorWasmError: what `bring` raises.
        """
        try:
            found = stored.fetch(TenantView(self._store, str(tenant)), name).read(self._seals.ring(tenant))
        except UnknownKey as error:
            raise key_missing(error) from error
        except (ArtifactNotFound, SealRefused, InvalidSnapshot) as error:
            raise ArtifactCorrupt(f"the session's saved state cannot be read: {error.kind}") from error
        with found as snapshot:
            return self.bring(tenant, resolved, options, snapshot, deadline)

    def save(self, tenant: int, resolved: Resolved, live: Live, name: str) -> Saved:
        """Write an instance to the store, under a name.

        Raises:
            NotCapturable: it holds what cannot be saved.
            QuotaExceeded: the tenant has no room for it.
            StoreUnavailable: the store cannot be reached, or is full.
        """
        view, ring = TenantView(self._store, str(tenant)), self._seals.ring(tenant)
        done = stored.keep(view, name, cast("LiveInstance", live), resolved.module, keys=ring)
        return Saved(done.content_hash, done.file_bytes)

    def copy(self, tenant: int, name: str, to: str) -> Saved:
        """Verify what a name leads to, and let another name lead there too.

        Raises:
            SnapshotKeyMissing: it is under a key that is not here.
            ArtifactCorrupt: it is gone or damaged.
            QuotaExceeded: the tenant has no room for another name.
            StoreUnavailable: the store cannot be reached, or is full.
        """
        view = TenantView(self._store, str(tenant))
        try:
            found = stored.fetch(view, name)
            with found.open(self._seals.ring(tenant)) as file:
                saved = Saved(file.content_hash, file.file_bytes)
        except UnknownKey as error:
            raise key_missing(error) from error
        except (ArtifactNotFound, SealRefused, InvalidSnapshot) as error:
            raise ArtifactCorrupt(f"the saved state cannot be read: {error.kind}") from error
        view.bind(to, found.digest)
        return saved

    def drop(self, tenant: int, names: Iterable[str]) -> None:
        """Take names away, and what no other name leads to; those that are not there are no matter.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        view = TenantView(self._store, str(tenant))
        for name in names:
            with suppress(ArtifactNotFound, ArtifactInUse):
                digest = view.resolve(name)
                view.unbind(name)
                view.delete(digest)

    def tenants(self) -> tuple[str, ...]:
        """Return who has kept something at some time."""
        return self._store.tenants()

    def names(self, tenant: str, folder: str, before_ns: int) -> tuple[str, ...]:
        """Return a tenant's names in a folder that lead to what was put before a time, in nanoseconds since 1970."""
        names = {name: digest for name, digest in self._store.names(tenant).items() if name.startswith(folder)}
        old = {stat.digest for stat in self._store.list(tenant) if stat.made_ns < before_ns} if names else set()
        return tuple(name for name, digest in names.items() if digest in old)


def _surroundings(resolved: Resolved, options: SessionOptions) -> Surroundings:
    return {"argv": options.argv, "env": dict(resolved.options.env) | dict(options.env)}
