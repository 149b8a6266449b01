"""The choice among modules of the same kernels of the one that suits a device.

Source: PTX ISA 11.1.2 (.target), 11.1.1 (.version).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx.model import Module

Version = tuple[int, int]

_ARCHITECTURE: Final = re.compile(r"sm_(\d+)(\d)([a-z]?)", re.ASCII)

_FAMILIES: Final[dict[Version, frozenset[Version]]] = {
    (10, 0): frozenset({(10, 0), (10, 3)}),
    (10, 3): frozenset({(10, 3)}),
    (12, 0): frozenset({(12, 0), (12, 1)}),
}
"""Devices that run code for the family of an architecture; a family that is missing is its architecture alone."""

_MAX_NAMED: Final = 10


class Architecture(NamedTuple):
    """An ``sm_`` word of ``.target``: a compute capability (major, minor), and a suffix.

    The suffix is ``a`` for that device alone, ``f`` for its family, or empty for it and all later devices.
    """

    capability: Version
    suffix: str

    def runs_on(self, capability: Version) -> bool:
        """Return whether a device of a compute capability runs code for this architecture."""
        match self.suffix:
            case "":
                return self.capability <= capability
            case "f":
                return capability in _FAMILIES.get(self.capability, {self.capability})
        return capability == self.capability


def architectures(module: Module) -> tuple[Architecture, ...]:
    """Return the architectures that a module's ``.target`` names, in its order."""
    matches = (_ARCHITECTURE.fullmatch(word) for word in module.target)
    return tuple(Architecture((int(match[1]), int(match[2])), match[3]) for match in matches if match)


def check_compatible(module: Module, capability: Version, isa: Version) -> None:
    """Check that a device of a compute capability accepts a module.

    Raises:
        UnsupportedPtx: it does not, or ``isa``, the newest that it accepts, is older than the module's.
    """
    if not _compatible(module, capability, isa):
        raise UnsupportedPtx(f"the PTX is for {_describe(module)}; {_device(capability, isa)}")


def select(variants: Sequence[Module], capability: Version, isa: Version, *, lower: bool = False) -> Module:
    """Return the variant for the highest architecture that a device of a compute capability runs.

    Of several for one architecture, the one of the newest ISA is returned, then the first.

    Args:
        variants: modules of the same kernels.
        capability: of the device.
        isa: the newest that it accepts.
        lower: whether variants of a newer ISA count as of ``isa`` where there are no others. Most texts name the newest
            ISA of their compiler and use nothing of it; a compiler refuses what ``isa`` lacks.

    Raises:
        UnsupportedPtx: the device runs none, or ``isa`` is older than theirs.
    """
    fitting = [module for module in variants if _compatible(module, capability, isa)]
    if not fitting and lower:
        lowered = [replace(module, version=min(module.version, isa)) for module in variants]
        fitting = [module for module in lowered if _compatible(module, capability, isa)]
    if not fitting:
        offered = ", ".join(_describe(module) for module in variants[:_MAX_NAMED]) or "nothing"
        raise UnsupportedPtx(f"the PTX offered is for {offered}; {_device(capability, isa)}")
    return max(fitting, key=_rank)


def _compatible(module: Module, capability: Version, isa: Version) -> bool:
    named = architectures(module)
    return module.version <= isa and bool(named) and all(each.runs_on(capability) for each in named)


def _rank(module: Module) -> tuple[Version, bool, bool, Version]:
    best = max(architectures(module))
    return best.capability, best.suffix == "a", best.suffix == "f", module.version


def _describe(module: Module) -> str:
    return f"{' '.join(module.target)} (ISA {module.version[0]}.{module.version[1]})"


def _device(capability: Version, isa: Version) -> str:
    return f"the device takes up to sm_{capability[0]}{capability[1]} and ISA {isa[0]}.{isa[1]}"
