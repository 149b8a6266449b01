"""Every setting, once: name, default, meaning. Command-line options and documents are made from this table."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.values import MIB, Limits

_DEFAULTS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        field: attribute of `Settings`.
        variable: environment variable.
        parse: text to value; raises ValueError.
        default: value when the variable is unset or empty.
        meaning: one sentence for people.
    """

    field: str
    variable: str
    parse: Callable[[str], object]
    default: object
    meaning: str


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise ValueError("must be a positive number of seconds")
    return number


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("device", "TENSOR_WASM_DEVICE", str, "auto", "Device: auto, emulator, cuda or cuda:N."),
    Setting(
        "timeout_s",
        "TENSOR_WASM_TIMEOUT",
        _seconds,
        _DEFAULTS.wall_s,
        "Wall-clock seconds for the start function and for every call.",
    ),
    Setting(
        "memory_mib",
        "TENSOR_WASM_MEMORY",
        _count,
        _DEFAULTS.memory_bytes // MIB,
        "Linear memory of one sandbox in MiB, at most 4096.",
    ),
    Setting("pool_slots", "TENSOR_WASM_POOL_SLOTS", _count, 1000, "Sandboxes alive at once in one process."),
    Setting(
        "emulator_memory_mib",
        "TENSOR_WASM_EMULATOR_MEMORY",
        _count,
        1024,
        "Device memory of the emulator in MiB.",
    ),
    Setting("ptxas", "TENSOR_WASM_PTXAS", str, "", "Path of ptxas; empty looks on the PATH and in the toolkit."),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process; `SETTINGS` says what each means."""

    device: str
    timeout_s: float
    memory_mib: int
    pool_slots: int
    emulator_memory_mib: int
    ptxas: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the variables of `SETTINGS`.

        Raises:
            InvalidArgs: a variable does not parse; the message names it and the value that was found.
        """
        return cls(**{setting.field: _read(setting, environment) for setting in SETTINGS})  # type: ignore[arg-type]

    def limits(self) -> Limits:
        """Return the limits of a sandbox under these settings."""
        return Limits(memory_bytes=self.memory_mib * MIB, wall_s=self.timeout_s)


def _read(setting: Setting, environment: Mapping[str, str]) -> object:
    text = environment.get(setting.variable, "").strip()
    if not text:
        return setting.default
    try:
        return setting.parse(text)
    except ValueError as error:
        raise InvalidArgs(f"{setting.variable}={text[:64]!r}: {error}; {setting.meaning}") from None


@cache
def current() -> Settings:
    """Return this process's settings, read from the environment once."""
    return Settings.from_environment(os.environ)


assert tuple(field.name for field in fields(Settings)) == tuple(setting.field for setting in SETTINGS)  # noqa: S101 - the table and the class are one list
