"""Refusals by limits, and faults of this machine or program."""

from __future__ import annotations

from tensorwasm.errors.base import HostError, LimitError


class QuotaExceeded(LimitError, kind="quota_exceeded"):
    """A quota is exceeded."""


class CapacityExhausted(LimitError, kind="capacity_exhausted", http_status=503):
    """There is no free capacity."""


class DeviceUnavailable(HostError, kind="device_unavailable", http_status=503, exit_code=4):
    """There is no such device; the message says why and what to do."""


class DeviceLost(HostError, kind="device_lost", http_status=503, exit_code=4, retryable=True):
    """The device stopped answering; its state is lost. ``stdout`` and ``stderr`` are the guest's, as far as known."""

    stdout: bytes = b""
    stderr: bytes = b""


class DeviceFault(DeviceLost):
    """A worker process died with its device during the request; another worker replaces it."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; the worker is replaced: the request may be tried again")


class TickerNotRunning(HostError, kind="epoch_ticker_not_running"):
    """Deadlines cannot be enforced, so no guest is started."""


class OutputClosed(HostError, kind="output_closed"):
    """Output cannot be written: the reader is gone, or the disk is full."""


class ArtifactCorrupt(HostError, kind="artifact_corrupt"):
    """A stored artifact is damaged or gone. It is not returned; storing it again repairs it."""


class StoreUnavailable(HostError, kind="store_unavailable", http_status=503, retryable=True):
    """The artifact store does not answer, refuses or is full; the message says which."""


class StorageFull(HostError, kind="storage_full", http_status=503, retryable=True):
    """The data folder cannot be written, or has less free space than its reserve."""


class SigningNotConfigured(HostError, kind="snapshot_signing_not_configured", http_status=503):
    """Signing or encryption was requested, and there is no key for it."""


class SnapshotKeyMissing(HostError, kind="snapshot_key_missing", http_status=503):
    """The key of saved state is missing; the state is readable again once the key is restored."""


class UnsafeFile(HostError, kind="unsafe_file"):
    """A file or folder that must be private is not; the message says why and what to do."""


class EngineMismatch(HostError, kind="engine_mismatch"):
    """The installed wasmtime is not the version that this release requires."""


class InternalError(HostError):
    """A bug in this program."""


class RateLimited(LimitError, kind="rate_limited"):
    """Too many requests; ``retry_after_s`` is the time until the next one may succeed, at least 1."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DatabaseUnavailable(HostError, kind="database_unavailable", http_status=503, retryable=True):
    """The database does not answer, is locked by another process, or is full."""


class SchemaTooNew(HostError, kind="schema_too_new"):
    """A later release has changed the database's schema; the message has both versions."""


class KernelRegistryNotConfigured(HostError, kind="kernel_registry_not_configured", http_status=503):
    """There is no key for verifying kernels."""


class NotReady(HostError, kind="not_ready", http_status=503, retryable=True):
    """The server has just started, and is still loading compiled functions."""


class Draining(HostError, kind="draining", http_status=503, retryable=True):
    """The server is shutting down and accepts no new requests."""
