"""The checks, in the order in which they are made: what runs is the last line."""

from collections.abc import Callable
from typing import Final

from tensorwasm.doctor.checks import device, driver, environment, libraries, python, sharing, toolkit
from tensorwasm.doctor.machine import Machine
from tensorwasm.doctor.rows import Row

Check = Callable[[Machine], tuple[Row, ...]]

CHECKS: Final[tuple[Check, ...]] = (
    driver.check_nvidia_smi,
    driver.check_gpus,
    driver.check_capability,
    driver.check_driver_floor,
    driver.check_device_nodes,
    toolkit.check_nvcc,
    toolkit.check_ptxas,
    toolkit.check_releases,
    toolkit.check_assembler,
    driver.check_toolkit_driver,
    environment.check_roots,
    environment.check_arch,
    environment.check_path,
    environment.check_library_path,
    environment.check_visible_devices,
    libraries.check_libcuda,
    libraries.check_container,
    libraries.check_build_tools,
    sharing.check_mps,
    python.check_python,
    python.check_packages,
    device.check_emulator,
    device.check_device,
    device.check_managed,
    device.check_launch,
)
