"""`tensor-wasm artifacts`: list stored artifacts, collect unreachable ones, verify all, sign snapshots again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tensorwasm.cli.output import AsJson, escaped, print_json, progress

if TYPE_CHECKING:
    from tensorwasm.artifacts.store import ContentStore
    from tensorwasm.artifacts.values import ArtifactFinding

GRACE_S: Final = 86400.0

app = typer.Typer(
    name="artifacts", help="Stored artifacts: modules, code, kernels and snapshots.", no_args_is_help=True
)

Where = Annotated[
    str | None, typer.Option("--store", metavar="WHERE", help="A folder or a URL. [env: TENSOR_WASM_ARTIFACTS]")
]


@app.command("ls")
def list_artifacts(
    *,
    store: Where = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's; all tenants' by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """List artifacts: tenant, kind, length, time of storage, hash, and the names that lead to it."""
    opened = _open(store)
    rows = [row for each in (opened.tenants() if tenant is None else (tenant,)) for row in _rows(opened, each)]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        made = row["made"][:16].replace("T", " ")
        names = " ".join(map(escaped, row["names"]))
        head = f"{escaped(row['tenant']):16} {row['kind']:8} {row['size_bytes']:>12}"
        print(f"{head} {made} {row['digest']} {names}".rstrip())


def _rows(store: ContentStore, tenant: str) -> list[dict[str, Any]]:
    names = store.names(tenant)
    return [
        {
            "tenant": tenant,
            "digest": stat.digest.hex(),
            "kind": stat.kind,
            "size_bytes": stat.size_bytes,
            "stored_bytes": stat.stored_bytes,
            "made": _time(stat.made_ns),
            "used": _time(stat.used_ns),
            "refers_to": [digest.hex() for digest in stat.refers_to],
            "names": [name for name, digest in names.items() if digest == stat.digest],
        }
        for stat in store.list(tenant)
    ]


@app.command()
def gc(
    *,
    store: Where = None,
    grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Artifacts stored less long ago are kept, with all that they refer to."),
    ] = GRACE_S,
    as_json: AsJson = False,
) -> None:
    """Remove artifacts that no name leads to, and leftovers of writers that died.

    The exit code is 1 if artifacts of a tenant could not be read; the others' are collected all the same.
    """
    with progress("collecting") as report:
        collected = _open(store).collect(grace, report)
    rows = [{"tenant": tenant, "digest": digest.hex()} for tenant, digest in collected.artifacts]
    found = {**asdict(collected), "artifacts": rows}
    lines = [f"{escaped(row['tenant']):16} {row['digest']}" for row in rows]
    summary = f"collected {len(rows)} artifacts of {collected.artifact_bytes} bytes and {collected.leftovers} leftovers"
    _finish(found, collected.findings, lines, summary, ok=not collected.findings, as_json=as_json)


@app.command()
def verify(*, store: Where = None, as_json: AsJson = False) -> None:
    """Read everything and hash it again, and exit with 1 if something is damaged or missing.

    Artifacts that no name leads to are listed too, and are no fault. Nothing is changed.
    """
    with progress("verifying") as report:
        found = _open(store).verify(report)
    summary = f"{'ok' if found.ok else 'NOT OK'}: {found.count} artifacts of {found.artifact_bytes} bytes"
    _finish({**asdict(found), "ok": found.ok}, found.findings, (), summary, ok=found.ok, as_json=as_json)


@app.command()
def renew(*, store: Where = None, as_json: AsJson = False) -> None:
    """Sign all snapshots with TENSOR_WASM_SNAPSHOT_KEY that another key signed, or encrypted.

    TENSOR_WASM_SNAPSHOT_TRUST must list those keys until then; the first of TENSOR_WASM_SNAPSHOT_CIPHER_KEY
    encrypts. Names and parents stay as they are. The exit code is 1 if a snapshot could not be renewed; the others
    are.
    """
    from tensorwasm.artifacts.keys import KeyRing  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.artifacts.snapshot.file import renew_snapshot  # noqa: PLC0415 - the same

    ring = KeyRing.from_settings()
    with progress("renewing") as report:
        done = _open(store).renew(["snapshot"], lambda _tenant, data: renew_snapshot(data, ring), report)
    failed = len(done.findings)
    summary = f"renewed {done.renewed} snapshots; {done.kept} needed nothing, {failed} were not renewed"
    _finish(asdict(done), done.findings, (), summary, ok=not failed, as_json=as_json)


@app.command()
def unbind(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an artifact.")],
    *,
    store: Where = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant; without it the default tenant.")] = None,
) -> None:
    """Remove a name; artifacts that no name leads to any more are removed by the next `gc`."""
    from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT  # noqa: PLC0415 - keeps --help quick

    _open(store).unbind(tenant or DEFAULT_TENANT, name)


def _finish(
    found: dict[str, Any],
    findings: Sequence[ArtifactFinding],
    lines: Sequence[str],
    summary: str,
    *,
    ok: bool,
    as_json: bool,
) -> None:
    """Print the result of a pass over the store, and exit with 1 if it is not ok."""
    rows = [
        {**asdict(each), "digest": each.digest.hex() if each.digest else None, "bad": each.bad} for each in findings
    ]
    if as_json:
        print_json({**found, "findings": rows})
    else:
        shown = (
            f"{row['state']:11} {escaped(row['tenant']):16} {row['digest'] or '-':64} {escaped(row['detail'])}"
            for row in rows
        )
        print("\n".join([*lines, *shown, summary]))
    if not ok:
        raise typer.Exit(1)


def _open(where: str | None) -> ContentStore:
    from tensorwasm.artifacts.opening import open_store  # noqa: PLC0415 - keeps --help quick

    return open_store(where)


def _time(since_ns: int) -> str:
    return datetime.fromtimestamp(since_ns / 1e9, UTC).isoformat(timespec="milliseconds")
