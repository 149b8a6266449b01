"""All that the doctor asks of the machine, behind one port, so that every finding can be staged."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final, Protocol

from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.opening import open_device

_OUTPUT_CHARACTERS: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answered.

    Attributes:
        code: exit status.
        text: standard output and standard error.
    """

    code: int
    text: str


class System(Protocol):
    """A machine, as the doctor sees it."""

    @property
    def platform(self) -> str:
        """The value of ``sys.platform``."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables."""

    @property
    def python(self) -> tuple[int, int, int]:
        """Python's version."""

    def run(self, *command: str, limit_s: float = 10.0, say: str = "") -> Answer | None:
        """Run a command, with a text as its input; None if it is not found or started, or does not end in time."""

    def read(self, path: str) -> str | None:
        """Return a small text file, None if it cannot be read."""

    def exists(self, path: str) -> bool:
        """Return whether there is anything at a path."""

    def load_library(self, name: str) -> str:
        """Load a shared library; return the loader's complaint, empty if it loads."""

    def version(self, package: str) -> str | None:
        """Return the version of an installed Python package, None if it is not installed."""

    def requirements(self) -> tuple[str, ...]:
        """Return what this package requires, as its metadata has it: ``wasmtime==50.0.1``."""

    def open(self, choice: str) -> tuple[Device, str]:
        """Open a device as `tensorwasm.gpu.opening.open_device` does.

        Raises:
            InvalidArgs: no such choice.
            DeviceUnavailable: it cannot be opened.
        """


@dataclass(frozen=True, slots=True)
class LocalSystem:
    """This machine."""

    platform: str = sys.platform
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: tuple[int, int, int] = sys.version_info[:3]

    def run(self, *command: str, limit_s: float = 10.0, say: str = "") -> Answer | None:
        """Run a command, with a text as its input; None if it is not found or started, or does not end in time."""
        path = shutil.which(command[0])
        if path is None:
            return None
        try:
            ended = subprocess.run(  # noqa: S603 - fixed commands of the checks, without a shell
                [path, *command[1:]],
                input=say.encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return Answer(ended.returncode, ended.stdout.decode("utf-8", "replace")[:_OUTPUT_CHARACTERS])

    def read(self, path: str) -> str | None:
        """Return a small text file, None if it cannot be read."""
        try:
            with Path(path).open(encoding="utf-8", errors="replace") as stream:
                return stream.read(_OUTPUT_CHARACTERS)
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Return whether there is anything at a path."""
        try:
            return Path(path).exists()
        except OSError:
            return False

    def load_library(self, name: str) -> str:
        """Load a shared library; return the loader's complaint, empty if it loads."""
        try:
            ctypes.CDLL(name)
        except OSError as error:
            return str(error)
        return ""

    def version(self, package: str) -> str | None:
        """Return the version of an installed Python package, None if it is not installed."""
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    def requirements(self) -> tuple[str, ...]:
        """Return what this package requires, as its metadata has it; nothing if it is not installed."""
        try:
            return tuple(metadata.requires("tensor-wasm") or ())
        except metadata.PackageNotFoundError:
            return ()

    def open(self, choice: str) -> tuple[Device, str]:
        """Open a device as `tensorwasm.gpu.opening.open_device` does.

        Raises:
            InvalidArgs: no such choice.
            DeviceUnavailable: it cannot be opened.
        """
        return open_device(choice)
