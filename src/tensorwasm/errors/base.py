"""The root of the tree, and its four branches: whose fault it is."""

from __future__ import annotations

from typing import ClassVar


class TensorWasmError(Exception):
    """Base of the tree.

    Attributes:
        kind: stable identifier, part of the contract; messages are not.
        http_status: status the HTTP edge answers with.
        exit_code: code the command line exits with.
        retryable: whether the same request may succeed if it is made again. It may have had effects already: only its
            maker knows whether they may happen twice, so nothing here tries again unasked.
    """

    kind: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        """The text for people, without the kind."""
        return str(self.args[0]) if self.args else self.kind


class CallerError(TensorWasmError):
    """The caller's mistake: retrying unchanged cannot help."""

    kind = "invalid_request"
    http_status = 400
    exit_code = 2


class GuestError(TensorWasmError):
    """The guest program's own doing.

    Attributes:
        stdout: what the guest had written until then, where that was captured.
        stderr: likewise.
    """

    stdout: bytes = b""
    stderr: bytes = b""

    kind = "wasm_error"
    http_status = 500


class LimitError(TensorWasmError):
    """Refused for now; the same request may succeed later."""

    kind = "capacity_exhausted"
    http_status = 429
    retryable = True


class HostError(TensorWasmError):
    """This machine or this program."""

    kind = "internal"
