"""`tensor-wasm artifacts`: what is kept, what nothing leads to, whether all is whole, and signing it again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tensorwasm.cli.places import owner
from tensorwasm.cli.progress import progress

if TYPE_CHECKING:
    from tensorwasm.artifacts.store import ContentStore
    from tensorwasm.artifacts.values import ArtifactFinding

GRACE_S: Final = 86400.0

app = typer.Typer(name="artifacts", help="What is kept: modules, code, kernels and snapshots.", no_args_is_help=True)

Where = Annotated[
    str | None,
    typer.Option("--store", metavar="WHERE", help="A folder or a URL. [env: TENSOR_WASM_ARTIFACTS]"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("ls")
def list_artifacts(
    *,
    store: Where = None,
    tenant: Annotated[str | None, typer.Option(help="Whose; without it everybody's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List artifacts: tenant, kind, length, when put, hash, and the names that lead to it."""
    rows = list(_rows(_open(store), tenant))
    if as_json:
        _print_json(rows)
        return
    for row in rows:
        names = " ".join(map(shown, row["names"]))
        made = row["made"][:16].replace("T", " ")
        print(
            f"{shown(row['tenant']):16} {row['kind']:8} {row['size_bytes']:>12} {made} {row['digest']} {names}".rstrip()
        )


def _rows(store: ContentStore, tenant: str | None) -> Iterator[dict[str, Any]]:
    for whose in store.tenants() if tenant is None else (tenant,):
        names = store.names(whose)
        for stat in store.list(whose):
            yield {
                "tenant": whose,
                "digest": stat.digest.hex(),
                "kind": stat.kind,
                "size_bytes": stat.size_bytes,
                "stored_bytes": stat.stored_bytes,
                "made": _time(stat.made_ns),
                "used": _time(stat.used_ns),
                "refers_to": [digest.hex() for digest in stat.refers_to],
                "names": [name for name, digest in names.items() if digest == stat.digest],
            }


@app.command()
def gc(
    *,
    store: Where = None,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="What was put less long ago stays, and what it refers to.")
    ] = GRACE_S,
    as_json: AsJson = False,
) -> None:
    """Take away what no name leads to, and what writers that died have left.

    The exit code is 1 if something of somebody's could not be read; the others' is collected all the same.
    """
    with progress("collecting") as tell:
        collected = _open(store).collect(grace, tell)
    findings = list(map(_finding, collected.findings))
    if as_json:
        artifacts = [{"tenant": whose, "digest": digest.hex()} for whose, digest in collected.artifacts]
        _print_json({**asdict(collected), "artifacts": artifacts, "findings": findings})
    else:
        for whose, digest in collected.artifacts:
            print(f"{shown(whose):16} {digest.hex()}")
        _print_findings(findings)
        print(
            f"collected {len(collected.artifacts)} artifacts of {collected.artifact_bytes} bytes "
            f"and {collected.leftovers} leftovers"
        )
    if findings:
        raise typer.Exit(1)


@app.command()
def verify(*, store: Where = None, as_json: AsJson = False) -> None:
    """Read everything and hash it again, and exit with 1 if something is damaged or gone.

    What no name leads to is listed too, and is no fault. Nothing is changed.
    """
    with progress("verifying") as tell:
        found = _open(store).verify(tell)
    findings = list(map(_finding, found.findings))
    if as_json:
        _print_json({**asdict(found), "findings": findings, "ok": found.ok})
    else:
        _print_findings(findings)
        print(f"{'ok' if found.ok else 'NOT OK'}: {found.count} artifacts of {found.artifact_bytes} bytes")
    if not found.ok:
        raise typer.Exit(1)


@app.command()
def renew(*, store: Where = None, as_json: AsJson = False) -> None:
    """Sign all snapshots with TENSOR_WASM_SNAPSHOT_KEY that another key signed, or encrypted.

    Those keys belong into TENSOR_WASM_SNAPSHOT_TRUST meanwhile; of TENSOR_WASM_SNAPSHOT_CIPHER_KEY the first
    encrypts. Names, and what adds to what, stay as they are. The exit code is 1 if one could not be
    renewed; the others are.
    """
    from tensorwasm.artifacts.keys import KeyRing  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.artifacts.snapshot.file import renew_snapshot  # noqa: PLC0415 - the same

    ring = KeyRing.from_settings()
    with progress("renewing") as tell:
        done = _open(store).renew(["snapshot"], lambda _tenant, data: renew_snapshot(data, ring), tell)
    findings = list(map(_finding, done.findings))
    if as_json:
        _print_json({**asdict(done), "findings": findings})
    else:
        _print_findings(findings)
        print(f"renewed {done.renewed} snapshots; {done.kept} needed nothing, {len(findings)} were not renewed")
    if findings:
        raise typer.Exit(1)


@app.command()
def unbind(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What leads to an artifact.")],
    *,
    store: Where = None,
    tenant: Annotated[str | None, typer.Option(help="Whose; without it the default tenant's.")] = None,
) -> None:
    """Take a name away; what nothing leads to any more goes with the next `gc`."""
    _open(store).unbind(owner(tenant), name)


def _finding(finding: ArtifactFinding) -> dict[str, Any]:
    return {**asdict(finding), "digest": finding.digest.hex() if finding.digest else None, "bad": finding.bad}


def _print_findings(findings: Iterable[dict[str, Any]]) -> None:
    for f in findings:
        print(f"{f['state']:11} {shown(f['tenant']):16} {f['digest'] or '-':64} {shown(f['detail'])}")


def _open(where: str | None) -> ContentStore:
    from tensorwasm.artifacts.opening import open_store  # noqa: PLC0415 - keeps --help quick

    return open_store(where)


def shown(text: str) -> str:
    """Return a text that anybody may have chosen as a terminal may get it: what is not printable is spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _time(since_ns: int) -> str:
    return datetime.fromtimestamp(since_ns / 1e9, UTC).isoformat(timespec="milliseconds")


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
