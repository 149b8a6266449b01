"""Keys of the service's snapshots: one for each tenant, so that no tenant's snapshot is good for another.

A snapshot's file says which module it is of, and not whose it is. So what signs it is made from the service's key and
the tenant's number, and for any other tenant it is a file under an unknown key. A client may add a key of its own
(``X-TensorWasm-Snapshot-HMAC-Key``): what signs is then made from both, and nobody restores the file without either.
Only the service makes files that the service takes: a client's key alone signs nothing.
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
"""The key's file in the folder ``keys`` of the data folder."""

_FOLDER: Final = "the data folder (TENSOR_WASM_DATA)"
_IDENTITY: Final = b"tensor-wasm identity of the service's snapshot key\0"
_TENANT: Final = b"tensor-wasm snapshot of tenant\0"
_CLIENT: Final = b"tensor-wasm snapshot of tenant, with a client's key\0"
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_TENANT_BYTES: Final = 8
_log = logging.getLogger(__name__)


def key_missing(error: UnknownKey) -> SnapshotKeyMissing:
    """Return what to raise where the service's own files are under a key that it has not."""
    return SnapshotKeyMissing(
        f"{error.message}: bring back keys/{PURPOSE} of the data folder, or the key that was set then in "
        "TENSOR_WASM_API_SNAPSHOT_HMAC_KEY or TENSOR_WASM_SNAPSHOT_CIPHER_KEY"
    )


def parse_hex_key(name: str, text: str) -> bytes:
    """Read a key of 64 hexadecimal digits.

    Args:
        name: of the setting or header, for the message.
        text: the key.

    Raises:
        InvalidKey: it is not one. The message does not have it.
    """
    if not _HEX.fullmatch(text):
        raise InvalidKey(f"{name} is not 64 hexadecimal digits")
    return bytes.fromhex(text)


class SnapshotKeys:
    """The rings of all tenants. Thread-safe."""

    def __init__(self, master: SigningKey, ciphers: tuple[CipherKey, ...] = ()) -> None:
        """Take what the rings are made from.

        Args:
            master: the service's own key.
            ciphers: the first encrypts what is signed; without any nothing is encrypted.
        """
        self._master = master
        self._ciphers = ciphers
        self.id = HmacKey(master.sign(_IDENTITY)).id
        """Known to other servers of the database, who must have the same key; it tells nothing of the key."""
        self._usual = lru_cache(maxsize=4096)(lambda tenant: self._make(tenant, b""))

    @classmethod
    def from_settings(cls, hmac_key: str, folder: Path) -> SnapshotKeys:
        """Return the rings under the key of a setting, or under the data folder's own, made if there is none.

        Args:
            hmac_key: 64 hexadecimal digits, or the path of a file that has them; empty takes the data folder's key.
            folder: the data folder. A key that an earlier release made in the state folder is copied into it.

        Raises:
            InvalidKey: the setting is malformed.
            UnsafeFile: a file of a key cannot be read or made.
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
        """Return the rings as `from_settings` does, and make and copy no key; None if there is none.

        Raises:
            InvalidKey: the setting is malformed.
            UnsafeFile: a file of a key cannot be read.
        """
        setting = "TENSOR_WASM_API_SNAPSHOT_HMAC_KEY"
        master = parse_secret(setting, hmac_key) if hmac_key else load_key(folder, PURPOSE, _FOLDER)
        return None if master is None else cls(master, ciphers_from_settings())

    def ring(self, tenant: int, client_key: bytes = b"") -> KeyRing:
        """Return what signs and verifies a tenant's snapshots.

        Args:
            tenant: 0 to 2**64 - 1.
            client_key: a client's own, 32 bytes; empty for none.
        """
        return self._make(tenant, client_key) if client_key else self._usual(tenant)

    def _make(self, tenant: int, client_key: bytes) -> KeyRing:
        label = (_CLIENT if client_key else _TENANT) + tenant.to_bytes(_TENANT_BYTES, "little") + client_key
        return KeyRing.of(HmacKey(self._master.sign(label)), ciphers=self._ciphers)

    def __repr__(self) -> str:
        return "Seals()"


def _move_key(folder: Path) -> HmacKey | None:
    """Return the key that an earlier release made in the state folder, copied into the data folder; None if none."""
    if not (settings.state_dir() / "keys" / PURPOSE).exists():
        return None
    found = load_key(settings.state_dir(), PURPOSE, STATE)
    if found is None:
        return None
    _log.warning("the key of snapshots is copied from the state folder: keys/%s in the data folder counts now", PURPOSE)
    return found.copy_to(folder, PURPOSE, _FOLDER)
