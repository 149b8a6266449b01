"""What this machine, this program or a limit refuses."""

from __future__ import annotations

from tensorwasm.errors.base import HostError, LimitError


class QuotaExceeded(LimitError):
    """Over a quota."""

    kind = "quota_exceeded"


class CapacityExhausted(LimitError):
    """No free slot in the pool."""

    kind = "capacity_exhausted"
    http_status = 503


class DeviceUnavailable(HostError):
    """There is no such device here; the message says why and what to do."""

    kind = "device_unavailable"
    http_status = 503
    exit_code = 4


class DeviceLost(HostError):
    """The device stopped answering; nothing on it can be trusted any more.

    Attributes:
        stdout: what the guest had written until then, as far as that is known.
        stderr: likewise.
    """

    stdout: bytes = b""
    stderr: bytes = b""

    kind = "device_lost"
    http_status = 503
    exit_code = 4
    retryable = True


class DeviceFault(DeviceLost):
    """A worker process went down with its device while it had the request; another worker takes its place."""

    def __init__(self, message: str) -> None:
        """Say what happened, and that the request may be made again."""
        super().__init__(f"{message}; the worker is replaced: the request may be tried again")


class TickerNotRunning(HostError):
    """Deadlines cannot be kept, so nothing is started."""

    kind = "epoch_ticker_not_running"


class OutputClosed(HostError):
    """Nobody takes what is written any more: the reader has gone, or the disk is full."""

    kind = "output_closed"


class ArtifactCorrupt(HostError):
    """What was stored is not what was put, or is gone. It is never given out, and putting it again mends it."""

    kind = "artifact_corrupt"


class StoreUnavailable(HostError):
    """The place where artifacts are kept does not answer, refuses or has no room; the message says which."""

    kind = "store_unavailable"
    http_status = 503
    retryable = True


class StorageFull(HostError):
    """The data folder cannot be written, or has less room than its reserve."""

    kind = "storage_full"
    http_status = 503
    retryable = True


class SigningNotConfigured(HostError):
    """There is no key that signs, or none that encrypts, where one was asked for."""

    kind = "snapshot_signing_not_configured"
    http_status = 503


class SnapshotKeyMissing(HostError):
    """Saved state is signed or encrypted under a key that is not here; bringing the key back mends it."""

    kind = "snapshot_key_missing"
    http_status = 503


class UnsafeFile(HostError):
    """A file or folder that must be this user's alone is not; the message says why and what to do."""

    kind = "unsafe_file"


class EngineMismatch(HostError):
    """The installed wasmtime is not the one this release is written for."""

    kind = "engine_mismatch"


class InternalError(HostError):
    """A bug here."""


class RateLimited(LimitError):
    """Too many requests; the answer says when to come again.

    Attributes:
        retry_after_s: seconds until the same request may be let through, at least 1.
    """

    kind = "rate_limited"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        """Remember when to come again."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DatabaseUnavailable(HostError):
    """The database does not answer, is locked by somebody else, or has no room."""

    kind = "database_unavailable"
    http_status = 503
    retryable = True


class SchemaTooNew(HostError):
    """A later release has changed the database in ways that this one does not know; the message has both versions."""

    kind = "schema_too_new"


class KernelRegistryNotConfigured(HostError):
    """There is no key that kernels are verified with."""

    kind = "kernel_registry_not_configured"
    http_status = 503


class NotReady(HostError):
    """The server has just begun, and makes or loads what it needs to be quick; what is asked of it waits for that."""

    kind = "not_ready"
    http_status = 503
    retryable = True


class Draining(HostError):
    """The server is going down and takes nothing new."""

    kind = "draining"
    http_status = 503
    retryable = True
