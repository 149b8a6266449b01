"""`tensor-wasm kernel`: sign and publish kernels, list those of a server, check a manifest or PTX here."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from tensorwasm.cli.options import read_bytes
from tensorwasm.cli.output import Output, clean, warn
from tensorwasm.cli.remote.client import Client, field_of, records_of
from tensorwasm.cli.remote.commands import CommandGroup, show_line, show_rows
from tensorwasm.errors import InvalidArgs, InvalidKey
from tensorwasm.settings import current, require_key_perms
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorwasm.artifacts.keys import HmacKey
    from tensorwasm.service.kernels.manifests import Manifest

_COLUMNS: Final = ("name", "version", "sm_version", "publisher", "published_unix_ms", "digest")
_PAGE: Final = 1000
_MAX_MANIFEST_BYTES: Final = 64 << 10
_KEY_BYTES: Final = 32
_MAX_KEY_FILE_BYTES: Final = 4096
_HEX_KEY: Final = re.compile(rb"[0-9a-fA-F]{64}")

KernelName = Annotated[str, typer.Argument(metavar="NAME@VERSION", help="The kernel.")]
KeyFile = Annotated[Path, typer.Option(metavar="FILE", help="The publishers' key: 64 hex digits, or 32 bytes.")]

KERNELS: Final = CommandGroup("kernel", "The registry of signed kernels.", KernelName)


@KERNELS.command("publish")
def publish(
    client: Client,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Its version.")],
    *,
    ptx_file: Annotated[Path, typer.Option(metavar="FILE", help="Its PTX.")],
    sm: Annotated[int, typer.Option(metavar="N", help="Compute capability it was written for, 90 for 9.0.")],
    key_file: KeyFile,
    publisher: Annotated[str, typer.Option(metavar="NAME", help="Its author.")] = "",
    output: Output = "text",
) -> None:
    """Sign a kernel here, and publish it. The key is not sent."""
    from tensorwasm.service.kernels.manifests import Manifest, check_text, digest_of, sign_manifest  # noqa: PLC0415 - as below

    text = _read_ptx(ptx_file)
    manifest = Manifest(
        name=name,
        version=version,
        sm_version=sm,
        digest=digest_of(check_text(text)),
        publisher=publisher,
        published_unix_ms=time.time_ns() // 1_000_000,
    )
    signed = asdict(sign_manifest(manifest, _read_key(key_file)))
    signed |= {"digest": signed["digest"].hex(), "signature": signed["signature"].hex()}
    show_line(client.call("POST", "/kernels", {"manifest": signed, "ptx_text": text}), output, "{name}@{version}")


@KERNELS.command("list")
def list_kernels(client: Client, *, output: Output = "text") -> None:
    """List the kernels of a server."""
    rows: list[Mapping[str, Any]] = []
    while True:
        page = records_of(client.call("GET", "/kernels", params={"offset": len(rows), "limit": _PAGE}), "manifests")
        rows += page
        if len(page) < _PAGE:
            break
    show_rows(rows, output, _COLUMNS, "(no kernels registered)")


@KERNELS.command("fetch")
def fetch(
    client: Client,
    name: KernelName,
    *,
    manifest_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File for its manifest.")] = None,
) -> None:
    """Print a kernel's PTX, and write its manifest to a file."""
    kernel, version = (quote(part, safe="") for part in _parse_name(name))
    found = client.call("GET", f"/kernels/{kernel}/{version}")
    if manifest_file is not None:
        try:
            manifest_file.write_text(json.dumps(field_of(found, "manifest"), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidArgs(f"cannot write {manifest_file}: {error.strerror}") from None
    print("\n".join(map(clean, str(field_of(found, "ptx_text")).splitlines())))


@KERNELS.app.command()
def verify(
    name: KernelName,
    *,
    manifest_file: Annotated[Path, typer.Option(metavar="FILE", help="The manifest, as JSON.")],
    key_file: KeyFile,
    ptx_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Its PTX, to compare with the digest.")] = None,
) -> None:
    """Check a manifest's signature here, without a server."""
    from tensorwasm.service.kernels.manifests import (  # noqa: PLC0415 - keeps --help quick
        check_manifest,
        check_text,
        require_digest,
        verify_manifest,
    )

    manifest = _read_manifest(manifest_file)
    check_manifest(manifest)
    if (manifest.name, manifest.version) != _parse_name(name):
        raise InvalidArgs("the manifest is of another kernel")
    if ptx_file is not None:
        require_digest(manifest, check_text(_read_ptx(ptx_file)))
    envelope = verify_manifest(manifest, _read_key(key_file))
    print("ok" if envelope == 2 else "ok: the publisher and the time are not signed")


@KERNELS.app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="PTX.")],
    *,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="auto, emulator, cuda or cuda:N. [env: TENSOR_WASM_DEVICE; default: auto]"),
    ] = None,
    output: Output = "text",
) -> int:
    """Report for each kernel of a PTX text whether a device accepts it, and why not. Exit 1 if one is refused."""
    from tensorwasm.gpu.kernel_support import survey  # noqa: PLC0415 - the same
    from tensorwasm.gpu.opening import open_device  # noqa: PLC0415 - keeps --help quick

    text = _read_ptx(file)
    opened, _ = open_device(device or current().device)
    try:
        states = survey(opened, text, Deadline.after(current().timeout_s))
    finally:
        opened.close()
    show_rows([asdict(state) for state in states], output, ("kernel", "state", "line", "reason"), "(no kernels)")
    return int(any(state.state != "ok" for state in states))


