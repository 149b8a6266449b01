"""Keys of the service's snapshots: one for each tenant, so that no tenant's snapshot is good for another.

A snapshot's file says which module it is of, and not whose it is. So what signs it is made from the service's key and
the tenant's number, and for any other tenant it is a file under an unknown key. A client may add a key of its own
(``X-TensorWasm-Snapshot-HMAC-Key``): what signs is then made from both, and nobody restores the file without either.
Only the service makes files that the service takes: a client's key alone signs nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from tensorwasm.artifacts.keys import HmacKey, Key, machine_key
from tensorwasm.artifacts.ring import KeyRing
from tensorwasm.errors import InvalidKey

_PURPOSE: Final = "service-snapshot"
_TENANT: Final = b"tensor-wasm snapshot of tenant\0"
_CLIENT: Final = b"tensor-wasm snapshot of tenant, with a client's key\0"
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_TENANT_BYTES: Final = 8


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


class Seals:
    """The rings of all tenants. Thread-safe."""

    def __init__(self, master: Key, ciphers: KeyRing | None = None) -> None:
        """Take what the rings are made from.

        Args:
            master: the service's own key.
            ciphers: a ring whose ciphers encrypt what is signed; None does not encrypt.
        """
        self._master = master
        self._ciphers = tuple(ciphers.ciphers.values()) if ciphers is not None else ()
        self._usual = lru_cache(maxsize=4096)(lambda tenant: self._make(tenant, b""))

    @classmethod
    def from_settings(cls, hmac_key: str) -> Seals:
        """Return the rings under the key of a setting, or under the machine's own if it is empty.

        Raises:
            InvalidKey: the setting is malformed.
            UnsafeFile: the machine's key cannot be read or made.
        """
        named = parse_hex_key("TENSOR_WASM_API_SNAPSHOT_HMAC_KEY", hmac_key) if hmac_key else None
        master = machine_key(_PURPOSE) if named is None else HmacKey(named)
        return cls(master, KeyRing.from_settings())

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
