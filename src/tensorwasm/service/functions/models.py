"""`ModelNames`: finds functions by model names, as clients of OpenAI's API use them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import InvalidArgs, ModelNotFound, NotFound

if TYPE_CHECKING:
    from tensorwasm.database.functions import FunctionRecord
    from tensorwasm.service.functions.functions import Functions
    from tensorwasm.service.functions.loading import Resolved

KEPT: Final = 4096
"""Most cached names."""

KEPT_S: Final = 2.0
"""Seconds that a name is cached, and that a newer function of the name may go unseen."""

MAX_LISTED: Final = 1000
MAX_SHOWN: Final = 64


def parse_map(text: str) -> dict[str, str]:
    """Parse ``MODEL:FUNCTION_ID,...``, models with colons too; InvalidArgs if a part is empty or a model repeated."""
    found: dict[str, str] = {}
    for entry in filter(None, (each.strip() for each in text.split(","))):
        model, _, reference = entry.rpartition(":")
        if not model or not reference or model in found:
            raise InvalidArgs("TENSOR_WASM_API_OPENAI_MODEL_MAP is a list of MODEL:FUNCTION_ID, with each model once")
        found[model] = reference
    return found


class ModelNames:
    """The models of all tenants; `mapped` has the operator's names and their references. For one event loop."""

    def __init__(
        self, functions: Functions, mapped: dict[str, str], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._functions = functions
        self._mapped = mapped
        self._clock_s = clock_s
        self._cached: OrderedDict[tuple[int, str], tuple[str, float]] = OrderedDict()

    def known(self, tenant: int, model: str) -> str | None:
        """Return the cached result of `find`, None if there is none."""
        found = self._cached.get((tenant, model))
        return found[0] if found is not None and found[1] > self._clock_s() else None

    async def find(self, tenant: int, model: str) -> str:
        """Return the reference of a tenant's model; raise ModelNotFound if the tenant has no such model."""
        reference = self.known(tenant, model)
        if reference is None:
            reference = (await self._look_up(tenant, model)).reference
            self._cached[tenant, model] = reference, self._clock_s() + KEPT_S
            if len(self._cached) > KEPT:
                self._cached.popitem(last=False)
        return reference

    def forget(self, tenant: int, model: str) -> None:
        """Remove a model from the cache, because its function was not found."""
        self._cached.pop((tenant, model), None)

    async def get(self, tenant: int, model: str) -> FunctionRecord:
        """Return the function of a tenant's model; raise ModelNotFound if the tenant has no such model."""
        return (await self._look_up(tenant, model)).record

    async def list(self, tenant: int) -> dict[str, FunctionRecord]:
        """Return a tenant's models by name: the operator's names first, then its functions, the newest of each name."""
        models: dict[str, FunctionRecord] = {}
        for name, reference in self._mapped.items():
            with suppress(NotFound):
                models[name] = (await self._functions.resolve(tenant, reference)).record
        for record, options in await self._functions.newest(tenant, MAX_LISTED):
            if options.model:
                models.setdefault(record.name, record)
        return models

    async def _look_up(self, tenant: int, model: str) -> Resolved:
        for reference in self._mapped_references(model):
            with suppress(NotFound):
                return await self._functions.resolve(tenant, reference)
        with suppress(NotFound):
            resolved = await self._functions.resolve(tenant, model)
            if resolved.options.model:
                return resolved
        raise ModelNotFound(f"there is no model {model[:MAX_SHOWN]!r}")

    def _mapped_references(self, model: str) -> Iterator[str]:
        """Yield the operator's references for a name, which may contain ``@``."""
        name, at, version = model.rpartition("@")
        if model in self._mapped:
            yield self._mapped[model]
        if at and name in self._mapped:
            yield f"{self._mapped[name]}@{version}"
