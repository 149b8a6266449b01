"""Checks of a copy of a data folder (`tensor-wasm doctor --data`): database, artifacts, keys, audit log. Read-only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tensorwasm import settings as process
from tensorwasm.artifacts.opening import open_store
from tensorwasm.artifacts.sealed.header import HEADER_BYTES, read_header
from tensorwasm.artifacts.store import ContentStore, TenantView
from tensorwasm.database.engine.opening import read_database, sqlite_url
from tensorwasm.database.usage import Inventory, take_inventory
from tensorwasm.doctor.facts import CheckResult, Status
from tensorwasm.errors import ArtifactCorrupt, ArtifactNotFound, SealRefused, TensorWasmError, UnknownKey
from tensorwasm.runtime.snapshots import stored
from tensorwasm.service.sessions.instances import session_name
from tensorwasm.service.snapshot_keys import PURPOSE, SnapshotKeys
from tensorwasm.service.snapshots.snapshots import snapshot_name
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.audit import log_files, log_path, verify

_SHOWN: Final = 5
"""Most names in a row."""

_KEY_FIX: Final = (
    f"Bring back keys/{PURPOSE} of the folder that was copied, or set TENSOR_WASM_API_SNAPSHOT_HMAC_KEY as it was then."
)


def examine(folder: Path, settings: ServiceSettings) -> tuple[CheckResult, ...]:
    """Check a data folder, and what the settings of the service say is elsewhere. Blocks."""
    if not folder.is_dir():
        return (CheckResult("data folder", Status.FAIL, "it does not exist", "", "Name the folder that was copied."),)
    rows, snapshot_keys = _keys(folder, settings)
    found, inventory = _database(folder, settings)
    rows.append(found)
    if inventory is not None:
        rows += _artifacts(folder, inventory, snapshot_keys)
    rows.append(_audit(folder, settings))
    return tuple(rows)


def _keys(folder: Path, settings: ServiceSettings) -> tuple[list[CheckResult], SnapshotKeys | None]:
    named = "TENSOR_WASM_API_SNAPSHOT_HMAC_KEY" if settings.snapshot_hmac_key else f"keys/{PURPOSE}"
    try:
        # Looking for a key would make the folder.
        there = settings.snapshot_hmac_key or (folder / "keys").is_dir()
        snapshot_keys = SnapshotKeys.kept(settings.snapshot_hmac_key, folder) if there else None
    except TensorWasmError as error:
        return [CheckResult("keys", Status.FAIL, error.message, "", _KEY_FIX)], None
    if snapshot_keys is None:
        why = "The key that signs snapshots and sessions is neither in the folder nor in a setting."
        return [CheckResult("keys", Status.FAIL, f"{named} is missing", why, _KEY_FIX)], None
    return [CheckResult("keys", Status.OK, f"{named} (identity {snapshot_keys.id})")], snapshot_keys


def _database(folder: Path, settings: ServiceSettings) -> tuple[CheckResult, Inventory | None]:
    try:
        database = read_database(settings.database or sqlite_url(folder / "service.db"))
        try:
            with database.reading() as connection:
                found = take_inventory(connection)
        finally:
            database.close()
    except TensorWasmError as error:
        fix = "Bring back service.db, and service.db-wal if there was one, or set TENSOR_WASM_DATABASE."
        return CheckResult("database", Status.FAIL, error.message, "", fix), None
    counts = f"{len(found.modules)} versions of functions, {len(found.saves)} saved sessions"
    return CheckResult("database", Status.OK, f"{counts}, {len(found.snapshots)} snapshots"), found


def _artifacts(folder: Path, inventory: Inventory, snapshot_keys: SnapshotKeys | None) -> Iterator[CheckResult]:
    place = process.current().artifacts or str(folder / "artifacts")
    fix = "Bring back the folder artifacts/, copied after the database, or set TENSOR_WASM_ARTIFACTS."
    if "://" not in place and not Path(place).is_dir():
        yield CheckResult("artifacts", Status.FAIL, "the folder is not there", "", fix)
        return
    try:
        store = open_store(place)
        lost = [f"{function} version {number}" for *_, function, number in _without_module(store, inventory)]
        named = [(int(tenant), session_name(*save), save[0]) for tenant, *save in inventory.saves]
        named += [(int(tenant), snapshot_name(each), each) for tenant, each in inventory.snapshots]
        states = [(_state(store, snapshot_keys, tenant, name), each) for tenant, name, each in named]
    except TensorWasmError as error:
        yield CheckResult("artifacts", Status.FAIL, error.message, "", fix)
        return
    yield _row("modules", lost, "modules are missing", len(inventory.modules), fix)
    missing = [each for state, each in states if state == "missing"]
    yield _row("saved states", missing, "saved states are missing or damaged", len(states), fix)
    unread = [each for state, each in states if state == "key"]
    yield _row("keys of saved states", unread, "saved states are under a key that is not here", len(states), _KEY_FIX)


def _without_module(store: ContentStore, inventory: Inventory) -> Iterator[tuple[str, str, int]]:
    kept = {tenant: {each.digest for each in store.list(tenant)} for tenant in {each[0] for each in inventory.modules}}
    for tenant, function, number, module in inventory.modules:
        if module not in kept[tenant]:
            yield tenant, function, number


def _state(store: ContentStore, snapshot_keys: SnapshotKeys | None, tenant: int, name: str) -> str:
    """Return ``ok``, ``missing`` or ``key`` by the file's header; `tensor-wasm artifacts verify` checks the content."""
    try:
        head = bytes(stored.fetch_snapshot(TenantView(store, str(tenant)), name).files[0][:HEADER_BYTES])
        if snapshot_keys is None:
            return "key"
        read_header(head, snapshot_keys.ring(tenant))
    except UnknownKey:
        return "key"
    except (ArtifactCorrupt, ArtifactNotFound, SealRefused):
        return "missing"
    return "ok"


def _row(check: str, bad: list[str], what: str, total: int, fix: str) -> CheckResult:
    if not bad:
        return CheckResult(check, Status.OK, f"all {total} are there")
    more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return CheckResult(check, Status.FAIL, f"{len(bad)} of {total} {what}: {', '.join(bad[:_SHOWN])}{more}", "", fix)


def _audit(folder: Path, settings: ServiceSettings) -> CheckResult:
    try:
        path = log_path(settings, folder)
        if path is None or not path.exists():
            return CheckResult("audit log", Status.INFO, "there is none in a file")
        found = verify(*log_files(path))
    except TensorWasmError as error:
        return CheckResult("audit log", Status.WARN, error.message)
    if found.ok:
        return CheckResult("audit log", Status.OK, f"lines {found.first_seq} to {found.last.seq} hold")
    return CheckResult("audit log", Status.WARN, found.findings[0].detail, "", "See `tensor-wasm audit verify`.")
