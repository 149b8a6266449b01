"""Reads OCI image layouts with one Wasm module, as one tar file from an untrusted client. Pure: bytes in, bytes out.

The archive may hold plain files and folders only, each name once; everything else is refused.

Source: OCI Image Format 1.1, "Image Layout", "Index", "Manifest", "Content Descriptors"; the CNCF's "Wasm OCI Artifact
layout" and the older form of it that Solo published; POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended
Header".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Final, TypeVar

import msgspec

from tensorwasm.errors import DigestMismatch, InvalidImage, ModuleTooLarge

MAX_JSON_BYTES: Final = 1 << 20
"""Longest index, and longest manifest."""

BLOCK_BYTES: Final = 512
MAX_ENTRIES: Final = 1024
MAX_EXTENDED_BYTES: Final = 64 << 10
"""Longest extended header; harmless ones take about a hundred bytes."""

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_LAYERS: Final = frozenset({"application/wasm", "application/vnd.wasm.content.layer.v1+wasm"})
_CONFIGS: Final = frozenset({"application/vnd.wasm.config.v0+json", "application/vnd.wasm.config.v1+json"})
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")

_FILES: Final = frozenset({b"0", b"\0"})
_FOLDER: Final = b"5"
_EXTENDED: Final = frozenset({b"x", b"g"})
_HARMLESS: Final = frozenset({b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname", b"comment"})
_CHECKSUM: Final = slice(148, 156)

_Document = TypeVar("_Document")
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Layout(msgspec.Struct):
    version: str = msgspec.field(name="imageLayoutVersion")


class _Descriptor(msgspec.Struct):
    media_type: str = msgspec.field(name="mediaType")
    digest: str
    size: _Count


class _Index(msgspec.Struct):
    schema_version: int = msgspec.field(name="schemaVersion")
    manifests: list[_Descriptor]


class _Manifest(msgspec.Struct):
    schema_version: int = msgspec.field(name="schemaVersion")
    config: _Descriptor
    layers: list[_Descriptor]
    media_type: str = msgspec.field(name="mediaType", default=_MANIFEST)


_LAYOUTS: Final = msgspec.json.Decoder(_Layout)
_INDICES: Final = msgspec.json.Decoder(_Index)
_MANIFESTS: Final = msgspec.json.Decoder(_Manifest)


def is_image(data: bytes) -> bool:
    """Return whether bytes begin like a tar archive, which no module does."""
    return len(data) >= BLOCK_BYTES and data[257:262] == b"ustar"


def read_image(data: bytes, module_bytes: int) -> bytes:
    """Return the module of an image, a tar archive; every digest on the way to it is verified.

    Raises:
        InvalidImage: the archive is invalid, or not a layout with one manifest with one layer; the message says why.
        DigestMismatch: a blob does not match its digest.
        ModuleTooLarge: the module has more than `module_bytes`; it was neither copied nor hashed.
    """
    files = read_tar(data)
    if _decode(files, "oci-layout", _LAYOUTS).version.partition(".")[0] != "1":
        raise InvalidImage("the image's layout version is unknown")
    index = _decode(files, "index.json", _INDICES)
    found = _only("manifest", index.manifests)
    if index.schema_version != 2 or found.media_type != _MANIFEST:
        raise InvalidImage(f"the image's index leads to something else than {_MANIFEST}")
    manifest = _parse(_blob(files, found, MAX_JSON_BYTES), _MANIFESTS)
    if manifest.schema_version != 2 or manifest.media_type != _MANIFEST or manifest.config.media_type not in _CONFIGS:
        raise InvalidImage(f"the image's manifest is not one with a config of {' or '.join(sorted(_CONFIGS))}")
    _blob(files, manifest.config, MAX_JSON_BYTES)
    layer = _only("layer", manifest.layers)
    if layer.media_type not in _LAYERS:
        raise InvalidImage(f"the image's layer is none of {' or '.join(sorted(_LAYERS))}")
    if layer.size > module_bytes:
        raise ModuleTooLarge(f"the image's module has {layer.size} bytes, more than {module_bytes}")
    return bytes(_blob(files, layer, module_bytes))


def _only(what: str, descriptors: list[_Descriptor]) -> _Descriptor:
    if len(descriptors) != 1:
        raise InvalidImage(f"the image has {len(descriptors)} {what}s, and not one")
    return descriptors[0]


def _blob(files: Mapping[str, memoryview], descriptor: _Descriptor, limit_bytes: int) -> memoryview:
    """Return the blob of a descriptor, its length and digest verified."""
    if not _DIGEST.fullmatch(descriptor.digest):
        raise InvalidImage("the image has a digest that is not SHA-256's")
    algorithm, _, digest = descriptor.digest.partition(":")
    found = files.get(f"blobs/{algorithm}/{digest}")
    if found is None:
        raise InvalidImage("the image lacks a blob that it refers to")
    if len(found) > limit_bytes:
        raise InvalidImage(f"the image has a document of more than {limit_bytes} bytes")
    if len(found) != descriptor.size or hashlib.sha256(found).hexdigest() != digest:
        raise DigestMismatch("a blob of the image does not match its descriptor")
    return found


def _decode(files: Mapping[str, memoryview], path: str, decoder: msgspec.json.Decoder[_Document]) -> _Document:
    found = files.get(path)
    if found is None or len(found) > MAX_JSON_BYTES:
        raise InvalidImage(f"the image has no {path}, or one of more than {MAX_JSON_BYTES} bytes")
    return _parse(found, decoder)


def _parse(document: memoryview, decoder: msgspec.json.Decoder[_Document]) -> _Document:
    try:
        return decoder.decode(document)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise InvalidImage("the image has a document that is not JSON, or not of its schema") from None


def read_tar(data: bytes) -> Mapping[str, memoryview]:
    """Return the files of an uncompressed archive by path, as views of it.

    Raise InvalidImage if it is damaged, or holds anything but plain files and folders under plain relative paths, each
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
            _add_entry(files, _read_path(header), kind, content)
        at += -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
    raise InvalidImage(f"the archive has more than {MAX_ENTRIES} entries")


