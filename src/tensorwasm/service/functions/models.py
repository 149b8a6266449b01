"""`Models`: which function is meant by the name of a model, as clients of OpenAI's API use them."""

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
    from tensorwasm.service.functions.resolution import Resolved

KEPT: Final = 4096
"""Names that are remembered."""

KEPT_S: Final = 2.0
"""Seconds after which a name is looked up again: so long may a newer function of the same name go unseen."""

MOST_LISTED: Final = 1000
MOST_SHOWN: Final = 64


def parse_map(text: str) -> dict[str, str]:
    """Read ``MODEL:FUNCTION_ID,...``; a model's name may have colons.

    Raises:
        InvalidArgs: an entry has no name or no function, or a name comes twice.
    """
    found: dict[str, str] = {}
    for entry in filter(None, (each.strip() for each in text.split(","))):
        model, _, reference = entry.rpartition(":")
        if not model or not reference or model in found:
            raise InvalidArgs("TENSOR_WASM_API_OPENAI_MODEL_MAP: MODEL:FUNCTION_ID, each model once")
        found[model] = reference
    return found


class Models:
    """Which function each tenant's models are. For one event loop.

    Args:
        functions: what serves them.
        mapped: references to functions by the names that the operator gave them.
        clock_s: the monotonic clock.
    """

    def __init__(
        self, functions: Functions, mapped: dict[str, str], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Know no names but the operator's."""
        self._functions = functions
        self._mapped = mapped
        self._clock_s = clock_s
        self._known: OrderedDict[tuple[int, str], tuple[str, float]] = OrderedDict()

    def known(self, tenant: int, model: str) -> str | None:
        """Return what `find` returned lately, None if that is too long ago."""
        found = self._known.get((tenant, model))
        return found[0] if found is not None and found[1] > self._clock_s() else None

    async def find(self, tenant: int, model: str) -> str:
        """Return the reference of a tenant's model.

        Raises:
            ModelNotFound: the tenant has none; another's are the same as none.
        """
        reference = self.known(tenant, model)
        if reference is None:
            reference = (await self._look_up(tenant, model)).reference
            self._known[tenant, model] = reference, self._clock_s() + KEPT_S
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return reference

    def forget(self, tenant: int, model: str) -> None:
        """Look a model up again the next time: its function was not there."""
        self._known.pop((tenant, model), None)

    async def get(self, tenant: int, model: str) -> FunctionRecord:
        """Return the function of a tenant's model.

        Raises:
            ModelNotFound: the tenant has no function of that name that is deployed as a model.
        """
        return (await self._look_up(tenant, model)).record

    async def list(self, tenant: int) -> dict[str, FunctionRecord]:
        """Return a tenant's models by name: the operator's names first, then its functions, the newest of each name."""
        models: dict[str, FunctionRecord] = {}
        for name, reference in self._mapped.items():
            with suppress(NotFound):
                models[name] = (await self._functions.resolve(tenant, reference)).record
        for record, options in await self._functions.newest(tenant, MOST_LISTED):
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
        raise ModelNotFound(f"there is no model {model[:MOST_SHOWN]!r}")

    def _mapped_references(self, model: str) -> Iterator[str]:
        """Yield what the operator's map says that a name means; a name may have an ``@`` itself."""
        name, at, version = model.rpartition("@")
        if model in self._mapped:
            yield self._mapped[model]
        if at and name in self._mapped:
            yield f"{self._mapped[name]}@{version}"
