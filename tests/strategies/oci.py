"""Generators for OCI image layouts: a good one, and ways to spoil it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field, replace
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.wasm.config.v0+json"
LAYER = "application/wasm"
MODULE = b"\0asm\1\0\0\0"


def describe(data: bytes, media_type: str) -> dict[str, Any]:
    """A descriptor of some bytes."""
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def blob_path(data: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"


@dataclass(frozen=True)
class Image:
    """An image layout in parts; `files` is what its archive holds, `tar` the archive."""

    module: bytes = MODULE
    config: bytes = b"{}"
    layer_type: str = LAYER
    config_type: str = CONFIG
    manifest: dict[str, Any] = field(default_factory=dict)
    index: dict[str, Any] = field(default_factory=dict)
    layout: dict[str, Any] = field(default_factory=dict)

    def manifest_bytes(self) -> bytes:
        made = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": describe(self.config, self.config_type),
            "layers": [describe(self.module, self.layer_type)],
        }
        return json.dumps(made | self.manifest).encode()

    def files(self) -> dict[str, bytes]:
        manifest = self.manifest_bytes()
        index = {"schemaVersion": 2, "manifests": [describe(manifest, MANIFEST)]} | self.index
        return {
            "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"} | self.layout).encode(),
            "index.json": json.dumps(index).encode(),
            blob_path(manifest): manifest,
            blob_path(self.config): self.config,
            blob_path(self.module): self.module,
        }

    def tar(self) -> bytes:
        return pack(self.files())

    def with_(self, **changes: Any) -> Image:
        return replace(self, **changes)


def pack(files: dict[str, bytes], form: int = tarfile.PAX_FORMAT, prefix: str = "") -> bytes:
    """A tar archive of plain files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for path, data in files.items():
            archive.addfile(entry(prefix + path, size=len(data)), io.BytesIO(data))
    return out.getvalue()


def entry(path: str, **fields: Any) -> tarfile.TarInfo:
    """One entry's header."""
    info = tarfile.TarInfo(path)
    for name, value in fields.items():
        setattr(info, name, value)
    return info