def _parse_name(text: str) -> tuple[str, str]:
    name, at, version = text.rpartition("@")
    if not (name and at and version):
        raise InvalidArgs("a kernel is NAME@VERSION")
    return name, version


def _read_ptx(path: Path) -> str:
    from tensorwasm.ptx import MAX_PTX_BYTES  # noqa: PLC0415 - keeps --help quick

    try:
        return _read(path, MAX_PTX_BYTES).decode("ascii")
    except UnicodeDecodeError:
        raise InvalidArgs(f"{path} is no PTX: it has characters outside ASCII") from None


def _read_manifest(path: Path) -> Manifest:
    from tensorwasm.service.kernels.manifests import Manifest  # noqa: PLC0415 - keeps --help quick

    try:
        found = json.loads(_read(path, _MAX_MANIFEST_BYTES))
        return Manifest(
            name=str(found["name"]),
            version=str(found["version"]),
            sm_version=int(found["sm_version"]),
            digest=bytes.fromhex(found["digest"]),
            publisher=str(found.get("publisher", "")),
            published_unix_ms=int(found.get("published_unix_ms", 0)),
            signature=bytes.fromhex(found["signature"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InvalidArgs(f"{path} is no manifest") from None


def _read(path: Path, limit_bytes: int) -> bytes:
    return read_bytes(path, limit_bytes, InvalidArgs(f"{path} has more than {limit_bytes} bytes"))


def _read_key(path: Path) -> HmacKey:
    """Return the key in a file: 64 hexadecimal digits, or 32 bytes. No error contains anything of it.

    A file that other users may read is warned of, or refused if TENSOR_WASM_REQUIRE_KEY_PERMS is set.
    """
    from tensorwasm.artifacts.keys import HmacKey  # noqa: PLC0415 - keeps --help quick

    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(_MAX_KEY_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise InvalidKey(f"cannot read {path}: {getattr(error, 'strerror', 'no such path')}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and os.name == "posix":
        message = f"{path} is open to others (mode {mode:o}): chmod 600"
        if require_key_perms():
            raise InvalidKey(message)
        warn(message)
    if len(data) == _KEY_BYTES:
        return HmacKey(data)
    if not _HEX_KEY.fullmatch(data.strip()):
        raise InvalidKey(f"{path} has neither 64 hexadecimal digits nor {_KEY_BYTES} bytes in it")
    return HmacKey(bytes.fromhex(data.strip().decode("ascii")))
