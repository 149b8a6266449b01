"""Checks of what clients say of functions: names, references to versions, and options within the operator's limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tensorwasm import settings
from tensorwasm.database.functions import FunctionOptions
from tensorwasm.errors import InvalidArgs, InvalidName, NotFound
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.values import MEMORY_KINDS, MIB, OFFLOAD_MATHS, OFFLOAD_MODES, Limits

MAX_NAME_BYTES: Final = 256

_ALIAS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}")
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")


class Reference(NamedTuple):
    """A function, by UUID or name, and a version's number or alias; the current version for None and an empty alias."""

    function: str
    number: int | None
    alias: str


def is_id(text: str) -> bool:
    """Return whether a text is a UUID in lower case, as functions and sessions have."""
    return _ID.fullmatch(text) is not None


def checked_name(name: str) -> str:
    """Return a function's name; raise InvalidName if it is blank, over 256 bytes or has control characters."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName("a name is Unicode text") from None
    if not 1 <= size_bytes <= MAX_NAME_BYTES or not name.strip():
        raise InvalidName(f"a name has 1 to {MAX_NAME_BYTES} bytes, and is not blank")
    if any(character < " " or "\x7f" <= character <= "\x9f" for character in name):
        raise InvalidName("a name has no control characters")
    return name


def checked_alias(alias: str) -> str:
    """Return an alias, a letter or underscore and at most 63 letters, digits, ``.``, ``_``, ``-``; else InvalidName."""
    if not _ALIAS.fullmatch(alias):
        raise InvalidName("an alias is a letter or _, and at most 63 letters, digits, '.', '_' and '-'")
    return alias


def parse_reference(text: str) -> tuple[Reference, ...]:
    """Parse ``FUNCTION``, ``FUNCTION@VERSION`` or ``FUNCTION@ALIAS``, where FUNCTION is an ID or a name.

    Return one or two readings, because a name may contain ``@``; the first whose function exists is meant. NotFound is
    raised if there can be no such function, version or alias.
    """
    head, at, which = text.rpartition("@")
    if is_id(text) or not at:
        return (_function(text),)
    found = _version(head, which)
    if is_id(head):
        if found is None:
            raise NotFound("there is no such version of this function")
        return (found,)
    return (_function(text),) if found is None else (_function(text), found)


def _function(text: str) -> Reference:
    try:
        return Reference(checked_name(text), None, "")
    except InvalidName:
        raise NotFound("there is no such function") from None


def _version(function: str, which: str) -> Reference | None:
    """Return the reference to a version or alias; None if the text names neither."""
    if _NUMBER.fullmatch(which):
        return Reference(function, int(which), "")
    return Reference(function, None, which) if _ALIAS.fullmatch(which) else None


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
        if options.offload not in OFFLOAD_MODES:
            raise InvalidArgs(f"offload is one of {', '.join(OFFLOAD_MODES)}")
        if options.offload_math not in OFFLOAD_MATHS:
            raise InvalidArgs(f"offload_math is one of {', '.join(OFFLOAD_MATHS)}")
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
