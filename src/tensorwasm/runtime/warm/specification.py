"""What the warm sandboxes of a function are made of, and which calls may have them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from tensorwasm.errors import InternalError
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.state import START_CEILING_S
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.guest.sandbox.wasi import WasiConfig
    from tensorwasm.values import Limits

START_S: Final = min(10.0, START_CEILING_S)
"""Longest start of a warm sandbox: one thread makes them all."""


class WarmSandbox(Protocol):
    """What is kept: `tensorwasm.guest.sandbox.instance.Instance`."""

    def close(self) -> None:
        """Free it."""


Stop = Callable[[], object]
Make = Callable[[Callable[[Stop], object]], WarmSandbox]
"""Makes a sandbox, after passing on what stops that, from any thread. Raises `TensorWasmError`."""


class UnavailableServices(Mapping[str, object]):
    """The services of a sandbox that is made before its call."""

    def __init__(self) -> None:
        self.asked = False  # one was requested

    def __getitem__(self, name: str) -> object:
        self.asked = True
        raise InternalError(f"a start asked for {name!r}, which only an invocation has")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(slots=True, eq=False)
class WarmSpecification:
    """The warm sandboxes of one function, one tenant, and one set of arguments, environment and initialisers."""

    make: Make  # makes one
    free_slots: Callable[[], tuple[int, int]]  # slots that its engine has free, and has at all
    count: int  # how many are to be ready
    args: tuple[str, ...] = ()  # WASI arguments that the starts saw
    env: tuple[tuple[str, str], ...] = ()  # WASI environment that they saw
    initialisers: tuple[str, ...] = ()  # exports that were called, in order
    # Sandboxes that are ready, oldest first, with the time at which they were.
    ready: deque[tuple[float, WarmSandbox]] = field(default_factory=deque)
    failures: int = 0  # failed starts in a row
    again_s: float = 0.0  # when the next start is tried

    def fits(self, config: WasiConfig, initialisers: tuple[str, ...]) -> bool:
        """Return whether a start in a sandbox made for the caller would have done and seen the same."""
        same = config.args == self.args and config.env == self.env and initialisers == self.initialisers
        return same and not config.directories


def make_specification(
    prepared: LinkedModule, limits: Limits, config: WasiConfig, initialisers: tuple[str, ...], count: int
) -> WarmSpecification:
    """Describe the warm sandboxes of a module."""
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
    announce: Callable[[Stop], object],
) -> Instance:
    services, deadline = UnavailableServices(), Deadline.after(min(limits.wall_s, START_S))
    instance = Instance(
        prepared, limits=limits, services=services, wasi_config=config, deadline=deadline, announce=announce
    )
    instance.initialise(initialisers, deadline)
    if services.asked:
        instance.close()
        raise InternalError("a start asked for what only an invocation has, and went on when it was refused")
    return instance
