"""Declarations of settings, and parsers of their texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.values import (
    ISOLATIONS,
    MEMORY_KINDS,
    NEWEST_PTX,
    OFFLOAD_MATHS,
    OFFLOAD_MODES,
    OLDEST_PTX,
    Isolation,
    MemoryKind,
    OffloadMath,
    OffloadMode,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        field: attribute of the settings' class.
        variable: environment variable.
        parse: returns the value of the variable's name and text; raises ValueError for an invalid text.
        default: value if the variable is unset or blank.
        meaning: one sentence for users.
    """

    field: str
    variable: str
    parse: Callable[[str, str], object]
    default: object
    meaning: str


def setting(
    variable: str, parse: Callable[[str, str], object], default: object, meaning: str, *, secret: bool = False
) -> Any:
    """Declare a field of a settings class; a secret one is left out of its ``repr``. See `Setting`."""
    return field(repr=not secret, metadata={"setting": (variable, parse, default, meaning)})


def settings_of(kind: type[Any]) -> tuple[Setting, ...]:
    """Return the settings that a class declares."""
    return tuple(Setting(each.name, *each.metadata["setting"]) for each in fields(kind))


def read(setting: Setting, environment: Mapping[str, str]) -> Any:
    """Return the value of a setting.

    Raises:
        InvalidArgs: its text is invalid; the message names the variable.
    """
    text = environment.get(setting.variable, "").strip()
    if not text:
        return setting.default
    try:
        return setting.parse(setting.variable, text)
    except ValueError:
        raise InvalidArgs(f"{setting.variable} cannot be {text[:64]!r}: {setting.meaning}") from None


def checked_seconds(name: str, seconds: float) -> float:
    """Return a positive number of seconds, at most 30 years, or raise InvalidArgs with the name."""
    if not 0 < seconds <= _MAX_SECONDS:
        raise InvalidArgs(f"{name} is in seconds, more than 0 and at most {_MAX_SECONDS:g}, not {seconds:g}")
    return seconds


def checked_memory_mib(name: str, mib: int) -> int:
    """Return a possible size of a linear memory in MiB, 1 to 4096, or raise InvalidArgs with the name."""
    if not 1 <= mib <= _MAX_MEMORY_MIB:
        raise InvalidArgs(f"{name} is in MiB, 1 to {_MAX_MEMORY_MIB}, not {mib}")
    return mib


def checked_count(name: str, number: int, least: int = 1) -> int:
    """Return a number that is not too small, or raise InvalidArgs with the name."""
    if number < least:
        raise InvalidArgs(f"{name} is at least {least}, not {number}")
    return number


def checked_memory_kind(name: str, kind: str) -> MemoryKind:
    """Return a kind of memory, or raise InvalidArgs with the name and the valid kinds."""
    for known in MEMORY_KINDS:
        if kind == known:
            return known
    raise InvalidArgs(f"{name} is one of {', '.join(MEMORY_KINDS)}, not {kind[:64]!r}")


def checked_offload(name: str, mode: str) -> OffloadMode:
    """Return where loops run, or raise InvalidArgs with the name and the valid places."""
    for known in OFFLOAD_MODES:
        if mode == known:
            return known
    raise InvalidArgs(f"{name} is one of {', '.join(OFFLOAD_MODES)}, not {mode[:64]!r}")


def checked_offload_math(name: str, math: str) -> OffloadMath:
    """Return how sums of floats are made, or raise InvalidArgs with the name and the valid ways."""
    for known in OFFLOAD_MATHS:
        if math == known:
            return known
    raise InvalidArgs(f"{name} is one of {', '.join(OFFLOAD_MATHS)}, not {math[:64]!r}")


def checked_isolation(name: str, isolation: str) -> Isolation:
    """Return an isolation, or raise InvalidArgs with the name and the valid ones."""
    for known in ISOLATIONS:
        if isolation == known:
            return known
    raise InvalidArgs(f"{name} is one of {', '.join(ISOLATIONS)}, not {isolation[:64]!r}")


_MAX_SECONDS: Final = 1e9
_MAX_MEMORY_MIB: Final = 4096
_FLAGS: Final = {"1": True, "true": True, "0": False, "false": False}


def text(_name: str, text: str) -> str:
    """Parse any text."""
    return text


def seconds(name: str, text: str) -> float:
    """Parse a number of seconds; see `checked_seconds`."""
    return checked_seconds(name, float(text))


def memory(name: str, text: str) -> int:
    """Parse a size of a linear memory in MiB; see `checked_memory_mib`."""
    return checked_memory_mib(name, int(text))


def count(name: str, text: str) -> int:
    """Parse a whole number of at least 1."""
    return checked_count(name, int(text))


def size(name: str, text: str) -> int:
    """Parse a whole number of at least 0."""
    return checked_count(name, int(text), 0)


def fraction(_name: str, text: str) -> float:
    """Parse a number from 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise ValueError
    return number


def native(_name: str, text: str) -> str:
    """Parse auto, on or off."""
    if text.lower() not in ("auto", "on", "off"):
        raise ValueError
    return text.lower()


def flag(_name: str, text: str) -> bool:
    """Parse 1 or true, or 0 or false."""
    if text.lower() not in _FLAGS:
        raise ValueError
    return _FLAGS[text.lower()]


def architecture(_name: str, text: str) -> tuple[int, int]:
    """Parse a compute capability such as sm_80."""
    return _two_numbers(r"sm_(\d{1,3})(\d)[af]?", text)


def ptx_version(name: str, text: str) -> tuple[int, int]:
    """Parse a version of the PTX ISA such as 8.4, within those that the parser reads."""
    version = _two_numbers(r"(\d{1,4})\.(\d{1,4})", text)
    if not OLDEST_PTX <= version <= NEWEST_PTX:
        oldest, newest = (".".join(map(str, each)) for each in (OLDEST_PTX, NEWEST_PTX))
        raise InvalidArgs(f"{name} is from {oldest} to {newest}, not {text}")
    return version


def _two_numbers(pattern: str, text: str) -> tuple[int, int]:
    found = re.fullmatch(pattern, text, re.ASCII)
    if found is None:
        raise ValueError
    return int(found[1]), int(found[2])
