"""Python and the packages: what a toolchain is to a compiled program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tensorwasm.doctor.machine import Machine
from tensorwasm.doctor.rows import Row, Status
from tensorwasm.gpu.cuda.versions import parse_version

_OLDEST_PYTHON: Final = (3, 11)


@dataclass(frozen=True, slots=True)
class Need:
    """A package and what lacks without it.

    Attributes:
        package: as pip knows it.
        purpose: what it is for.
        extra: the optional extra that brings it, empty if it always comes along.
    """

    package: str
    purpose: str
    extra: str = ""


_NEEDS: Final = (
    Need("wasmtime", "way to run guests"),
    Need("numpy", "emulator"),
    Need("ml_dtypes", "bfloat16 on the emulator"),
    Need("cuda-bindings", "way to a GPU", "cuda"),
)


def check_python(machine: Machine) -> tuple[Row, ...]:
    """Is Python new enough?"""
    version = machine.system.python
    seen = ".".join(map(str, version))
    if version[:2] >= _OLDEST_PYTHON:
        return (Row("Python", Status.OK, seen),)
    return (Row("Python", Status.FAIL, seen, "Older than 3.11.", "Make the virtual environment with a newer Python."),)


def check_packages(machine: Machine) -> tuple[Row, ...]:
    """Are the packages there, in the versions that this release is written for?"""
    required = {_name(text): text for text in machine.system.requirements()}
    return tuple(_package_row(machine, need, required.get(_name(need.package), "")) for need in _NEEDS)


def _package_row(machine: Machine, need: Need, requirement: str) -> Row:
    version = machine.system.version(need.package)
    asked = requirement.partition(";")[0].strip()
    fix = f"python -m pip install 'tensor-wasm[{need.extra}]'" if need.extra else "python -m pip install tensor-wasm"
    missing = machine.if_missing if need.extra else Status.FAIL
    if version is None:
        return Row(need.package, missing, "not installed", f"Without it there is no {need.purpose}.", fix)
    if not _fits(version, asked):
        return Row(
            need.package,
            missing,
            f"{version}; this release wants {asked}",
            "This release is not written for it.",
            f"{fix} --upgrade",
        )
    return Row(need.package, Status.OK, version)


def _name(requirement: str) -> str:
    """Return the package of a requirement, as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]).lower()


def _fits(version: str, requirement: str) -> bool:
    """Return whether a version fits the bounds that our own requirements use: ==, >=, <."""
    have = parse_version(f"{version}.0") or ()
    for operator, text in re.findall(r"(==|>=|<)\s*([\w.]+)", requirement):
        bound = parse_version(f"{text}.0") or ()
        if (operator == "==" and text != version) or (operator == ">=" and have < bound):
            return False
        if operator == "<" and have >= bound:
            return False
    return True
