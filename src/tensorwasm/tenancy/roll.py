"""`Roll`: every token that is good, by its digest, for the path that each request takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tensorwasm.tenancy.principal import SCOPES, USER_SCOPES, Principal
from tensorwasm.tenancy.tokens import StaticToken

if TYPE_CHECKING:
    from tensorwasm.database.tokens import TokenRecord

PUBLISH: Final = "kernels:publish"


class Roll:
    """The tokens of the operator's list and all live ones of the database. Used by one thread.

    A look-up takes the time that a dictionary of digests takes: whoever watches it learns of a hash of a digest, seeded
    anew in each process, and nothing of a token. It grows with what administrators make, and with nothing else.

    Args:
        listed: the operator's tokens.
        publishers: digests of tokens that may publish kernels whatever their scopes.
    """

    def __init__(self, listed: Iterable[StaticToken] = (), publishers: frozenset[bytes] = frozenset()) -> None:
        """Start with the operator's tokens."""
        self._publishers = publishers
        self._listed = {
            each.digest: Principal("bearer", f"env:{each.place}", each.tenants, self._widen(each.digest, USER_SCOPES))
            for each in listed
        }
        self._digests: dict[str, bytes] = {}
        self._known = dict(self._listed)
        self.find = self._known.get  # what each request calls

    def __len__(self) -> int:
        return len(self._known)

    def enter(self, record: TokenRecord, now_unix_ms: int) -> None:
        """Let a token of the database be as its record says: good, or no longer."""
        if not record.live(now_unix_ms):
            self._strike(record.id)
            return
        if record.digest in self._listed:
            return
        scopes = self._widen(record.digest, record.scopes.intersection(SCOPES))
        self._digests[record.id] = record.digest
        self._known[record.digest] = Principal("bearer", record.id, record.tenants, scopes, record.expires_unix_ms)

    def sweep(self, now_unix_ms: int) -> None:
        """Forget tokens that have come to their end."""
        for token_id, digest in list(self._digests.items()):
            expires_unix_ms = self._known[digest].expires_unix_ms
            if expires_unix_ms is not None and now_unix_ms >= expires_unix_ms:
                self._strike(token_id)

    def clear(self) -> None:
        """Forget all tokens of the database."""
        for token_id in list(self._digests):
            self._strike(token_id)

    def _strike(self, token_id: str) -> None:
        digest = self._digests.pop(token_id, None)
        if digest is not None:
            del self._known[digest]

    def _widen(self, digest: bytes, scopes: frozenset[str]) -> frozenset[str]:
        return scopes | {PUBLISH} if digest in self._publishers else scopes
