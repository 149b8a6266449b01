"""How one setting is described, and the readers of its text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.values import MEMORY_KINDS, NEWEST_PTX, OLDEST_PTX, MemoryKind


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        field: attribute of `Settings`.
        variable: environment variable.
        parse: the variable's name and text to a value; raises ValueError for what is no such value at all.
        default: value when the variable is unset or empty.
        meaning: one sentence for people.
    """

    field: str
    variable: str
    parse: Callable[[str, str], object]
    default: object
    meaning: str


def checked_seconds(name: str, seconds: float) -> float:
    """Return a number of seconds that a clock can hold.

    Raises:
        InvalidArgs: it is not positive, or more than 30 years; the message has the name.
    """
    if not 0 < seconds <= _MAX_SECONDS:
        raise InvalidArgs(f"{name} is in seconds, more than 0 and at most {_MAX_SECONDS:g}, not {seconds:g}")
    return seconds


def checked_memory_mib(name: str, mib: int) -> int:
    """Return a size that a linear memory can have, in MiB.

    Raises:
        InvalidArgs: it is not between 1 and 4096; the message has the name.
    """
    if not 1 <= mib <= _MAX_MEMORY_MIB:
        raise InvalidArgs(f"{name} is in MiB, 1 to {_MAX_MEMORY_MIB}, not {mib}")
    return mib


def checked_count(name: str, number: int) -> int:
    """Return a number of things of which there are some.

    Raises:
        InvalidArgs: it is less than 1; the message has the name.
    """
    if number < 1:
        raise InvalidArgs(f"{name} is at least 1, not {number}")
    return number


_MAX_SECONDS: Final = 1e9
_MAX_MEMORY_MIB: Final = 4096
_NATIVE: Final = frozenset({"auto", "on", "off"})
_FLAGS: Final = {"1": True, "true": True, "0": False, "false": False}


def text(_name: str, text: str) -> str:
    """Return the text as it is."""
    return text


def seconds(name: str, text: str) -> float:
    """Return a number of seconds; see `checked_seconds`."""
    return checked_seconds(name, float(text))


def memory(name: str, text: str) -> int:
    """Return a size of a linear memory in MiB; see `checked_memory_mib`."""
    return checked_memory_mib(name, int(text))


def count(name: str, text: str) -> int:
    """Return a number of things, at least 1."""
    return checked_count(name, int(text))


def size(name: str, text: str) -> int:
    """Return a whole number, at least 0.

    Raises:
        InvalidArgs: it is less.
    """
    if (size := int(text)) < 0:
        raise InvalidArgs(f"{name} is at least 0, not {size}")
    return size


def architecture(_name: str, text: str) -> tuple[int, int]:
    """Return a compute capability from a text such as sm_80."""
    found = re.fullmatch(r"sm_(\d{1,3})(\d)[af]?", text, re.ASCII)
    if found is None:
        raise ValueError
    return int(found[1]), int(found[2])


def ptx_version(name: str, text: str) -> tuple[int, int]:
    """Return a version of the PTX ISA from a text such as 8.4.

    Raises:
        InvalidArgs: it is older or newer than what is read.
    """
    found = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", text, re.ASCII)
    if found is None:
        raise ValueError
    version = int(found[1]), int(found[2])
    if not OLDEST_PTX <= version <= NEWEST_PTX:
        oldest, newest = (".".join(map(str, each)) for each in (OLDEST_PTX, NEWEST_PTX))
        raise InvalidArgs(f"{name} is from {oldest} to {newest}, not {text}")
    return version


def checked_memory_kind(name: str, kind: str) -> MemoryKind:
    """Return a kind of memory.

    Raises:
        InvalidArgs: there is none of that name; the message has the names that there are.
    """
    for known in MEMORY_KINDS:
        if kind == known:
            return known
    raise InvalidArgs(f"{name} is one of {', '.join(MEMORY_KINDS)}, not {kind[:64]!r}")


def native(_name: str, text: str) -> str:
    """Return auto, on or off."""
    if text.lower() not in _NATIVE:
        raise ValueError
    return text.lower()


def flag(_name: str, text: str) -> bool:
    """Return whether a text says 1 or true, or 0 or false."""
    if text.lower() not in _FLAGS:
        raise ValueError
    return _FLAGS[text.lower()]


def read(setting: Setting, environment: Mapping[str, str]) -> object:
    """Return the value of a setting, the default where the variable is unset or blank.

    Raises:
        InvalidArgs: its text does not parse; the message names the variable.
    """
    text = environment.get(setting.variable, "").strip()
    if not text:
        return setting.default
    try:
        return setting.parse(setting.variable, text)
    except ValueError:
        raise InvalidArgs(f"{setting.variable} cannot be {text[:64]!r}: {setting.meaning}") from None
