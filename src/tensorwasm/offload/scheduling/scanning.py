"""Planned kernels and host loops as code: isl's loops that scan their iterations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import islpy as isl

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.program import Block, For, HostLoop, If, Kernel
from tensorwasm.offload.scheduling.axes import Axis, AxisPlace
from tensorwasm.offload.scheduling.expressions import Bounded, NodeBudget, TreeReader, compute, kind_of, number
from tensorwasm.offload.scheduling.intervals import Interval
from tensorwasm.offload.scheduling.model import StatementModel
from tensorwasm.offload.scheduling.polyhedra import Column, Row, constrain, tuple_space
from tensorwasm.offload.scheduling.schedule import PlannedKernel, Step


@dataclass(frozen=True, slots=True, eq=False)
class _CodeScope:
    """The variables around a piece of code, with their intervals, and what is known of them: a set of parameters."""

    names: tuple[str, ...]
    axes: tuple[Axis, ...]
    intervals: Mapping[str, Interval]
    known: isl.Set


@dataclass(frozen=True, slots=True, eq=False)
class _GridLoop:
    """A loop of a chain of loops."""

    variable: str
    first: Bounded
    last: Bounded
    step: int


class Scanner:
    """Makes the code of steps."""

    def __init__(self, context: isl.Context) -> None:
        self._context = context
        self._budget = NodeBudget()
        self._kernels = 0

    def scan(self, steps: Iterable[Step]) -> tuple[HostLoop | Kernel, ...]:
        """The steps as code.

        Raises:
            Declined: it is too large.
        """
        known = isl.Set.universe(isl.Space.params_alloc(self._context, 0))
        return self._steps(steps, _CodeScope((), (), {}, known))

    def _steps(self, steps: Iterable[Step], scope: _CodeScope) -> tuple[HostLoop | Kernel, ...]:
        return tuple(
            self._kernel(step, scope) if isinstance(step, PlannedKernel) else self._host_loop(step.axis, step, scope)
            for step in steps
        )

    def _host_loop(self, axis: Axis, loop: Step, scope: _CodeScope) -> HostLoop:
        name = f"h{len(scope.axes)}"
        ranges, guards, inner = self._chain(loop.statements, (axis,), (name,), scope, parallel=False)
        if guards or ranges[0].step != 1 or isinstance(loop, PlannedKernel):
            raise Declined(DeclineReason.TOO_LARGE, "code")
        return HostLoop(name, ranges[0].first.expression, ranges[0].last.expression, self._steps(loop.steps, inner))

    def _kernel(self, kernel: PlannedKernel, scope: _CodeScope) -> Kernel:
        number_ = self._kernels
        self._kernels += 1
        names = tuple(f"p{index}" for index in range(len(kernel.grid)))
        ranges, guards, inner = self._chain(kernel.statements, kernel.grid, names, scope, parallel=True)
        body = self._thread(kernel.statements, inner)
        for guard in guards:
            body = (If(guard.expression, body),)
        for each in reversed(ranges):
            loop = For(each.variable, each.first.expression, each.last.expression, each.step, body, parallel=True)
            body = (loop,)
        return Kernel(number_, body)

    def _chain(
        self,
        statements: Sequence[StatementModel],
        axes: tuple[Axis, ...],
        names: tuple[str, ...],
        scope: _CodeScope,
        *,
        parallel: bool,
    ) -> tuple[list[_GridLoop], list[Bounded], _CodeScope]:
        """Loops over the values of axes, each all of the one around it; conditions inside of them; the scope there."""
        if not axes:
            return [], [], scope
        values = _values(statements, axes, scope)
        if not parallel:
            values = values.remove_divs()  # a host's loop has neither steps nor conditions
        identifiers = isl.IdList.alloc(self._context, len(names))
        for name in names:
            identifiers = identifiers.add(isl.Id(name, context=self._context))
        build = isl.AstBuild.from_context(scope.known).set_iterators(identifiers)
        identity = isl.Map.identity(isl.Space.map_from_set(values.get_space())).reset_tuple_id(isl.dim_type.out)
        node = build.node_from_schedule_map(isl.UnionMap.from_map(identity.intersect_domain(values)))
        reader = TreeReader(self._budget, scope.intervals)
        ranges, guards = _ranges(node, names, reader)
        known = values
        parameters = len(scope.names)
        known = known.move_dims(isl.dim_type.param, parameters, isl.dim_type.set, 0, len(names))
        for index, name in enumerate(names):
            known = known.set_dim_name(isl.dim_type.param, parameters + index, name)
        inner = _CodeScope(
            (*scope.names, *names), (*scope.axes, *axes), reader.intervals, known.params().intersect(scope.known)
        )
        return ranges, guards, inner

    def _thread(self, statements: Sequence[StatementModel], scope: _CodeScope) -> Block:
        """What is left of statements inside of loops, in the order of the nest."""
        orders = execution_order(statements, scope.axes)
        schedule = isl.UnionMap.empty(scope.known.get_space())
        for statement in statements:
            domain = _at(statement, scope)
            target = isl.Space.set_alloc(self._context, 0, len(orders[statement]))
            space = isl.Space.map_from_domain_and_range(domain.get_space(), _with_parameters(target, scope.names))
            rows = []
            counters = len(statement.counters)
            for index, (dimension, constant) in enumerate(orders[statement]):
                row = [0] * (counters + len(orders[statement]))
                row[counters + index] = -1
                if dimension is not None:
                    row[dimension] = 1
                rows.append((*row, constant))
            columns = [(isl.dim_type.in_, position) for position in range(counters)]
            columns += [(isl.dim_type.out, position) for position in range(len(orders[statement]))]
            ordered = isl.Map.from_basic_map(constrain(isl.BasicMap.universe(space), columns, (), rows))
            schedule = schedule.union(isl.UnionMap.from_map(ordered.intersect_domain(domain)))
        node = isl.AstBuild.from_context(scope.known).node_from_schedule_map(schedule)
        return TreeReader(self._budget, scope.intervals).block(node)


def _with_parameters(space: isl.Space, names: Sequence[str]) -> isl.Space:
    space = space.add_dims(isl.dim_type.param, len(names))
    for index, name in enumerate(names):
        space = space.set_dim_name(isl.dim_type.param, index, name)
    return space


def _fixing(statement: StatementModel, axes: Sequence[Axis], columns: int, first: int) -> list[Row]:
    """Rows that are 0 where each axis has the value in a column, which are neighbours."""
    rows = []
    for index, axis in enumerate(axes):
        dimension, shift, scale = axis.places[statement]
        row = [0] * columns
        row[dimension], row[first + index] = scale, -1
        rows.append((*row, shift))
    return rows


def _values(statements: Sequence[StatementModel], axes: Sequence[Axis], scope: _CodeScope) -> isl.Set:
    """A polyhedron around the values that axes have for some iteration of the statements."""
    result: isl.Set | None = None
    for statement in statements:
        width, outer = len(statement.lower), len(scope.axes)
        target = tuple_space(statement.domain.get_ctx(), "P", len(axes))
        space = isl.Space.map_from_domain_and_range(
            _with_parameters(statement.domain.get_space(), scope.names), _with_parameters(target, scope.names)
        )
        columns: list[Column] = [(isl.dim_type.in_, position) for position in range(width)]
        columns += [(isl.dim_type.out, position) for position in range(len(axes))]
        columns += [(isl.dim_type.param, position) for position in range(outer)]
        total = len(columns)
        rows = _fixing(statement, axes, total, width) + _fixing(statement, scope.axes, total, width + len(axes))
        positions = isl.Map.from_basic_map(constrain(isl.BasicMap.universe(space), columns, (), rows))
        values = statement.domain.apply(positions)
        result = values if result is None else result.union(values)
    if result is None:
        raise Declined(DeclineReason.TOO_LARGE, "code")
    result = result.coalesce()
    return result if result.n_basic_set() == 1 else isl.Set.from_basic_set(result.simple_hull())


def _at(statement: StatementModel, scope: _CodeScope) -> isl.Set:
    """The iterations at the values of the variables, by counters only."""
    width, counters = len(statement.lower), len(statement.counters)
    space = _with_parameters(statement.domain.get_space(), scope.names)
    columns: list[Column] = [(isl.dim_type.set, position) for position in range(width)]
    columns += [(isl.dim_type.param, position) for position in range(len(scope.names))]
    rows = _fixing(statement, scope.axes, len(columns), width)
    values = constrain(isl.BasicSet.universe(space), columns, (), rows)
    fixed = statement.domain.intersect(isl.Set.from_basic_set(values))
    return fixed.project_out(isl.dim_type.set, counters, width - counters).set_tuple_name(f"S{statement.number}")


def _ranges(node: isl.AstNode, names: Sequence[str], reader: TreeReader) -> tuple[list[_GridLoop], list[Bounded]]:
    """The loops of a tree that has one inside another, and the conditions inside of all."""
    ranges: list[_GridLoop] = []
    for index, name in enumerate(names):
        node, guards = _unguarded(node, reader)
        if kind_of(node) == "for_" and node.for_get_iterator().get_id().get_name() == name:
            variable, first, last, step = reader.bounds(node)
            node = node.for_get_body()
        else:  # isl puts the only value in the variable's place
            variable, step = name, 1
            first = last = reader.read(_call(node).get_op_arg(1 + index))
            reader.define(variable, first, last)
        for guard in guards:
            empty = compute("sub", first, number(1))
            last = compute("select", guard, last, empty)
        ranges.append(_GridLoop(variable, first, last, step))
    node, guards = _unguarded(node, reader)
    if kind_of(node) != "user":
        raise Declined(DeclineReason.TOO_LARGE, "code")
    return ranges, guards


def _unguarded(node: isl.AstNode, reader: TreeReader) -> tuple[isl.AstNode, list[Bounded]]:
    guards = []
    while kind_of(node) == "if_" and not node.if_has_else_node():
        guards.append(reader.read(node.if_get_cond()))
        node = node.if_get_then_node()
    return node, guards


def _call(node: isl.AstNode) -> isl.AstExpr:
    """That of the one execution in a tree."""
    while kind_of(node) != "user":
        if kind_of(node) == "for_":
            node = node.for_get_body()
        elif kind_of(node) == "if_":
            node = node.if_get_then_node()
        else:
            raise Declined(DeclineReason.TOO_LARGE, "code")
    return node.user_get_expr()


Entry = tuple[int | None, int]
"""A dimension or None, and a constant to add."""


def execution_order(
    statements: Sequence[StatementModel], fixed: Sequence[Axis]
) -> dict[StatementModel, tuple[Entry, ...]]:
    """For each statement, vectors of one length whose lexicographic order is that of the nest.

    They are places in bodies and counters in turn, without what is the same for all iterations in which axes are fixed.
    """
    orders: dict[StatementModel, list[Entry]] = {each: [] for each in statements}
    for level in range(max((len(each.positions) for each in statements), default=0)):
        if len({each.positions[level] for each in statements if level < len(each.positions)}) > 1:
            for each in statements:
                orders[each].append((None, each.positions[level] if level < len(each.positions) else 0))
        deep = [each for each in statements if level < len(each.counters)]
        if not _is_fixed(deep, level, fixed):
            for each in statements:
                orders[each].append((level, 0) if each in deep else (None, 0))
    return {each: tuple(order) for each, order in orders.items()}


def _is_fixed(statements: Sequence[StatementModel], level: int, fixed: Sequence[Axis]) -> bool:
    """Each loop at a level has one value."""
    values: dict[int, tuple[int, AxisPlace]] = {}
    for statement in statements:
        value = next(
            ((index, axis.places[statement]) for index, axis in enumerate(fixed) if axis.dimension(statement) == level),
            None,
        )
        if value is None or values.setdefault(statement.counters[level], value) != value:
            return False
    return True
