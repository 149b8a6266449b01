"""Precompiled code on the disk: signed with the machine's own key, verified before a byte of it is mapped.

A file is the code, and a trailer with the entry's name and a signature over all of it. It is written under another
name, synchronised, renamed into place with mode 0400 and never written to again; unlinking it leaves mappings intact. A
file that fails a check counts as missing.

The verified bytes are the mapped ones: wasmtime opens the same inode through the descriptor that was verified. Only the
superuser and other processes of this user can change it meanwhile, who could as well read the key, attach to this
process or change this package's files. The modes, the folder, checked up to the root
(`tensorwasm.guest.engine.folders`), and the signature protect against everyone else.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import stat
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.keys import SigningKey

SUFFIX: Final = ".cwasm"
DRAFT_SUFFIX: Final = ".draft"
DRAFT_S: Final = 3600.0
"""Age at which a file that was never finished is removed."""

_MODE: Final = 0o400
_MAGIC: Final = b"twcode01"
_TRAILER: Final = struct.Struct("<8sQ32s32s")
_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0) if os.name == "posix" else os.O_RDONLY
_NO_FILE: Final = frozenset({errno.EACCES, errno.ELOOP, errno.ENXIO})
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class UnfitFile(Exception):
    """A file that is not what was kept under that name: cut, changed, signed by another key, or foreign."""


class _Trailer(NamedTuple):
    magic: bytes
    code_bytes: int
    name: bytes
    signature: bytes


@dataclass(slots=True)
class CodeFile:
    """A verified file, open, and its code, mapped until this is closed."""

    handle: int
    code: memoryview
    _mapped: mmap.mmap

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.code.release()
        self._mapped.close()
        os.close(self.handle)


class CodeFolder:
    """A folder of precompiled code, bounded; the least recently used entry goes first. Processes may share it.

    It is this user's alone; see `tensorwasm.guest.engine.folders.open_own`. Only what the key signed is read.
    """

    def __init__(self, path: Path, key: SigningKey, cap_bytes: int) -> None:
        self._path = path
        self._key = key
        self._cap_bytes = cap_bytes

    def open(self, name: bytes) -> CodeFile | None:
        """Return an entry of a 32-byte name, verified, and mark it as used; None if there is none.

        Raises:
            UnfitFile: the file fails a check; the message says which. `OSError` if the disk fails.
        """
        try:
            handle = os.open(self._at(name), _OPEN)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _NO_FILE:
                raise UnfitFile(f"it cannot be opened, or is a link ({error.strerror})") from None
            raise
        try:
            return self._verify(name, handle)
        except BaseException:
            os.close(handle)
            raise

    def put(self, name: bytes, code: bytes | memoryview) -> int:
        """Keep code under a 32-byte name, the last of several writers winning; return the bytes of all entries.

        Raises:
            OSError: the disk is full, read-only, or fails. Nothing of the entry is left then.
        """
        signature = self._key.sign(_message(name, code))
        trailer = _TRAILER.pack(_MAGIC, len(code), name, signature)
        if len(code) + len(trailer) <= self._cap_bytes:
            self._write(name, (code, trailer))
        return self._trim()

    def _at(self, name: bytes) -> Path:
        return self._path / (name.hex() + SUFFIX)

    def _verify(self, name: bytes, handle: int) -> CodeFile:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != _MODE or found.st_uid != os.geteuid():
            raise UnfitFile("it is not a file of this user with mode 0400")
        if found.st_size <= _TRAILER.size:
            raise UnfitFile("it is cut")
        mapped = mmap.mmap(handle, found.st_size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
        whole = memoryview(mapped)
        code, trailer = whole[: -_TRAILER.size], _Trailer._make(_TRAILER.unpack(whole[-_TRAILER.size :]))
        if trailer.magic != _MAGIC or trailer.name != name or trailer.code_bytes != len(code):
            raise UnfitFile("it is cut, or another file")
        if not self._key.verify(_message(name, code), trailer.signature):
            raise UnfitFile("this machine's key did not sign it")
        with suppress(OSError):  # a read-only disk cannot record the use
            os.utime(handle)
        whole.release()
        return CodeFile(handle, code, mapped)

    def _write(self, name: bytes, parts: tuple[bytes | memoryview, ...]) -> None:
        draft = self._path / f"{name.hex()}.{secrets.token_hex(8)}{DRAFT_SUFFIX}"
        try:
            with open(os.open(draft, _CREATE, _MODE), "wb") as file:  # noqa: PTH123 - of a descriptor
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            # The folder is not synchronised: a name that is lost with the power is compiled again.
            draft.replace(self._at(name))
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise

    def _trim(self) -> int:
        """Remove unfinished files, and the least recently used entries over the cap; return the bytes that stay."""
        kept, now_s = [], time.time()
        with os.scandir(self._path) as entries:
            for entry in entries:
                with suppress(OSError):  # another process has removed it
                    found = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(SUFFIX):
                        kept.append((found.st_mtime_ns, found.st_size, entry.path))
                    elif entry.name.endswith(DRAFT_SUFFIX) and now_s - found.st_mtime > DRAFT_S:
                        Path(entry.path).unlink()
        held_bytes = sum(size_bytes for _, size_bytes, _ in kept)
        for _, size_bytes, path in sorted(kept):
            if held_bytes <= self._cap_bytes:
                break
            with suppress(OSError):
                Path(path).unlink()
                held_bytes -= size_bytes
        return held_bytes


def _message(name: bytes, code: bytes | memoryview) -> bytes:
    """Return what is signed: a trailer with the hash of the code in the signature's place."""
    return _TRAILER.pack(_MAGIC, len(code), name, blake3(code))
