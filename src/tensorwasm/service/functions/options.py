"""What a version of a function may be told to be, within what the operator allows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tensorwasm import settings
from tensorwasm.database.functions import FunctionOptions
from tensorwasm.errors import InvalidArgs
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.values import MEMORY_KINDS, MIB, Limits

GRANTS: Final = frozenset({"cuda"})
"""What functions of the service may be granted: nothing of the machine's files."""

MAX_WARM: Final = 64
MAX_VARIABLES: Final = 128
MAX_ENVIRONMENT_BYTES: Final = 32 << 10

USUAL: Final = FunctionOptions()


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the operator allows.

    Attributes:
        limits: of a sandbox that asks for nothing.
        longest_s: longest that an invocation may take, whoever asks.
    """

    limits: Limits
    longest_s: float

    @classmethod
    def of(cls, service: ServiceSettings) -> Ceilings:
        """Read the settings of the process and the service."""
        limits = settings.current().limits()
        return cls(limits, max(limits.wall_s, service.max_deadline_s))

    @property
    def usual_s(self) -> float:
        """Longest that an invocation takes for which nobody asks for more."""
        return self.limits.wall_s

    def limits_of(self, options: FunctionOptions) -> Limits:
        """Return the limits of a version's sandboxes."""
        memory_bytes = self.limits.memory_bytes if options.memory_mib is None else options.memory_mib * MIB
        wall_s = self.longest_s if options.timeout_s is None else options.timeout_s
        return replace(self.limits, memory_bytes=memory_bytes, wall_s=wall_s)

    def check(self, options: FunctionOptions) -> None:
        """Hold options against what there is and what is allowed.

        Raises:
            InvalidArgs: one is out of range; the message names it.
        """
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
    """Hold an environment against what WASI can pass on.

    Raises:
        InvalidArgs: too many variables, too long, or with characters that they cannot have.
    """
    if len(env) > MAX_VARIABLES or sum(len(name) + len(value) for name, value in env) > MAX_ENVIRONMENT_BYTES:
        raise InvalidArgs(f"env has at most {MAX_VARIABLES} variables, of {MAX_ENVIRONMENT_BYTES} characters together")
    for name, value in env:
        if not name or "=" in name or "\0" in name + value:
            raise InvalidArgs("a variable's name is not empty and has no '=', and no variable has a NUL")
