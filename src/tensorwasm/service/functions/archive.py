"""Reading tar archives that nobody vouches for: plain files only, each name once, everything else refused.

Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tensorwasm.errors import InvalidImage

BLOCK_BYTES: Final = 512
MAX_ENTRIES: Final = 1024
MAX_EXTENDED_BYTES: Final = 64 << 10
"""Longest extended header; what it may say here takes a hundred."""

_FILES: Final = frozenset({b"0", b"\0"})
_FOLDER: Final = b"5"
_EXTENDED: Final = frozenset({b"x", b"g"})
_HARMLESS: Final = frozenset({b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname", b"comment"})
_CHECKSUM: Final = slice(148, 156)


def is_tar(data: bytes) -> bool:
    """Return whether bytes begin like a tar archive."""
    return len(data) >= BLOCK_BYTES and data[257:262] == b"ustar"


def read_tar(data: bytes) -> Mapping[str, memoryview]:
    """Return the files of an archive by their paths. Nothing is copied.

    Args:
        data: the whole archive, uncompressed.

    Raises:
        InvalidImage: it is damaged, or holds anything but plain files and folders under plain relative paths, each
            once. Links, devices, sparse files and long names of GNU tar are refused.
    """
    view, files, at = memoryview(data), dict[str, memoryview](), 0
    for _ in range(MAX_ENTRIES):
        header = view[at : at + BLOCK_BYTES]
        if len(header) < BLOCK_BYTES:
            raise InvalidImage("the archive ends in the middle")
        if not any(header):
            return files
        kind, size_bytes = _read_header(header)
        at += BLOCK_BYTES
        content = view[at : at + size_bytes]
        if len(content) < size_bytes:
            raise InvalidImage("the archive ends in the middle")
        if kind in _EXTENDED:
            _check_extended(content)
        else:
            _keep(files, _read_path(header), kind, content)
        at += -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
    raise InvalidImage(f"the archive has more than {MAX_ENTRIES} entries")


def _keep(files: dict[str, memoryview], path: str, kind: bytes, content: memoryview) -> None:
    if kind == _FOLDER and not content:
        return
    if kind not in _FILES:
        raise InvalidImage("the archive has an entry that is neither a plain file nor a folder")
    if path in files:
        raise InvalidImage("the archive has two files of one name")
    files[path] = content


def _read_header(header: memoryview) -> tuple[bytes, int]:
    """Return the kind of an entry and its length."""
    if bytes(header[257:262]) != b"ustar":
        raise InvalidImage("the archive has a header that is not ustar's")
    total = sum(header) - sum(header[_CHECKSUM]) + len(header[_CHECKSUM]) * ord(" ")
    if _octal(header[_CHECKSUM]) != total:
        raise InvalidImage("the archive has a header with a wrong checksum")
    return bytes(header[156:157]), _octal(header[124:136])


def _octal(field: memoryview) -> int:
    digits = bytes(field).strip(b"\0 ")
    if not digits or digits.strip(b"01234567"):
        raise InvalidImage("the archive has a header with a number that is none")
    return int(digits, 8)


def _read_path(header: memoryview) -> str:
    name, prefix = (_text(header[part]) for part in (slice(0, 100), slice(345, 500)))
    if bytes(header[257:263]) != b"ustar\0":  # GNU's own form has other things there
        prefix = ""
    path = f"{prefix}/{name}" if prefix else name
    parts = path.removeprefix("./").rstrip("/").split("/")
    if path != "./" and ("" in parts or "." in parts or ".." in parts or "\\" in path):
        raise InvalidImage("the archive has a path that is not plain")
    return "/".join(parts)


def _text(field: memoryview) -> str:
    raw = bytes(field).split(b"\0", 1)[0]
    if not raw.isascii() or any(byte < ord(" ") for byte in raw):
        raise InvalidImage("the archive has a path that is not plain")
    return raw.decode("ascii")


def _check_extended(content: memoryview) -> None:
    """Refuse extended headers that change what the entry after them is."""
    if len(content) > MAX_EXTENDED_BYTES:
        raise InvalidImage(f"the archive has an extended header of more than {MAX_EXTENDED_BYTES} bytes")
    rest = bytes(content)
    while rest:
        length, space, _ = rest.partition(b" ")
        size_bytes = int(length) if space and len(length) < 6 and length.isdigit() else 0
        record = rest[:size_bytes]
        if len(record) < len(length) + 3 or len(record) != size_bytes or record[-1:] != b"\n":
            raise InvalidImage("the archive has an extended header that makes no sense")
        key = record[len(length) + 1 :].partition(b"=")[0]
        if key not in _HARMLESS and not key.startswith((b"LIBARCHIVE.", b"SCHILY.dev", b"SCHILY.ino", b"SCHILY.nlink")):
            raise InvalidImage("the archive has an extended header that changes its entry")
        rest = rest[size_bytes:]
