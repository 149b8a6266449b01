"""The database as the parts of the service use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from tensorwasm.database import Connection

_Params = ParamSpec("_Params")
_Value = TypeVar("_Value")


class DatabasePort(Protocol):
    """The database; `tensorwasm.database.engine.executor.DatabaseExecutor` is one."""

    async def read(
        self, fn: Callable[Concatenate[Connection, _Params], _Value], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Value:
        """Return what a function reads."""

    async def write(
        self, fn: Callable[Concatenate[Connection, _Params], _Value], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Value:
        """Return what a function returned, once what it wrote is safe."""