def _add_entry(files: dict[str, memoryview], path: str, kind: bytes, content: memoryview) -> None:
    if kind == _FOLDER and not content:
        return
    if kind not in _FILES:
        raise InvalidImage("the archive has an entry that is neither a plain file nor a folder")
    if path in files:
        raise InvalidImage("the archive has two files of one name")
    files[path] = content


def _read_header(header: memoryview) -> tuple[bytes, int]:
    """Return an entry's type flag and length."""
    if bytes(header[257:262]) != b"ustar":
        raise InvalidImage("the archive has a header that is not ustar's")
    total = sum(header) - sum(header[_CHECKSUM]) + len(header[_CHECKSUM]) * ord(" ")
    if _octal(header[_CHECKSUM]) != total:
        raise InvalidImage("the archive has a header with a wrong checksum")
    return bytes(header[156:157]), _octal(header[124:136])


def _octal(field: memoryview) -> int:
    digits = bytes(field).strip(b"\0 ")
    if not digits or digits.strip(b"01234567"):
        raise InvalidImage("the archive has a header with an invalid number")
    return int(digits, 8)


def _read_path(header: memoryview) -> str:
    name, prefix = (_text(header[part]) for part in (slice(0, 100), slice(345, 500)))
    if bytes(header[257:263]) != b"ustar\0":  # GNU's own format has other fields there
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
    """Refuse extended headers that change the meaning of the entry after them."""
    if len(content) > MAX_EXTENDED_BYTES:
        raise InvalidImage(f"the archive has an extended header of more than {MAX_EXTENDED_BYTES} bytes")
    rest = bytes(content)
    while rest:
        length, space, _ = rest.partition(b" ")
        size_bytes = int(length) if space and len(length) < 6 and length.isdigit() else 0
        record = rest[:size_bytes]
        if len(record) < len(length) + 3 or len(record) != size_bytes or record[-1:] != b"\n":
            raise InvalidImage("the archive has a malformed extended header")
        key = record[len(length) + 1 :].partition(b"=")[0]
        if key not in _HARMLESS and not key.startswith((b"LIBARCHIVE.", b"SCHILY.dev", b"SCHILY.ino", b"SCHILY.nlink")):
            raise InvalidImage("the archive has an extended header that changes its entry")
        rest = rest[size_bytes:]
