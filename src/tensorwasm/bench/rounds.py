"""Turn and turn about: what is compared is measured alternately, because machines drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tensorwasm.bench.figures import Figure, summarise


def alternate(works: Mapping[str, Callable[[], float]], samples: int) -> dict[str, tuple[float, ...]]:
    """Return samples of each work, after one round that is not counted.

    Args:
        works: by name; each returns one sample.
        samples: of each.
    """
    for work in works.values():
        work()
    rounds = [{name: work() for name, work in works.items()} for _ in range(samples)]
    return {name: tuple(taken[name] for taken in rounds) for name in works}


def compared(
    name: str,
    unit: str,
    samples: tuple[float, ...],
    *,
    peer: str = "",
    peers: tuple[float, ...] = (),
    bar: float | None = None,
    at_least: bool = False,
) -> Figure:
    """Return the figure of some samples against a peer's, both in ``unit``; a missing peer has no samples."""
    value, spread, count = summarise(samples)
    return Figure(
        name,
        unit,
        value,
        spread,
        count,
        peer=peer,
        ratio=value / summarise(peers)[0] if peers else None,
        bar=bar,
        judged="ratio" if peer else "value",
        sense="at least" if at_least else "at most",
    )
