"""Opens the store at a folder or a URL."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tensorwasm import settings
from tensorwasm.artifacts.backends.disk import DiskBackend
from tensorwasm.artifacts.backends.memory import MemoryBackend
from tensorwasm.artifacts.backends.objects import SCHEMES, connect
from tensorwasm.artifacts.backends.port import Backend
from tensorwasm.artifacts.caches import CachedBackend, DiskCache
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.private_files import make_file, read_file
from tensorwasm.artifacts.store import ContentStore
from tensorwasm.artifacts.values import Quota
from tensorwasm.errors import InvalidArgs, UnsafeFile
from tensorwasm.values import MIB

CACHE_BYTES: Final = 4096 * MIB
_IDENTITY_BYTES: Final = 16


def _scheme(where: str) -> str:
    """Return the scheme of a location; of a folder ``file``."""
    scheme, colon, _ = where.partition(":")
    return scheme.lower() if colon and "/" not in scheme else "file"


def _folder(where: str) -> Path:
    return Path(where.removeprefix("file://")).expanduser()


def open_backend(where: str) -> Backend:
    """Return the backend at a folder, ``file:///...``, ``memory:`` or the URL of an object store.

    In front of an object store is a cache in the cache folder.

    Raises:
        InvalidArgs: no such scheme.
        NotSupported: what it needs is not installed, or this system lacks it.
        StoreUnavailable: it cannot be opened.
        UnsafeFile: others could write to it.
    """
    scheme = _scheme(where)
    if scheme == "file":
        return DiskBackend(_folder(where))
    if scheme == "memory":
        return MemoryBackend()
    if scheme not in SCHEMES:
        schemes = ", ".join(("memory", "file", *SCHEMES))
        raise InvalidArgs(f"artifacts are in a folder, or at a URL of {schemes}, not {scheme[:16]!r}")
    return CachedBackend(DiskCache(settings.cache_dir() / "artifacts", CACHE_BYTES), connect(where))


def identify(where: str) -> str:
    """Return 32 hexadecimal digits that identify a location, opened before, under any name or mount. Blocks.

    In a folder the identity is a file; UnsafeFile if that cannot be made or read.
    """
    scheme, fresh = _scheme(where), secrets.token_bytes(_IDENTITY_BYTES)
    if scheme != "file":
        return blake3(fresh if scheme == "memory" else where.encode())[:_IDENTITY_BYTES].hex()
    path, what = _folder(where) / ".identity", "the file of the artifacts' identity"
    try:
        make_file(path, fresh)
    except OSError as error:
        raise UnsafeFile(f"{what} cannot be made: {error.strerror}") from None
    return read_file(path, what, _IDENTITY_BYTES).hex()


def open_store(
    where: str | None = None, *, recent_bytes: int = 0, cap: Callable[[str], int | None] = lambda _tenant: None
) -> ContentStore:
    """Return the store at a location (see `open_backend`), by default that of the settings, under the settings' quotas.

    Args:
        where: the location.
        recent_bytes: memory of this process for recently read artifacts.
        cap: as for `ContentStore`.
    """
    current = settings.current()
    quota = Quota(current.artifacts_quota_mib * MIB, current.artifacts_count)
    backend = open_backend(where or current.artifacts or str(settings.state_dir() / "artifacts"))
    return ContentStore(backend, quota, cap=cap, recent_bytes=recent_bytes)
