"""`tensor-wasm kernel`: sign and publish kernels, list those of a server, check a manifest or what a device takes."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from tensorwasm.cli.answers import field_of
from tensorwasm.cli.client import Client, client_command
from tensorwasm.cli.keyfile import read_key
from tensorwasm.cli.showing import Output, clean, show_json, show_table
from tensorwasm.errors import InvalidArgs, Refused
from tensorwasm.settings import current
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorwasm.artifacts.keys import HmacKey
    from tensorwasm.service.kernels.manifests import Manifest

SHOWN: Final = ("name", "version", "sm_version", "publisher", "published_unix_ms", "digest")
PAGE: Final = 1000

_MAX_MANIFEST_BYTES: Final = 64 << 10

app = typer.Typer(name="kernel", help="The registry of signed kernels.", no_args_is_help=True)

KeyFile = Annotated[Path, typer.Option(metavar="FILE", help="The publishers' key: 64 hex digits, or 32 bytes.")]


@app.command()
@client_command
def publish(
    client: Client,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is known by.")],
    version: Annotated[str, typer.Argument(metavar="VERSION", help="Of that kernel.")],
    *,
    ptx_file: Annotated[Path, typer.Option(metavar="FILE", help="Its text.")],
    sm: Annotated[int, typer.Option(metavar="N", help="Compute capability it was written for, 90 for 9.0.")],
    key_file: KeyFile,
    publisher: Annotated[str, typer.Option(metavar="NAME", help="Who made it.")] = "",
    output: Output = "text",
) -> None:
    """Sign a kernel here, and publish it. The key stays here."""
    from tensorwasm.service.kernels.manifests import Manifest, check_text, digest_of, sign_manifest  # noqa: PLC0415 - as below

    text = _read_text(ptx_file)
    wanted = Manifest(
        name=name,
        version=version,
        sm_version=sm,
        digest=digest_of(check_text(text)),
        publisher=publisher,
        published_unix_ms=time.time_ns() // 1_000_000,
    )
    signed = sign_manifest(wanted, _key(key_file))
    made = client.call("POST", "/kernels", {"manifest": _to_json(signed), "ptx_text": text})
    if output == "json":
        show_json(made)
    else:
        print(f"{clean(field_of(made, 'name'))}@{clean(field_of(made, 'version'))}")


@app.command("list")
@client_command
def list_kernels(client: Client, *, output: Output = "text") -> None:
    """List the kernels of a server."""
    rows: list[Mapping[str, Any]] = []
    while True:
        page = field_of(client.call("GET", "/kernels", params={"offset": len(rows), "limit": PAGE}), "manifests")
        if not isinstance(page, list) or not all(isinstance(row, dict) for row in page):
            raise Refused("the server's answer has no list of manifests", "malformed_answer")
        rows += page
        if len(page) < PAGE:
            break
    if output == "json":
        show_json(rows)
    else:
        show_table(rows, SHOWN, "(no kernels registered)")


@app.command()
@client_command
def fetch(
    client: Client,
    name: Annotated[str, typer.Argument(metavar="NAME@VERSION", help="Which kernel.")],
    *,
    manifest_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Where its manifest goes.")] = None,
) -> None:
    """Print a kernel's text, and keep its manifest if that is wanted."""
    which, version = _parse_name(name)
    found = client.call("GET", f"/kernels/{quote(which, safe='')}/{quote(version, safe='')}")
    if manifest_file is not None:
        try:
            manifest_file.write_text(json.dumps(field_of(found, "manifest"), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidArgs(f"cannot write {manifest_file}: {error.strerror}") from None
    print("\n".join(map(clean, str(field_of(found, "ptx_text")).splitlines())))


@app.command()
def verify(
    name: Annotated[str, typer.Argument(metavar="NAME@VERSION", help="Which kernel the manifest must be of.")],
    *,
    manifest_file: Annotated[Path, typer.Option(metavar="FILE", help="The manifest, as JSON.")],
    key_file: KeyFile,
    ptx_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Its text, to be held against it.")] = None,
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
        require_digest(manifest, check_text(_read_text(ptx_file)))
    envelope = verify_manifest(manifest, _key(key_file))
    says = "" if envelope == 2 else ": the publisher and the time are not signed"
    print(f"ok{says}")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="PTX.")],
    *,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="auto, emulator, cuda or cuda:N. [env: TENSOR_WASM_DEVICE; default: auto]"),
    ] = None,
    output: Output = "text",
) -> int:
    """Say of each kernel of a PTX text whether a device takes it, and why not. Exit 1 if one is refused."""
    from tensorwasm.gpu.kernel_support import survey  # noqa: PLC0415 - the same
    from tensorwasm.gpu.opening import open_device  # noqa: PLC0415 - keeps --help quick

    text = _read_text(file)
    opened, _ = open_device(device or current().device)
    try:
        states = survey(opened, text, Deadline.after(current().timeout_s))
    finally:
        opened.close()
    rows = [asdict(state) for state in states]
    if output == "json":
        show_json(rows)
    else:
        show_table(rows, ("kernel", "state", "line", "reason"), "(no kernels)")
    return int(any(state.state != "ok" for state in states))


def _key(path: Path) -> HmacKey:
    from tensorwasm.artifacts.keys import HmacKey  # noqa: PLC0415 - keeps --help quick

    return HmacKey(read_key(path))


def _parse_name(text: str) -> tuple[str, str]:
    name, at, version = text.rpartition("@")
    if not (name and at and version):
        raise InvalidArgs("a kernel is NAME@VERSION")
    return name, version


def _read_text(path: Path) -> str:
    from tensorwasm.ptx import MAX_PTX_BYTES  # noqa: PLC0415 - keeps --help quick

    data = _read(path, MAX_PTX_BYTES)
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidArgs(f"{path} is no PTX: it has other than ASCII in it") from None


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


def _to_json(manifest: Manifest) -> dict[str, object]:
    return {
        "name": manifest.name,
        "version": manifest.version,
        "sm_version": manifest.sm_version,
        "digest": manifest.digest.hex(),
        "signature": manifest.signature.hex(),
        "publisher": manifest.publisher,
        "published_unix_ms": manifest.published_unix_ms,
    }


def _read(path: Path, most_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise InvalidArgs(f"cannot read {path}: {getattr(error, 'strerror', 'no such path')}") from None
    if len(data) > most_bytes:
        raise InvalidArgs(f"{path} has more than {most_bytes} bytes")
    return data
