"""What a function's warm sandboxes are made of, and who may have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tensorwasm.errors import InternalError
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.state import START_CEILING_S
from tensorwasm.runtime.warm.pool import PoolSpecification, RefusingServices, Stop
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.guest.sandbox.wasi import WasiConfig
    from tensorwasm.values import Limits

START_S: Final = min(10.0, START_CEILING_S)
"""Longest that a start may take that is had in advance: one thread makes all."""


@dataclass(slots=True, eq=False)
class WarmSpecification(PoolSpecification):
    """A `PoolSpecification`, and what the starts saw of the world.

    Attributes:
        args: WASI arguments.
        env: WASI environment.
        initialisers: what was called of it, in order.
    """

    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    initialisers: tuple[str, ...] = ()

    def fits(self, config: WasiConfig, initialisers: tuple[str, ...]) -> bool:
        """Return whether a start would have done and seen the same in a sandbox made for a caller."""
        same = config.args == self.args and config.env == self.env and initialisers == self.initialisers
        return same and not config.directories


def make_stock(
    prepared: LinkedModule, limits: Limits, config: WasiConfig, initialisers: tuple[str, ...], count: int
) -> WarmSpecification:
    """Describe what is to be kept ready.

    Args:
        prepared: the module.
        limits: what each sandbox may use.
        config: arguments and environment.
        initialisers: exports to call, in order.
        count: how many.
    """
    engine = prepared.module.engine
    return WarmSpecification(
        make=partial(_make, prepared, limits, config, initialisers),
        free_slots=lambda: (engine.free_slots, engine.config.slots),
        count=count,
        args=config.args,
        env=config.env,
        initialisers=initialisers,
    )


def _make(
    prepared: LinkedModule,
    limits: Limits,
    config: WasiConfig,
    initialisers: tuple[str, ...],
    tell_stop: Callable[[Stop], object],
) -> Instance:
    nobody, deadline = RefusingServices(), Deadline.after(min(limits.wall_s, START_S))
    instance = Instance(
        prepared, limits=limits, services=nobody, wasi_config=config, deadline=deadline, announce=tell_stop
    )
    instance.initialise(initialisers, deadline)
    if nobody.asked:
        instance.close()
        raise InternalError("a start asked for what only an invocation has, and went on when it was refused")
    return instance
