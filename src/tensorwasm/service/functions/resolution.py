"""What references lead to, remembered: `Resolved`, and the `ResolutionCache` of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.database.functions import FunctionOptions, FunctionRecord, VersionRecord
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.deploy.lru_cache import LruCache
from tensorwasm.service.functions.loading import KEPT_BYTES
from tensorwasm.values import Limits

KEPT: Final = 8192


@dataclass(frozen=True, slots=True)
class Resolved:
    """A version of a function, ready to be called.

    Attributes:
        reference: what led to it.
        record: the function.
        version: the version.
        function: compiled.
        module: the binary, the same object as long as it is loaded.
        limits: of its sandboxes.
        tenant: whose it is, as the rooms below know tenants.
        cuda: whether its guests are granted the device, so that they run in worker processes.
        inline: whether they run in this process, in fresh sandboxes.
        usual_ns: longest that an invocation takes for which its caller asks for nothing.
        until_ns: when it has to be looked up again, on the monotonic clock.
    """

    reference: str
    record: FunctionRecord
    version: VersionRecord
    function: Function
    module: bytes = field(repr=False)
    limits: Limits
    tenant: str
    cuda: bool
    inline: bool
    usual_ns: int
    until_ns: float

    @property
    def options(self) -> FunctionOptions:
        """How it is run."""
        return self.version.options


class ResolutionCache:
    """A bounded number of resolved references, found by one look-up. Not thread-safe."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._known: LruCache[Resolved] = LruCache(KEPT, KEPT_BYTES)
        self._keys: dict[str, set[tuple[int, str]]] = {}
        self.changes = 0

    def find(self, tenant: int, reference: str) -> Resolved | None:
        """Return what a tenant's reference leads to, None if that is not known, or has to be looked up again."""
        found = self._known.get((tenant, reference))
        return found if found is not None and time.monotonic_ns() < found.until_ns else None

    def put(self, resolved: Resolved, changes: int) -> None:
        """Remember, unless anything has changed since `changes` was read: it may lead somewhere else by now."""
        if changes != self.changes:
            return
        key = resolved.record.tenant, resolved.reference
        self._known.drop(key)
        self._keys.setdefault(resolved.record.id, set()).add(key)
        for gone in self._known.put(key, resolved, len(resolved.module)):
            keys = self._keys[gone.record.id]
            keys.discard((gone.record.tenant, gone.reference))
            if not keys:
                del self._keys[gone.record.id]

    def forget(self, function_id: str) -> None:
        """Forget all that led to a function."""
        self.changes += 1
        for key in self._keys.pop(function_id, ()):
            self._known.drop(key)

    def forget_name(self, tenant: int, name: str) -> None:
        """Forget what a tenant's function name led to: another function may be the newest of that name now."""
        self.changes += 1
        stale = [
            key
            for keys in self._keys.values()
            for key in keys
            if key[0] == tenant and (key[1] == name or key[1].startswith(f"{name}@"))
        ]
        for key in stale:
            self._known.drop(key)
