"""Propagation of sets along the edges of a graph."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwasm.watch import UNLIMITED, Watch


def propagate(successors: Sequence[Sequence[int]], seeds: dict[int, int], watch: Watch = UNLIMITED) -> list[int]:
    """Return for each node the union of the seeds that reach it, itself included.

    Sets are bit masks. Each edge is followed twice, however the graph is shaped.

    Args:
        successors: for each node the nodes its edges lead to.
        seeds: mask that a node starts with, by node.
        watch: ends the work.

    Raises:
        InvokeTimeout: the deadline has passed.
    """
    masks = [0] * len(successors)
    for node, mask in seeds.items():
        masks[node] |= mask
    for component in reversed(_components(successors, seeds, watch)):
        mask = 0
        for node in component:
            mask |= masks[node]
        for node in watch.over(component):
            masks[node] = mask
            for successor in successors[node]:
                masks[successor] |= mask
    return masks


def _components(successors: Sequence[Sequence[int]], starts: dict[int, int], watch: Watch) -> list[list[int]]:
    """Return the strongly connected components reachable from ``starts``, each after all that it leads to.

    Tarjan's algorithm with an explicit stack: a graph may be deeper than Python's.
    """
    order = [0] * len(successors)  # 1-based time of the first visit, 0 before it
    lowest = [0] * len(successors)
    path: list[int] = []
    on_path = bytearray(len(successors))
    components: list[list[int]] = []
    time = 0
    for start in starts:
        work = [(start, 0)] if not order[start] else []
        while work:
            watch.step()
            node, at = work.pop()
            if not at:
                time += 1
                order[node] = lowest[node] = time
                path.append(node)
                on_path[node] = 1
            else:
                lowest[node] = min(lowest[node], lowest[successors[node][at - 1]])
            descended = False
            for index in range(at, len(successors[node])):
                successor = successors[node][index]
                if not order[successor]:
                    work += [(node, index + 1), (successor, 0)]
                    descended = True
                    break
                if on_path[successor]:
                    lowest[node] = min(lowest[node], order[successor])
            if not descended and lowest[node] == order[node]:
                components.append(_cut(path, on_path, node))
    return components


def _cut(path: list[int], on_path: bytearray, node: int) -> list[int]:
    """Take the end of ``path`` from ``node`` on."""
    component: list[int] = []
    while on_path[node]:
        component.append(path.pop())
        on_path[component[-1]] = 0
    return component
