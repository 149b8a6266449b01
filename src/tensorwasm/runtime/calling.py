"""A call as its caller sees it: what came back, how the guest left, and what it had written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tensorwasm.errors import GuestError, GuestExit
from tensorwasm.guest.engine import codec
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.guest.reactor.task import Sandbox


def call(
    instance: Instance, export: str, args: Sequence[object], deadline: Deadline
) -> tuple[tuple[codec.Number, ...], int]:
    """Call an export; return its results and the guest's exit code.

    Raises:
        TensorWasmError: what `tensorwasm.guest.sandbox.instance.Instance.call` raises, but `GuestExit`; a `GuestError`
            carries what the guest had written.
    """
    try:
        return tuple(instance.call(export, args, deadline=deadline)), 0
    except GuestExit as left:
        return (), left.code
    except GuestError as error:
        error.stdout, error.stderr, *_ = written(instance)
        raise


class Written(NamedTuple):
    """What a guest wrote.

    Attributes:
        stdout: standard output, as far as it was captured.
        stderr: likewise.
        stdout_truncated: more than the limit was written.
        stderr_truncated: likewise.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False


def written(instance: Instance | Sandbox) -> Written:
    """Return what a guest wrote, nothing for one without WASI."""
    out, err = instance.stdout, instance.stderr
    if out is None or err is None:
        return Written()
    return Written(out.captured, err.captured, out.truncated, err.truncated)
