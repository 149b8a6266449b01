"""What is wrong with this machine, and how to mend it."""

from tensorwasm.doctor.diagnoses import DIAGNOSES, Diagnosis, diagnose
from tensorwasm.doctor.reporting import render, render_rows, report
from tensorwasm.doctor.rows import Report, Row, Status
from tensorwasm.doctor.system import LocalSystem, System

__all__ = [
    "DIAGNOSES",
    "Diagnosis",
    "LocalSystem",
    "Report",
    "Row",
    "Status",
    "System",
    "diagnose",
    "render",
    "render_rows",
    "report",
]
