"""Folders for compiled code, writable by this user only: their contents are run."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from tensorwasm import settings

_OWNER_ONLY: Final = 0o700
_ROOT: Final = 0


def open_own(*names: str) -> Path:
    """Return a folder in the cache folder (`tensorwasm.settings.cache_dir`), made with mode 0700 if missing.

    Names are of nested folders, the outermost first. The `OSError` if it cannot be made, or other users could write to
    it, names the folder.
    """
    above = settings.cache_dir()
    above.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
    parent = above.resolve()
    _require_kept(parent, stat.S_IWGRP | stat.S_IWOTH)
    for further in parent.parents:
        _require_kept(further, stat.S_IWOTH)  # a group may be the user's alone
    folder = above
    for name in names:
        folder /= name
        folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        _require_own(folder)
    return folder


def _require_kept(folder: Path, others: int) -> None:
    """Check that no other user can replace what is in this folder."""
    found = folder.stat()
    if found.st_mode & others and not found.st_mode & stat.S_ISVTX:
        raise PermissionError(f"{folder} can be written by others")
    # The owner of the root folder can do so anyway; in a container that may be an unknown user.
    if found.st_uid not in {os.geteuid(), _ROOT} and folder != folder.parent:
        raise PermissionError(f"{folder} belongs to another user")


def _require_own(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{folder} is a link, or no folder")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    if stat.S_IMODE(found.st_mode) != _OWNER_ONLY:
        raise PermissionError(f"{folder} has mode {stat.S_IMODE(found.st_mode):o}, not 700")
