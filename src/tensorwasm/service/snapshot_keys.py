"""Keys that sign the service's snapshots: one for each tenant, so that no tenant can restore another's snapshot.

A snapshot's file names its module but not its tenant. Its signing key is therefore derived from the service's key and
the tenant's number, and for any other tenant the file is under an unknown key. A client may add its own key
(``X-TensorWasm-Snapshot-HMAC-Key``): the signing key is then derived from both, and restoring needs both. A client's
key alone signs nothing, so only the service makes files that the service accepts.
"""

from __future__ import annotations

import logging
import re
import secrets
from functools import lru_cache
from pathlib import Path
from typing import Final

from tensorwasm import settings
from tensorwasm.artifacts.keys import (
    KEY_BYTES,
    CipherKey,
    HmacKey,
    KeyRing,
    SigningKey,
    ciphers_from_settings,
    load_key,
    parse_secret,
    store_key,
)
from tensorwasm.artifacts.private_files import STATE
from tensorwasm.errors import InvalidKey, SnapshotKeyMissing, UnknownKey

PURPOSE: Final = "service-snapshot"
"""Name of the key's file in the folder ``keys`` of the data folder."""

_FOLDER: Final = "the data folder (TENSOR_WASM_DATA)"
_IDENTITY: Final = b"tensor-wasm identity of the service's snapshot key\0"
_TENANT: Final = b"tensor-wasm snapshot of tenant\0"
_CLIENT: Final = b"tensor-wasm snapshot of tenant, with a client's key\0"
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_TENANT_BYTES: Final = 8
_log = logging.getLogger(__name__)


def key_missing(error: UnknownKey) -> SnapshotKeyMissing:
    """Return the error for a file of the service that is under a key which the service does not have."""
    return SnapshotKeyMissing(
        f"{error.message}: bring back keys/{PURPOSE} of the data folder, or the key that was set then in "
        "TENSOR_WASM_API_SNAPSHOT_HMAC_KEY or TENSOR_WASM_SNAPSHOT_CIPHER_KEY"
    )


def parse_hex_key(name: str, text: str) -> bytes:
    """Parse a key of 64 hex digits; raise InvalidKey with the name of the setting or header, and without the text."""
    if not _HEX.fullmatch(text):
        raise InvalidKey(f"{name} is not 64 hexadecimal digits")
    return bytes.fromhex(text)


class SnapshotKeys:
    """The key rings of all tenants, derived from `master`. The first of `ciphers` encrypts snapshots. Thread-safe.

    Attributes:
        id: public identity of the master key, which all servers of a database must share.
    """

    def __init__(self, master: SigningKey, ciphers: tuple[CipherKey, ...] = ()) -> None:
        self._master = master
        self._ciphers = ciphers
        self.id = HmacKey(master.sign(_IDENTITY)).id
        self._cached = lru_cache(maxsize=4096)(lambda tenant: self._make(tenant, b""))

    @classmethod
    def from_settings(cls, hmac_key: str, folder: Path) -> SnapshotKeys:
        """Return the rings under the key of a setting, or under that of the data folder, made if it is missing.

        `hmac_key` is 64 hexadecimal digits, the path of a file with them, or empty. A key that an earlier release made
        in the state folder is copied into the data folder. Raise InvalidKey, or UnsafeFile if a key file cannot be read
        or made.
        """
        found = cls.kept(hmac_key, folder)
        if found is not None:
            return found
        master = _move_key(folder)
        if master is None:
            _log.warning("snapshots are signed with a new key, keys/%s in the data folder", PURPOSE)
            master = store_key(folder, PURPOSE, _FOLDER, secrets.token_bytes(KEY_BYTES))
        return cls(master, ciphers_from_settings())

    @classmethod
    def kept(cls, hmac_key: str, folder: Path) -> SnapshotKeys | None:
        """Return the rings as `from_settings` does, but None instead of making or copying a key."""
        setting = "TENSOR_WASM_API_SNAPSHOT_HMAC_KEY"
        master = parse_secret(setting, hmac_key) if hmac_key else load_key(folder, PURPOSE, _FOLDER)
        return None if master is None else cls(master, ciphers_from_settings())

    def ring(self, tenant: int, client_key: bytes = b"") -> KeyRing:
        """Return the keys that sign and verify a tenant's snapshots; `client_key` is 32 bytes, or empty."""
        return self._make(tenant, client_key) if client_key else self._cached(tenant)

    def _make(self, tenant: int, client_key: bytes) -> KeyRing:
        label = (_CLIENT if client_key else _TENANT) + tenant.to_bytes(_TENANT_BYTES, "little") + client_key
        return KeyRing.of(HmacKey(self._master.sign(label)), ciphers=self._ciphers)

    def __repr__(self) -> str:
        return "SnapshotKeys()"


def _move_key(folder: Path) -> HmacKey | None:
    """Copy the key that an earlier release made in the state folder to the data folder; None if there is none."""
    if not (settings.state_dir() / "keys" / PURPOSE).exists():
        return None
    found = load_key(settings.state_dir(), PURPOSE, STATE)
    if found is None:
        return None
    _log.warning("the key of snapshots is copied from the state folder: keys/%s in the data folder counts now", PURPOSE)
    return found.copy_to(folder, PURPOSE, _FOLDER)
