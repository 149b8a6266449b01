"""`PlanJob`: a plan to make, and what it is kept under; and the form in which plans cross between processes.

Plans are made in a process that untrusted code may have taken over, so they are unpickled with the plain values and the
dataclasses of a few packages only. Machine code for the host is trusted all the same, as Cranelift's is.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from tensorwasm import offload
from tensorwasm.artifacts.hashing import hasher
from tensorwasm.gpu.resources.kernel_store import name_of
from tensorwasm.guest.imports import offload as targets
from tensorwasm.offload.module import LoneRegion
from tensorwasm.values import MIB

MAX_JOB_BYTES: Final = 8 * MIB
MAX_ANSWER_BYTES: Final = 16 * MIB
PLAN: Final = b"+"
FAILED: Final = b"-"
"""The first byte of an answer: before a plan or refusal, and before how the process ended that was to make it."""

_PACKAGES: Final = (f"{offload.__name__}.", f"{targets.__name__}.", f"{__package__}.")
_LIBRARIES: Final = ("islpy", "llvmlite")


@dataclass(frozen=True, slots=True)
class PlanJob:
    """A plan to make.

    Attributes:
        tenant: whose module it is of.
        lone: the region.
        integers: of a `tensorwasm.offload.plan_cache.PlanKey`, like ``memory_bytes``.
        target: a compute capability, or the host's processor in words.
        known: fingerprints of code that need not be made.
    """

    tenant: str
    lone: LoneRegion
    integers: tuple[int, ...]
    memory_bytes: int
    target: tuple[int, int] | str
    known: frozenset[bytes] = frozenset()

    @property
    def name(self) -> bytes:
        """What the plan is kept under, without code: a hash of all that it depends on, tenant and our code included."""
        of_region = self.lone.wasm, encode(self.lone.region)
        return name_of("plan", code_digest(), self.tenant, of_region, self.integers, self.memory_bytes, self.target)

    def code_name(self, fingerprint: bytes) -> bytes:
        """Return what code of plans is kept under."""
        return name_of("code", code_digest(), self.tenant, fingerprint, self.target)


def encode(value: object) -> bytes:
    """Return a plan, or a part of one, as bytes."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def decode(data: bytes) -> Any:
    """Return what was encoded; raise `pickle.UnpicklingError`, or what wrong data makes of our dataclasses."""
    return _PlanUnpickler(io.BytesIO(data)).load()


class _PlanUnpickler(pickle.Unpickler):
    """Knows the classes of plans alone."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(_PACKAGES) and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum | tuple)):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is in no plan")


@cache
def code_digest() -> bytes:
    """Return a hash of the code that makes plans, and of the libraries' versions: plans of other code are not used."""
    total = hasher()
    for package in (offload, targets):
        for path in sorted(Path(package.__file__ or "").parent.rglob("*.py")):
            total.update(path.read_bytes())
    for library in _LIBRARIES:
        total.update(f"{library} {metadata.version(library)}\n".encode())
    return bytes(total.digest())
