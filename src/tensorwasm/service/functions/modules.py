"""Modules of functions in the artifact store.

A version's module is kept by a name of its function, ``function/ID/HASH``. The name is bound before the version's row
is written and removed after the row, so a row's module always exists. `Modules.tidy` finds what a failed deploy leaves:
names without a row and, though that should not happen, rows without a name.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

from tensorwasm.artifacts.store import ContentStore
from tensorwasm.artifacts.values import Digest
from tensorwasm.errors import ArtifactNotFound, InvalidRequest, ModuleTooLarge, NotFound, TensorWasmError
from tensorwasm.service.functions.oci import is_image, read_image
from tensorwasm.wasm.sections import HEADER
from tensorwasm.yielding import begin_yielding

HASH_PREFIX: Final = "blake3:"

GRACE_S: Final = 3600.0
"""Age below which a module without a row is kept, because a deploy may be about to write the row."""

_KIND: Final = "module"
_FOLDER: Final = "function/"
_DIGEST_BYTES: Final = 32
_PIECE_BYTES: Final = 1 << 20

_log = logging.getLogger(__name__)

_Params = ParamSpec("_Params")
_Value = TypeVar("_Value")


class Modules:
    """Modules of all tenants. `run` and `read` are for one event loop; all other methods block, and are for `run`."""

    def __init__(self, store: ContentStore, threads: int | None = None) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(
            threads or (os.cpu_count() or 1) + 2, thread_name_prefix="tensorwasm-module", initializer=begin_yielding
        )
        self.tenants = store.tenants

    async def run(self, function: Callable[_Params, _Value], *args: _Params.args, **kwargs: _Params.kwargs) -> _Value:
        """Call a blocking function on one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))

    async def read(self, tenant: int, source: bytes | str, most_bytes: int) -> bytes:
        """Return the module of a deploy, of `most_bytes` at most.

        Args:
            tenant: the caller's; a hash finds only its own modules.
            source: a module, an OCI image layout as a tar file, or ``blake3:HEX`` of a stored module.
            most_bytes: longest module.

        Raises:
            ModuleTooLarge: the module is longer.
            TensorWasmError: what `read_image`, `parse_hash` and `fetch` raise.
        """
        if isinstance(source, str):
            return await self.run(self.fetch, tenant, parse_hash(source))
        if not source.startswith(HEADER) and is_image(source):
            return await self.run(read_image, source, most_bytes)
        if len(source) > most_bytes:
            raise ModuleTooLarge(f"the module has {len(source)} bytes, more than {most_bytes}")
        return source

    def fetch(self, tenant: int, digest: Digest) -> bytes:
        """Return a tenant's module; raise NotFound if it has no such module.

        The answer, and its time, is the same for a module that does not exist, one that only other tenants have, and an
        artifact that is not a module.
        """
        try:
            if self._store.stat(str(tenant), digest).kind != _KIND:
                raise NotFound("there is no such module")
            return _copy(self._store.get(str(tenant), digest))
        except ArtifactNotFound:
            raise NotFound("there is no such module") from None

    def keep(self, tenant: int, function_id: str, module: bytes) -> Digest:
        """Store a module, and keep it for a function. Raises as `ContentStore.put` and `ContentStore.bind` do."""
        digest = self._store.put(str(tenant), _KIND, module)
        self._store.bind(str(tenant), name_of(function_id, digest), digest)
        return digest

    def release(self, tenant: int, function_id: str) -> None:
        """Remove the names of a deleted function's modules; an error is logged, and `tidy` removes the rest."""
        prefix = f"{_FOLDER}{function_id}/"
        try:
            for name in self._store.names(str(tenant)):
                if name.startswith(prefix):
                    self._store.unbind(str(tenant), name)
        except TensorWasmError as error:
            _log.warning("the modules of the deleted function %s stay for now: %s", function_id, error)

    def tidy(self, tenant: int, wanted: frozenset[tuple[str, Digest]], now_ns: int) -> tuple[int, int]:
        """Remove names of modules without a version, and bind missing names of modules with one; return both numbers.

        Args:
            tenant: the tenant.
            wanted: function and module of every version, read after `now_ns`.
            now_ns: nanoseconds since 1970; modules stored in the `GRACE_S` before are not touched.
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
        """Remove artifacts without a name."""
        self._store.collect(GRACE_S)

    def close(self) -> None:
        """Wait for running work, and end the threads."""
        self._threads.shutdown()


def _copy(view: memoryview) -> bytes:
    """Return a copy, made in pieces: one step would keep the GIL for some milliseconds."""
    whole = io.BytesIO()  # hands over its buffer in the end
    for start in range(0, len(view), _PIECE_BYTES):
        whole.write(view[start : start + _PIECE_BYTES])
    return whole.getvalue()


def name_of(function_id: str, digest: Digest) -> str:
    """Return the name that keeps a function's module."""
    return f"{_FOLDER}{function_id}/{digest.hex()}"


def parse_hash(text: str) -> Digest:
    """Parse ``blake3:HEX``; raise InvalidRequest if the text is not ``blake3:`` and 64 hex digits."""
    try:
        digest = bytes.fromhex(text.removeprefix(HASH_PREFIX)) if len(text) == len(HASH_PREFIX) + 64 else b""
    except ValueError:
        digest = b""
    if len(digest) != _DIGEST_BYTES or not text.startswith(HASH_PREFIX):
        raise InvalidRequest(f"a module's hash is {HASH_PREFIX} and 64 hex digits")
    return digest
