"""Where a store is: a folder, or a URL by its scheme."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tensorwasm import settings
from tensorwasm.artifacts.backend import Backend
from tensorwasm.artifacts.content import ContentStore
from tensorwasm.artifacts.disk import DiskBackend
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.layered import Layered, NearFolder
from tensorwasm.artifacts.memory import MemoryBackend
from tensorwasm.artifacts.objects import SCHEMES, connect
from tensorwasm.artifacts.private import make_file, read_file
from tensorwasm.artifacts.store import Quota
from tensorwasm.errors import InvalidArgs, UnsafeFile
from tensorwasm.values import MIB

NEAR_BYTES: Final = 4096 * MIB
_IDENTITY: Final = ".identity"
_IDENTITY_BYTES: Final = 16


def _memory(_url: str) -> Backend:
    return MemoryBackend()


def _folder(url: str) -> Backend:
    return DiskBackend(Path(url.removeprefix("file://")).expanduser())


def _objects(url: str) -> Backend:
    return Layered(NearFolder(settings.cache_dir() / "artifacts", NEAR_BYTES), connect(url))


_PLACES: Final[Mapping[str, Callable[[str], Backend]]] = MappingProxyType(
    {"memory": _memory, "file": _folder, **dict.fromkeys(SCHEMES, _objects)}
)


def open_place(where: str) -> Backend:
    """Return a place.

    Args:
        where: a folder, ``file:///...``, ``memory:`` or the URL of an object store, in front of which is a folder of
            copies in the cache folder.

    Raises:
        InvalidArgs: no such scheme.
        NotSupported: what it needs is not installed, or not there on this system.
        StoreUnavailable: it cannot be opened.
        UnsafeFile: others could write to it.
    """
    scheme, colon, _ = where.partition(":")
    if not colon or "/" in scheme:
        return _folder(where)
    if scheme.lower() not in _PLACES:
        raise InvalidArgs(f"artifacts are in a folder, or at a URL of {', '.join(_PLACES)}, not {scheme[:16]!r}")
    return _PLACES[scheme.lower()](where)


def identify(where: str) -> str:
    """Return what tells a place from others, whatever it is called on a machine: 32 hexadecimal digits. Blocks.

    Args:
        where: as `open_place` takes it, and opened before. In a folder it is a file, so that a mounted one is known.

    Raises:
        UnsafeFile: that file cannot be made or read.
    """
    scheme, colon, _ = where.partition(":")
    if colon and "/" not in scheme and scheme.lower() != "file":
        own = secrets.token_bytes(_IDENTITY_BYTES) if scheme.lower() == "memory" else where.encode()
        return blake3(own)[:_IDENTITY_BYTES].hex()
    path = Path(where.removeprefix("file://")).expanduser() / _IDENTITY
    what = "the file of the artifacts' identity"
    try:
        make_file(path, secrets.token_bytes(_IDENTITY_BYTES))
    except OSError as error:
        raise UnsafeFile(f"{what} cannot be made: {error.strerror}") from None
    return read_file(path, what, _IDENTITY_BYTES).hex()


def open_store(
    where: str | None = None, *, recent_bytes: int = 0, cap: Callable[[str], int | None] = lambda _tenant: None
) -> ContentStore:
    """Return the store that the settings say, or the one somewhere else, under the settings' quotas.

    Args:
        where: as `open_place` takes it.
        recent_bytes: memory of this process for what was read lately.
        cap: returns how many bytes a tenant may keep, None where the settings say; called on any thread.

    Raises:
        InvalidArgs: a setting makes no sense.
        NotSupported: what it needs is not installed, or not there on this system.
        StoreUnavailable: it cannot be opened.
        UnsafeFile: others could write to it.
    """
    said = settings.current()
    quota = Quota(said.artifacts_quota_mib * MIB, said.artifacts_count)
    place = where or said.artifacts or str(settings.state_dir() / "artifacts")

    def quota_of(tenant: str) -> Quota:
        most_bytes = cap(tenant)
        return quota if most_bytes is None else Quota(most_bytes, quota.count)

    return ContentStore(open_place(place), quota_of, recent_bytes=recent_bytes)
