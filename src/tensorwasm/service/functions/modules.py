"""Modules in the artifact store: where they come from, and what keeps them there.

A version's module is kept by a name of its function's, ``function/ID/HASH``. The name is bound before the version's row
is written, so that a row never leads to nothing, and goes after the row has gone. What a deploy leaves that failed in
between, `Modules.tidy` finds: names without a row, and should it ever be, rows without a name.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

from tensorwasm.artifacts.store import ContentStore
from tensorwasm.artifacts.values import Digest
from tensorwasm.errors import ArtifactNotFound, InvalidRequest, ModuleTooLarge, NotFound, TensorWasmError
from tensorwasm.guest.engine.yielding import begin_yielding
from tensorwasm.service.functions.oci import is_image, read_image

HASH_PREFIX: Final = "blake3:"

GRACE_S: Final = 3600.0
"""How long nothing touches what a deploy may be about to write a row for."""

_KIND: Final = "module"
_FOLDER: Final = "function/"
_DIGEST_BYTES: Final = 32

_log = logging.getLogger(__name__)

_Params = ParamSpec("_Params")
_Value = TypeVar("_Value")


class Modules:
    """Modules of all tenants. For one event loop; every method that may block does so on threads of its own.

    Args:
        store: outlives it.
        threads: most of them.
    """

    def __init__(self, store: ContentStore, threads: int | None = None) -> None:
        """Start nothing yet."""
        self._store = store
        most = threads or (os.cpu_count() or 1) + 2
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="tensorwasm-module", initializer=begin_yielding)

    async def run(self, function: Callable[_Params, _Value], *args: _Params.args, **kwargs: _Params.kwargs) -> _Value:
        """Call something that blocks, on one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))

    async def read(self, tenant: int, source: bytes | str, most_bytes: int) -> bytes:
        """Return the module that a caller means.

        Args:
            tenant: who asks; only that tenant's own modules are found by their hash.
            source: a module, an OCI image layout as a tar file, or ``blake3:HEX`` for a module that is there already.
            most_bytes: longest module.

        Raises:
            ModuleTooLarge: it is longer.
            InvalidImage: an image that cannot be read.
            DigestMismatch: an image that is not what it says.
            InvalidRequest: text that is no hash.
            NotFound: no module of this tenant's has the hash.
            StoreUnavailable: the store does not answer.
            ArtifactCorrupt: what was stored is damaged.
        """
        if isinstance(source, str):
            return await self.run(self.fetch, tenant, parse_hash(source))
        if is_image(source):
            return await self.run(read_image, source, most_bytes)
        if len(source) > most_bytes:
            raise ModuleTooLarge(f"the module has {len(source)} bytes, more than {most_bytes}")
        return source

    def fetch(self, tenant: int, digest: Digest) -> bytes:
        """Return a tenant's module. Blocks.

        The answer is the same, and takes as long, for a module that nobody has, one that only others have, and an
        artifact that is no module.

        Raises:
            NotFound: this tenant has none of that hash.
            StoreUnavailable: the store does not answer.
            ArtifactCorrupt: what was stored is damaged.
        """
        try:
            if self._store.stat(str(tenant), digest).kind != _KIND:
                raise NotFound("there is no such module")
            return bytes(self._store.get(str(tenant), digest))
        except ArtifactNotFound:
            raise NotFound("there is no such module") from None

    def keep(self, tenant: int, function_id: str, module: bytes) -> Digest:
        """Store a module, and let it stay while a version of the function refers to it. Blocks.

        Raises:
            QuotaExceeded: the tenant has no room for it.
            TensorWasmError: what else `ContentStore.put` and `ContentStore.bind` raise.
        """
        digest = self._store.put(str(tenant), _KIND, module)
        self._store.bind(str(tenant), name_of(function_id, digest), digest)
        return digest

    def release(self, tenant: int, function_id: str) -> None:
        """Let the modules of a function go that is no more. Blocks. What fails is logged, and left to `tidy`."""
        prefix = f"{_FOLDER}{function_id}/"
        try:
            for name in self._store.names(str(tenant)):
                if name.startswith(prefix):
                    self._store.unbind(str(tenant), name)
        except TensorWasmError as error:
            _log.warning("the modules of the deleted function %s stay for now: %s", function_id, error)

    def tenants(self) -> tuple[str, ...]:
        """Return the tenants that have kept something at some time. Blocks."""
        return self._store.tenants()

    def tidy(self, tenant: int, wanted: frozenset[tuple[str, Digest]], now_ns: int) -> tuple[int, int]:
        """Take away names that no version wants, and give those that are wanted their names. Blocks.

        Args:
            tenant: whose.
            wanted: function and module of every version, read after `now_ns`.
            now_ns: the time, in nanoseconds since 1970; what was put in the hour before is left alone.

        Returns:
            How many names went, and how many were missing.
        """
        text, horizon_ns = str(tenant), now_ns - int(GRACE_S * 1e9)
        names = {name: digest for name, digest in self._store.names(text).items() if name.startswith(_FOLDER)}
        needed = {name_of(function_id, digest): digest for function_id, digest in wanted}
        old = {stat.digest for stat in self._store.list(text) if stat.made_ns < horizon_ns}
        stale = [name for name in names.keys() - needed.keys() if names[name] in old]
        missing = needed.keys() - names.keys()
        for name in stale:
            self._store.unbind(text, name)
        for name in missing:
            try:
                self._store.bind(text, name, needed[name])
            except ArtifactNotFound:
                _log.error("tenant %s has a version without its module: %s", text, name)
        return len(stale), len(missing)

    def collect(self) -> None:
        """Take away artifacts that nothing leads to. Blocks."""
        self._store.collect(GRACE_S)

    def close(self) -> None:
        """Wait for what is under way, and release the threads."""
        self._threads.shutdown()


def name_of(function_id: str, digest: Digest) -> str:
    """Return the name that keeps a function's module."""
    return f"{_FOLDER}{function_id}/{digest.hex()}"


def show_hash(digest: Digest) -> str:
    """Return a hash as callers write it."""
    return HASH_PREFIX + digest.hex()


def parse_hash(text: str) -> Digest:
    """Read a hash as callers write it.

    Raises:
        InvalidRequest: it is not ``blake3:`` and 64 hex digits.
    """
    try:
        digest = bytes.fromhex(text.removeprefix(HASH_PREFIX)) if len(text) == len(HASH_PREFIX) + 64 else b""
    except ValueError:
        digest = b""
    if len(digest) != _DIGEST_BYTES or not text.startswith(HASH_PREFIX):
        raise InvalidRequest(f"a module's hash is {HASH_PREFIX} and 64 hex digits")
    return digest
