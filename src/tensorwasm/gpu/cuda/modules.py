"""From a PTX model to a module on the device: select, print, assemble, load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tensorwasm import ptx
from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.cuda.assembler import Assembler
from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.diagnostics import summarize
from tensorwasm.gpu.cuda.results import DriverFailure, meaning
from tensorwasm.ptx.model import Module
from tensorwasm.values import Deadline, DeviceInfo

_LOG_BYTES: Final = 8192


@dataclass(frozen=True, slots=True)
class Compiler:
    """How this device's modules are compiled.

    Attributes:
        driver: the driver API.
        info: the device.
        cuda: CUDA release that the driver supports.
        assembler: a ptxas, or None for the driver's own compiler.
        jit: whether the driver's own compiler, which runs in this process, may take what ptxas cannot.
    """

    driver: Driver
    info: DeviceInfo
    cuda: tuple[int, int]
    assembler: Assembler | None
    jit: bool = True

    def compile(self, module: Module, deadline: Deadline) -> bytes:
        """Return what the driver is to load: a cubin, or PTX text with its final NUL. Needs no context.

        Raises:
            UnsupportedPtx: the module asks for what this device or its driver lacks, or, where the driver is not to
                compile, its ptxas.
            MalformedPtx: it is not ASCII, or ptxas refuses it.
            InvokeTimeout: the deadline passed.
            DeviceUnavailable: this machine cannot run its ptxas.
        """
        ptx.check_compatible(module, self.info.compute_capability, self.info.ptx_version)
        _refuse_printing(module)
        text = ptx.render(module, deadline)
        if not text.isascii() or "\0" in text:
            raise MalformedPtx("PTX is ASCII text without NUL")
        if self.assembler is not None and self.assembler.suits(self.info.compute_capability, module.version, self.cuda):
            return self.assembler.assemble(text, self._architecture(module), deadline)
        if not self.jit:
            raise UnsupportedPtx("ptxas does not take the module, and the driver is not to compile in this process")
        return text.encode("ascii") + b"\0"

    def load(self, image: bytes) -> Any:
        """Return the driver's module for what `compile` returned. A context must be bound.

        Raises:
            DriverFailure: the driver does not take it; its log is in the failure.
        """
        option = self.driver.api.CUjit_option
        errors = bytearray(_LOG_BYTES)
        options = {option.CU_JIT_ERROR_LOG_BUFFER: errors, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES}
        try:
            return self.driver.call("cuModuleLoadDataEx", image, len(options), list(options), list(options.values()))
        except DriverFailure as failure:
            log = summarize(bytes(errors)) if issubclass(meaning(failure).error, MalformedPtx) else ""
            raise DriverFailure(failure.function, failure.code, log) from None

    def _architecture(self, module: Module) -> str:
        """Return this device's ``sm_N``, with the suffix of a module that is bound to one architecture or family."""
        major, minor = self.info.compute_capability
        word = next((word for word in module.target if word.startswith("sm_")), "")
        return f"sm_{major}{minor}{word[-1] if word[-1:] in {'a', 'f'} else ''}"


def _refuse_printing(module: Module) -> None:
    """Refuse what prints: the driver writes it to the output of this process, which is no guest's.

    Raises:
        UnsupportedPtx: a function of the module prints; with the line of the first that does.
    """
    where = ptx.find_printf(module)
    if where is not None:
        raise UnsupportedPtx(
            "vprintf: on a GPU the output of kernels goes to the process, not to the guest", where.line, where.column
        )
