"""Where the `snapshot` commands find snapshots and leave them: in files, and as artifacts of a tenant's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import InvalidArgs

if TYPE_CHECKING:
    from tensorwasm.artifacts.sealed.writer import SealedInfo
    from tensorwasm.artifacts.snapshot.file import SnapshotFile
    from tensorwasm.artifacts.store import TenantView
    from tensorwasm.runtime import Snapshot
    from tensorwasm.runtime.snapshots.archive import File
    from tensorwasm.runtime.snapshots.live import LiveInstance

PREFIX: Final = "artifact:"


@dataclass(frozen=True, slots=True)
class Place:
    """A place as it is typed.

    Attributes:
        text: a path, or ``artifact:NAME``; a file of such a name is ``./artifact:NAME``.
        tenant: whose artifacts; None takes the default tenant's.
    """

    text: str
    tenant: str | None

    @property
    def name(self) -> str | None:
        """The artifact's name, None if it is a file."""
        return self.text.removeprefix(PREFIX) if self.text.startswith(PREFIX) else None

    def find(self) -> Sequence[File]:
        """Return the snapshot that is there and, of an artifact, what it adds to.

        Raises:
            TensorWasmError: what `tensorwasm.runtime.snapshots.stored.fetch` raises.
        """
        from tensorwasm.runtime.snapshots import stored  # noqa: PLC0415 - keeps --help quick

        return [self.text] if self.name is None else stored.fetch(self._view(), self.name).files

    def load_module(self, snapshot: Snapshot) -> memoryview:
        """Return the module that was kept with a snapshot.

        Raises:
            InvalidArgs: it is a file, with which nothing is kept.
            TensorWasmError: what `tensorwasm.runtime.snapshots.stored.fetch_module` raises.
        """
        from tensorwasm.runtime.snapshots import stored  # noqa: PLC0415 - keeps --help quick

        if self.name is None:
            raise InvalidArgs("a snapshot in a file has no module with it: name one")
        return stored.fetch_module(self._view(), snapshot)

    def save(self, live: LiveInstance, module: bytes | memoryview, parents: Sequence[str]) -> SealedInfo:
        """Save an instance here.

        Args:
            live: the instance.
            module: what it runs.
            parents: places of earlier states, nearest first. What is kept adds to what is kept, which knows the others.

        Raises:
            InvalidArgs: the parents are not such.
            TensorWasmError: what `tensorwasm.runtime.snapshots.stored.keep` and `tensorwasm.runtime.Runtime.snapshot`
                raise.
        """
        from tensorwasm.runtime.snapshots import archive, stored  # noqa: PLC0415 - as above

        if self.name is None:
            return archive.save_file(live, self.text, parents=_find_all(parents, self.tenant))
        names = [Place(parent, self.tenant).name for parent in parents]
        if len(names) > 1 or None in names:
            raise InvalidArgs(f"an artifact adds to one artifact: --parent {PREFIX}NAME, once")
        return stored.keep(self._view(), self.name, live, module, parent=names[0] if names else None)

    def _view(self) -> TenantView:
        from tensorwasm.artifacts.opening import open_store  # noqa: PLC0415 - keeps --help quick
        from tensorwasm.artifacts.store import TenantView  # noqa: PLC0415 - the same

        return TenantView(open_store(), owner(self.tenant))


def owner(tenant: str | None) -> str:
    """Return whose artifacts they are when a tenant was said, or was not."""
    from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT  # noqa: PLC0415 - keeps --help quick

    return tenant or DEFAULT_TENANT


def open_place(place: Place, parents: Sequence[str] | None) -> SnapshotFile:
    """Open the snapshot at a place and what it adds to; with None for that only itself.

    Raises:
        TensorWasmError: what `Place.find` and `tensorwasm.runtime.snapshots.archive.open_file` raise.
    """
    from tensorwasm.artifacts.keys import KeyRing  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.runtime.snapshots.archive import open_file  # noqa: PLC0415 - the same

    first, *rest = place.find()
    others = [] if parents is None else [*rest, *_find_all(parents, place.tenant)]
    return open_file(first, KeyRing.from_settings(), others, None)


def read(place: Place, parents: Sequence[str]) -> Snapshot:
    """Read the snapshot at a place, as one with what it adds to; close it when done.

    Raises:
        TensorWasmError: what `Place.find` and `tensorwasm.runtime.snapshots.archive.read_file` raise.
    """
    from tensorwasm.artifacts.keys import KeyRing  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.runtime.snapshots.archive import read_file  # noqa: PLC0415 - the same

    first, *rest = place.find()
    return read_file(first, KeyRing.from_settings(), [*rest, *_find_all(parents, place.tenant)])


def _find_all(places: Sequence[str], tenant: str | None) -> list[File]:
    return [file for text in places for file in Place(text, tenant).find()]
