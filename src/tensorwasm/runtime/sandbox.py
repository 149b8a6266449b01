"""The sandbox of one call: a warm one if there is one that fits, else a fresh one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tensorwasm.errors import CapacityExhausted
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.runtime.linear import end_session

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session
    from tensorwasm.guest.sandbox.linker import Prepared
    from tensorwasm.runtime.call import Call

Announce = Callable[[Callable[[], None]], object]
"""Told what ends a sandbox, from any thread."""


def make_sandbox(
    call: Call, prepared: Prepared, session: Session | None = None, announce: Announce | None = None
) -> Instance:
    """Return a sandbox for a call.

    Args:
        call: what was asked for.
        prepared: a form of the module.
        session: its GPU session; ended first, because the device may reach the sandbox's memory until then.
        announce: told what ends the sandbox, before its start function runs.

    Raises:
        TensorWasmError: what `tensorwasm.guest.sandbox.instance.Instance` raises.
    """
    warm, stock = call.function.host.warm, call.function.stocks.get(call.tenant)
    if stock is not None and session is None and stock.fits(call.config, call.initialisers):
        drawn = warm.draw(stock)
        if isinstance(drawn, Instance):
            return _give(drawn, call, announce)
    try:
        return _make_fresh(call, prepared, session, announce)
    except CapacityExhausted:
        if session is not None or not warm.shed():
            raise
        return _make_fresh(call, prepared, session, announce)


def _give(drawn: Instance, call: Call, announce: Announce | None) -> Instance:
    """Give a warm sandbox to its caller."""
    try:
        drawn.renew(call.services, call.config)
        if announce is not None:
            announce(drawn.cancel)
    except BaseException:
        drawn.close()
        raise
    return drawn


def _make_fresh(call: Call, prepared: Prepared, session: Session | None, announce: Announce | None) -> Instance:
    function = call.function
    instance = Instance(
        prepared,
        limits=function.host.limits,
        services=call.services,
        wasi_config=call.config,
        deadline=call.ends,
        drain=None if session is None else partial(end_session, session),
        pad=None if session is None else session.pad,
        announce=announce,
    )
    instance.initialise(call.initialisers, call.ends)
    return instance
