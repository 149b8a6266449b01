"""`PlanJob`: a plan to make, and what it is kept under; `PlanOutcome`: what came of it.

Both cross between processes, some of which untrusted code may have taken over. So a job is plain values of fixed types:
what is made of it is a plan of what it is kept under. Plans are bytes, which only their user unpickles, with the plain
values and the dataclasses of a few packages. Machine code for the host is trusted, as Cranelift's is.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from enum import Enum
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec

from tensorwasm import offload
from tensorwasm.artifacts.hashing import hasher
from tensorwasm.errors import InvalidArgs
from tensorwasm.gpu.resources.kernel_store import name_of
from tensorwasm.guest.imports import offload as targets
from tensorwasm.offload.codegen.sizes import MadePlan
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.module import LoneRegion
from tensorwasm.offload.plan_cache import PlanRefusal
from tensorwasm.runtime import offload as plans
from tensorwasm.values import MIB

MAX_ANSWER_BYTES: Final = 16 * MIB
PLAN: Final = b"+"
FAILED: Final = b"-"
"""The first byte of an answer: before a plan or refusal, and before how the process ended that was to make it."""

_PACKAGES: Final = (f"{offload.__name__}.", f"{targets.__name__}.", f"{__package__}.")
_LIBRARIES: Final = ("islpy", "llvmlite")
_PASSING: Final = frozenset({DeclineReason.FAULT, DeclineReason.CRASH, DeclineReason.OUT_OF_TIME})
"""Refusals that another process may not meet."""


class PlanJob(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A plan to make.

    Attributes:
        tenant: whose module it is of.
        region: what is planned.
        integers: of a `tensorwasm.offload.plan_cache.PlanKey`, like ``memory_bytes``.
        target: a compute capability, or the host's processor in words.
        known: fingerprints of code that need not be made.
        relaxed: whether sums and products of floats may be added up in another order.
    """

    tenant: str
    region: LoneRegion
    integers: tuple[int, ...]
    memory_bytes: int
    target: tuple[int, int] | str
    known: frozenset[bytes] = frozenset()
    relaxed: bool = False

    @property
    def name(self) -> bytes:
        """What the plan is kept under, without code: a hash of all that it depends on, tenant and our code included."""
        of_call = self.integers, self.memory_bytes, self.target, self.relaxed
        return name_of("plan", code_digest(), self.tenant, region_name(self.region), *of_call)

    def code_name(self, fingerprint: bytes) -> bytes:
        """Return what code of plans of this region is kept under."""
        return name_of("code", code_digest(), self.tenant, region_name(self.region), fingerprint, self.target)


class PlanOutcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A plan or a `PlanRefusal`.

    Attributes:
        plan: that, encoded, without code.
        fingerprint: of the plan's code; empty for a refusal.
        code: encoded; None for a refusal, and if it is known or kept elsewhere.
        passing: whether another process may not meet this refusal.
        analysed_ns: time that making the plan took, but for its code; 0 for one that was kept.
        compiled_ns: the same for its code.
    """

    plan: bytes
    fingerprint: bytes = b""
    code: bytes | None = None
    passing: bool = False
    analysed_ns: int = 0
    compiled_ns: int = 0

    @classmethod
    def of(cls, found: object) -> PlanOutcome:
        """Return a `MadePlan` or a `PlanRefusal` as this."""
        if isinstance(found, MadePlan):
            code = None if found.code is None else encode(found.code)
            plan = encode(replace(found, code=None, analysed_ns=0, compiled_ns=0))
            return cls(plan, found.fingerprint, code, analysed_ns=found.analysed_ns, compiled_ns=found.compiled_ns)
        return cls(encode(found), passing=isinstance(found, PlanRefusal) and found.reason in _PASSING)

    def read(self) -> Any:
        """Return the `MadePlan` or the `PlanRefusal`; raise what `decode` does."""
        found = decode(self.plan)
        if isinstance(found, MadePlan):
            code = None if self.code is None else decode(self.code)
            return replace(found, code=code, analysed_ns=self.analysed_ns, compiled_ns=self.compiled_ns)
        return found


_jobs: Final = msgspec.msgpack.Decoder(PlanJob)
_outcomes: Final = msgspec.msgpack.Decoder(PlanOutcome)


def pack(value: PlanJob | PlanOutcome) -> bytes:
    """Return a job or an outcome as bytes."""
    return msgspec.msgpack.encode(value)


def read_job(data: bytes) -> PlanJob:
    """Return the job that some bytes are; raise `InvalidArgs` if they are none."""
    try:
        return _jobs.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidArgs(f"no plan to make: {error}") from None


def read_outcome(data: bytes) -> PlanOutcome:
    """Return the outcome that some bytes are; raise `msgspec.MsgspecError` if they are none."""
    return _outcomes.decode(data)


def region_name(region: LoneRegion) -> bytes:
    """Return a region as bytes, equal for equal ones."""
    return msgspec.msgpack.encode(region)


def encode(value: object) -> bytes:
    """Return a plan, or a part of one, as bytes."""
    data = io.BytesIO()
    _PlanPickler(data, pickle.HIGHEST_PROTOCOL).dump(value)
    return data.getvalue()


def decode(data: bytes) -> Any:
    """Return what was encoded; raise `pickle.UnpicklingError`, or what wrong data makes of our dataclasses."""
    return _PlanUnpickler(io.BytesIO(data)).load()


class _PlanPickler(pickle.Pickler):
    """Has named tuples made by a call, as `_PlanUnpickler` wants them."""

    def reducer_override(self, value: object) -> Any:
        return (type(value), tuple(value)) if isinstance(value, tuple) else NotImplemented


class _PlanUnpickler(pickle.Unpickler):
    """Makes instances of the classes of plans alone, and can change no class.

    Data may set attributes of what it names: so it gets only classes whose ``__setstate__`` takes an instance, those of
    frozen dataclasses, and functions in place of others.
    """

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(_PACKAGES) and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and issubclass(found, Enum | tuple):
                return _maker(found)
            if isinstance(found, type) and is_dataclass(found) and "__setstate__" in vars(found):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is in no plan")


def _maker(made: type) -> Callable[..., object]:
    def make(*fields: object) -> object:
        return made(*fields)

    return make


@cache
def code_digest() -> bytes:
    """Return a hash of the code that makes plans, and of the libraries' versions: plans of other code are not used."""
    total = hasher()
    for package in (offload, targets, plans):
        for path in sorted(Path(package.__file__ or "").parent.rglob("*.py")):
            total.update(path.read_bytes())
    for library in _LIBRARIES:
        total.update(f"{library} {metadata.version(library)}\n".encode())
    return bytes(total.digest())
