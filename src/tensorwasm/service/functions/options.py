"""Checks the options of versions against the operator's limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tensorwasm import settings
from tensorwasm.database.functions import FunctionOptions
from tensorwasm.errors import InvalidArgs
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.values import MEMORY_KINDS, MIB, Limits

GRANTS: Final = frozenset({"cuda"})
"""Grants that functions may have; access to files of the machine is not among them."""

MAX_WARM: Final = 64
MAX_VARIABLES: Final = 128
MAX_ENVIRONMENT_BYTES: Final = 32 << 10

DEFAULT_OPTIONS: Final = FunctionOptions()


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The operator's limits: those of a sandbox with default options, and the longest timeout of an invocation."""

    limits: Limits
    longest_s: float

    @classmethod
    def from_settings(cls, service: ServiceSettings) -> Ceilings:
        """Return the limits that the settings of the process and the service say."""
        limits = settings.current().limits()
        return cls(limits, max(limits.wall_s, service.max_deadline_s))

    def limits_of(self, options: FunctionOptions) -> Limits:
        """Return the limits of a version's sandboxes."""
        memory_bytes = self.limits.memory_bytes if options.memory_mib is None else options.memory_mib * MIB
        wall_s = self.longest_s if options.timeout_s is None else options.timeout_s
        return replace(self.limits, memory_bytes=memory_bytes, wall_s=wall_s)

    def check(self, options: FunctionOptions) -> None:
        """Check the options of a version; raise InvalidArgs if one is out of range; the message names it."""
        if unknown := sorted(set(options.grants) - GRANTS):
            raise InvalidArgs(f"a function is granted {', '.join(sorted(GRANTS))}, not {unknown[0][:32]!r}")
        most_mib = self.limits.memory_bytes // MIB
        if options.memory_mib is not None and not 1 <= options.memory_mib <= most_mib:
            raise InvalidArgs(f"memory_mib is 1 to {most_mib}")
        if options.timeout_s is not None and not 0 < options.timeout_s <= self.longest_s:
            raise InvalidArgs(f"timeout_s is more than 0, and at most {self.longest_s:g}")
        if options.memory_kind is not None and options.memory_kind not in MEMORY_KINDS:
            raise InvalidArgs(f"memory_kind is one of {', '.join(MEMORY_KINDS)}")
        if not 0 <= options.warm <= MAX_WARM:
            raise InvalidArgs(f"warm is 0 to {MAX_WARM}")
        check_environment(options.env)


def check_environment(env: tuple[tuple[str, str], ...]) -> None:
    """Raise InvalidArgs if WASI cannot pass an environment on: too many, too long or invalid variables."""
    if len(env) > MAX_VARIABLES or sum(len(name) + len(value) for name, value in env) > MAX_ENVIRONMENT_BYTES:
        raise InvalidArgs(f"env has at most {MAX_VARIABLES} variables, of {MAX_ENVIRONMENT_BYTES} characters together")
    for name, value in env:
        if not name or "=" in name or "\0" in name + value:
            raise InvalidArgs("a variable's name is not empty and has no '=', and no variable has a NUL")
