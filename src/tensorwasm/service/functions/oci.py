"""OCI image layouts with one Wasm module in them, as one tar file. Pure: bytes in, bytes out.

Source: OCI Image Format 1.1, "Image Layout", "Index", "Manifest", "Content Descriptors"; the CNCF's "Wasm OCI Artifact
layout" and the older form of it that Solo published.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Final, TypeVar

import msgspec

from tensorwasm.errors import DigestMismatch, InvalidImage, ModuleTooLarge
from tensorwasm.service.functions.archive import is_tar, read_tar

MAX_JSON_BYTES: Final = 1 << 20
"""Longest index, and longest manifest."""

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_LAYERS: Final = frozenset({"application/wasm", "application/vnd.wasm.content.layer.v1+wasm"})
_CONFIGS: Final = frozenset({"application/vnd.wasm.config.v0+json", "application/vnd.wasm.config.v1+json"})
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")

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


def is_image(data: bytes) -> bool:
    """Return whether bytes are to be read as an image: they begin like a tar archive, which no module does."""
    return is_tar(data)


def read_image(data: bytes, module_bytes: int) -> bytes:
    """Return the module of an image, every digest on the way to it found right.

    Args:
        data: a tar archive of an image layout with one manifest, which has one layer.
        module_bytes: longest module.

    Raises:
        InvalidImage: it is no such archive; the message says why.
        DigestMismatch: a part of it is not what its digest says.
        ModuleTooLarge: the module is longer than that; it was neither copied nor hashed.
    """
    files = read_tar(data)
    layout = _decode(files, "oci-layout", _Layout)
    if layout.version.partition(".")[0] != "1":
        raise InvalidImage("the image is of a layout that is not known here")
    index = _decode(files, "index.json", _Index)
    found = _only("manifest", index.manifests)
    if index.schema_version != 2 or found.media_type != _MANIFEST:
        raise InvalidImage(f"the image's index leads to something else than {_MANIFEST}")
    manifest = _parse(_blob(files, found, MAX_JSON_BYTES), _Manifest)
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
    """Return what a descriptor leads to, once it is found right."""
    if not _DIGEST.fullmatch(descriptor.digest):
        raise InvalidImage("the image has a digest that is not SHA-256's")
    algorithm, _, digest = descriptor.digest.partition(":")
    found = files.get(f"blobs/{algorithm}/{digest}")
    if found is None:
        raise InvalidImage("the image lacks a blob that it tells of")
    if len(found) > limit_bytes:
        raise InvalidImage(f"the image has a document of more than {limit_bytes} bytes")
    if len(found) != descriptor.size or hashlib.sha256(found).hexdigest() != digest:
        raise DigestMismatch("a blob of the image is not what its descriptor says")
    return found


def _decode(files: Mapping[str, memoryview], path: str, kind: type[_Document]) -> _Document:
    found = files.get(path)
    if found is None or len(found) > MAX_JSON_BYTES:
        raise InvalidImage(f"the image has no {path}, or one of more than {MAX_JSON_BYTES} bytes")
    return _parse(found, kind)


def _parse(document: memoryview, kind: type[_Document]) -> _Document:
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise InvalidImage("the image has a document that is not JSON, or not what it should be") from None
