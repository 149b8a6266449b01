"""Compiled kernels on the disk: signed with the machine's own key, each under a name that includes its tenant."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Final

from tensorwasm import settings
from tensorwasm.artifacts.keys import machine_key
from tensorwasm.errors import TensorWasmError
from tensorwasm.guest.engine import folders
from tensorwasm.runtime.deploy.code_files import CodeFolder, UnfitFile
from tensorwasm.values import MIB

_log: Final = logging.getLogger(__name__)


class KernelFolder:
    """The kernels that processes of this user share; see `tensorwasm.gpu.resources.kernel_store.KernelStore`.

    A file that was changed or cut counts as missing, and is replaced when its kernel has been compiled again.
    """

    def __init__(self, folder: CodeFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def get(self, name: bytes) -> bytes | None:
        """Return what is kept under a name, None if nothing is."""
        try:
            file = self._folder.open(name)
            if file is None:
                return None
            with file:
                return bytes(file.code)
        except (OSError, UnfitFile) as reason:
            self._say("a compiled kernel on the disk is not used: %s", reason)
            return None

    def put(self, name: bytes, data: bytes) -> None:
        """Keep something under a name, if there is room for it."""
        try:
            self._folder.put(name, data)
        except OSError as reason:
            self._say("a compiled kernel is not kept on the disk: %s", reason)

    def _say(self, message: str, reason: object) -> None:
        """Log something, once."""
        with self._lock:
            new = message not in self._said
            self._said.add(message)
        if new:
            _log.warning(message, reason)


def open_kernel_folder() -> KernelFolder | None:
    """Return the folder of the settings, None where there is no safe one; why is logged."""
    cap_bytes = settings.current().kernel_cache_mib * MIB
    if sys.platform == "win32" or not cap_bytes:
        return None
    try:
        return KernelFolder(CodeFolder(folders.open_own("kernels"), machine_key("kernels"), cap_bytes))
    except OSError as error:
        reason: object = error
    except TensorWasmError as error:
        reason = error.message
    _log.warning("compiled kernels are not kept on the disk: %s", reason)
    return None
