"""The checks, in the order in which they are made."""

from collections.abc import Callable
from typing import Final

from tensorwasm.doctor.checks import cuda, device, software
from tensorwasm.doctor.facts import CheckResult, MachineFacts, MachineReport, Results, Status, System

CHECKS: Final[tuple[Callable[[MachineFacts], Results], ...]] = (
    cuda.check_nvidia_smi,
    cuda.check_gpus,
    cuda.check_capability,
    cuda.check_driver_floor,
    cuda.check_device_nodes,
    cuda.check_nvcc,
    cuda.check_ptxas,
    cuda.check_releases,
    cuda.check_assembler,
    cuda.check_toolkit_driver,
    cuda.check_roots,
    cuda.check_arch,
    cuda.check_path,
    software.check_library_path,
    cuda.check_visible_devices,
    software.check_libcuda,
    software.check_container,
    software.check_build_tools,
    cuda.check_mps,
    software.check_python,
    software.check_packages,
    device.check_emulator,
    device.check_device,
    device.check_managed,
    device.check_isolation,
    device.check_launch,
)


def check_machine(choice: str, system: System | None = None) -> MachineReport:
    """Make all checks.

    Args:
        choice: device that must work: ``auto``, ``emulator``, ``cuda`` or ``cuda:N``.
        system: replaces this machine in tests.

    Raises:
        InvalidArgs: no such choice.
    """
    machine = MachineFacts(system or System(), choice)
    rows: tuple[CheckResult, ...] = ()
    try:
        for check in CHECKS:
            found = check(machine) or ()
            rows += (found,) if isinstance(found, CheckResult) else found
        opened, _ = machine.opened
        name = f"{opened.info.kind}: {opened.info.name}" if opened else ""
    finally:
        machine.close()
    ok = bool(name) and all(row.status is not Status.FAIL for row in rows)
    return MachineReport(ok, choice, name, machine.system.platform, rows)
