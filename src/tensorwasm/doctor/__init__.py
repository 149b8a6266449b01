"""Checks of this machine: the cause of what does not work, and the fix."""

from tensorwasm.doctor.checks import check_machine
from tensorwasm.doctor.diagnoses import DIAGNOSES, Diagnosis, diagnose
from tensorwasm.doctor.facts import CheckResult, MachineReport, Status, System, render, render_rows

__all__ = [
    "DIAGNOSES",
    "CheckResult",
    "Diagnosis",
    "MachineReport",
    "Status",
    "System",
    "check_machine",
    "diagnose",
    "render",
    "render_rows",
]
