"""The folder in which compiled host functions are kept between runs.

Numba's index of what it has compiled is a pickle, and the code is run as it is: whoever can write there runs what they
like as us. So the folder is our own, or it is not used.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

from tensorwasm import settings

_OWNER_ONLY: Final = 0o700
_ROOT: Final = 0


def open_folder(contents: Iterable[object]) -> Path:
    """Return the folder for functions compiled from these sources and numbers, made if it is not there.

    Args:
        contents: everything that went into the functions besides the files of this package; compared by its text.

    Raises:
        OSError: it cannot be made, or others could write to it; the message says which folder and why.
    """
    root = Path(settings.current().cache or _user_cache()) / "native"
    folder = root / _digest(contents)
    root.parent.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
    parent = root.parent.resolve()
    _require_kept(parent, stat.S_IWGRP | stat.S_IWOTH)
    for above in parent.parents:
        _require_kept(above, stat.S_IWOTH)  # a group may be the user's alone
    for part in (root, folder):
        part.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        _require_own(part)
    return folder


def _require_kept(folder: Path, others: int) -> None:
    """Check that nobody else can put a folder of theirs in the place of what is in this one: not even its owner."""
    found = folder.stat()
    if found.st_mode & others and not found.st_mode & stat.S_ISVTX:
        raise PermissionError(f"{folder} can be written by others")
    # Who owns all there is can do so anyway, and in a container that may be nobody.
    if found.st_uid not in {os.geteuid(), _ROOT} and folder != folder.parent:
        raise PermissionError(f"{folder} belongs to somebody else")


def _require_own(folder: Path) -> None:
    """Check that a folder is ours alone, without following a link."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{folder} is a link, or no folder")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    if stat.S_IMODE(found.st_mode) != _OWNER_ONLY:
        raise PermissionError(f"{folder} has mode {stat.S_IMODE(found.st_mode):o}, not 700")


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tensor-wasm"


def _digest(contents: Iterable[object]) -> str:
    """Return a name for what is compiled: a change of any source, number or tool gives another."""
    digest = hashlib.sha256(sys.version.encode())
    for distribution in ("numba", "llvmlite"):
        digest.update(metadata.version(distribution).encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    for item in contents:
        digest.update(repr(item).encode())
    return digest.hexdigest()[:32]
