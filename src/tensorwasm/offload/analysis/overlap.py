"""Whether a store may change what a load reads."""

from __future__ import annotations

from tensorwasm.offload.affine import counter, shift, substitute, subtract
from tensorwasm.offload.analysis.draft import TimedAccess
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.nest import Affine, Constraint

_OTHER_ITERATION = (1 << 20) - 1
"""A counter that stands for another iteration of a loop."""


def may_overlap(load: TimedAccess, store: TimedAccess) -> bool:
    """Return whether two accesses may meet in one iteration of the loops around the load, which are around both."""
    scope = Scope(load.statement.scope, _constraints(store.statement.scope))
    return _may_meet(_address(load), _address(store), load, store, scope)


def may_overlap_other_iteration(load: TimedAccess, store: TimedAccess, loop: int) -> bool:
    """Return whether two accesses may meet in any two iterations of a loop and one iteration of the loops around it."""
    store_address = _address(store)
    renamed = {loop: counter(_OTHER_ITERATION)}
    constraints = [
        Constraint(substitute(each.value, renamed), each.equality) for each in _constraints(store.statement.scope)
    ]
    scope = Scope(load.statement.scope, tuple(constraints))
    if store_address is not None:
        store_address = substitute(store_address, renamed)
    return _may_meet(_address(load), store_address, load, store, scope)


def _constraints(scope: Scope) -> tuple[Constraint, ...]:
    return tuple([constraint for each in scope.chain() for constraint in each.constraints])


def _address(access: TimedAccess) -> Affine | None:
    exact = access.statement.scope.exact(access.effect.pointer, 0, 32)
    return None if exact is None else shift(exact, access.effect.offset)


def _may_meet(
    load_address: Affine | None, store_address: Affine | None, load: TimedAccess, store: TimedAccess, scope: Scope
) -> bool:
    if load_address is None or store_address is None:
        return True
    distance = subtract(store_address, load_address)
    lower, upper = scope.lower(distance), scope.upper(distance)
    is_behind = lower is not None and lower >= load.effect.size_bytes
    return not is_behind and not (upper is not None and upper <= -store.effect.size_bytes)
