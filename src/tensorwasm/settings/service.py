"""The settings of the service, apart from those of every process; read once, when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from tensorwasm.settings.parsing import Setting, count, flag, read, seconds, size, text

SERVICE_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "tokens",
        "TENSOR_WASM_API_TOKENS",
        text,
        "",
        "Tokens taken besides those of the database, separated by commas: TOKEN:tenant=1,2,3 or TOKEN:tenant=*.",
    ),
    Setting(
        "allow_dev_mode",
        "TENSOR_WASM_API_ALLOW_DEV_MODE",
        flag,
        False,
        "1 serves anybody as any tenant, without tokens; on addresses of this machine only, unless told otherwise.",
    ),
    Setting(
        "allow_plaintext_public",
        "TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC",
        flag,
        False,
        "1 lets a service without authentication listen on an address that others reach.",
    ),
    Setting(
        "require_tenant",
        "TENSOR_WASM_API_REQUIRE_TENANT",
        flag,
        False,
        "1 makes X-TensorWasm-Tenant mandatory; otherwise a token of one tenant means that one, and others tenant 0.",
    ),
    Setting(
        "trusted_hosts",
        "TENSOR_WASM_API_TRUSTED_HOSTS",
        text,
        "",
        "Values of the Host header that are served, separated by commas; empty takes any.",
    ),
    Setting(
        "trusted_proxies",
        "TENSOR_WASM_API_TRUSTED_XFCC_PROXIES",
        text,
        "",
        "Networks whose X-Forwarded-Client-Cert is believed, as CIDRs separated by commas; empty believes none.",
    ),
    Setting(
        "cors_origins",
        "TENSOR_WASM_API_CORS_ALLOWED_ORIGINS",
        text,
        "",
        "Origins that browsers may call from, by WebSocket too, separated by commas; empty allows none.",
    ),
    Setting(
        "metrics_token",
        "TENSOR_WASM_API_METRICS_TOKEN",
        text,
        "",
        "Bearer token of /metrics; without it only clients of this machine are answered.",
    ),
    Setting(
        "rate_qps",
        "TENSOR_WASM_API_RATE_LIMIT_QPS",
        size,
        None,
        "Requests a second of one token, of all its tenants together; 0 or empty for no such limit.",
    ),
    Setting(
        "rate_burst",
        "TENSOR_WASM_API_RATE_LIMIT_BURST",
        size,
        None,
        "Requests of one token at once; empty takes 200 where the rate is limited.",
    ),
    Setting(
        "tenant_caps",
        "TENSOR_WASM_API_TENANT_CAPS",
        text,
        "qps=100,burst=200,requests=256,instances=256,streams=64",
        "Caps of each tenant that has none of its own, as NAME=NUMBER separated by commas; none for what is not named.",
    ),
    Setting(
        "audit_log",
        "TENSOR_WASM_API_AUDIT_LOG",
        text,
        "",
        "Where the audit log goes: file:/path, stdout or none; empty takes audit.log in the data folder.",
    ),
    Setting(
        "audit_flush_s",
        "TENSOR_WASM_API_AUDIT_FLUSH",
        seconds,
        1.0,
        "Seconds after which a line of the audit log is on the disk at the latest.",
    ),
    Setting(
        "audit_rotate_mib",
        "TENSOR_WASM_API_AUDIT_ROTATE",
        size,
        64,
        "Length in MiB from which a file of the audit log is full and the next one begins; 0 for one file without end.",
    ),
    Setting(
        "audit_keep",
        "TENSOR_WASM_API_AUDIT_KEEP",
        size,
        32,
        "Full files of the audit log that are kept; a line says which was removed. 0 keeps all.",
    ),
    Setting(
        "snapshot_hmac_key",
        "TENSOR_WASM_API_SNAPSHOT_HMAC_KEY",
        text,
        "",
        "Key that signs the service's snapshots, 64 hex digits or a file's path; empty takes the data folder's own.",
    ),
    Setting(
        "kernel_hmac_key",
        "TENSOR_WASM_API_KERNEL_HMAC_KEY",
        text,
        "",
        "Key that kernel manifests are verified with, 64 hex digits; empty turns the registry off.",
    ),
    Setting(
        "kernel_publish_tokens",
        "TENSOR_WASM_API_KERNEL_PUBLISH_TOKENS",
        text,
        "",
        "Tokens that may publish kernels besides those with the scope kernels:publish, separated by commas.",
    ),
    Setting(
        "kernel_publishers",
        "TENSOR_WASM_API_KERNEL_PUBLISHERS",
        text,
        "",
        "Publishers whose kernels are taken, separated by commas; empty takes any whose signature holds.",
    ),
    Setting(
        "openai_models",
        "TENSOR_WASM_API_OPENAI_MODEL_MAP",
        text,
        "",
        "Models as MODEL:FUNCTION_ID, separated by commas; a tenant's own functions are models by their names too.",
    ),
    Setting(
        "database",
        "TENSOR_WASM_DATABASE",
        text,
        "",
        "Database as an SQLAlchemy URL (sqlite:, postgresql:); empty takes service.db in the data folder.",
    ),
    Setting(
        "data",
        "TENSOR_WASM_DATA",
        text,
        "",
        "Data folder of the service; empty takes service in the state folder.",
    ),
    Setting(
        "disk_reserve_mib",
        "TENSOR_WASM_API_DISK_RESERVE",
        size,
        64,
        "Room of the data folder in MiB, below which /readyz says that the server is not ready; it serves on.",
    ),
    Setting(
        "max_body_mib",
        "TENSOR_WASM_API_MAX_BODY",
        count,
        64,
        "Longest body of a request in MiB.",
    ),
    Setting(
        "request_timeout_s",
        "TENSOR_WASM_API_REQUEST_TIMEOUT",
        seconds,
        30.0,
        "Seconds in which a request must have come in whole.",
    ),
    Setting(
        "max_deadline_s",
        "TENSOR_WASM_API_MAX_DEADLINE",
        seconds,
        300.0,
        "Longest deadline in seconds that a client may ask for; without one it is TENSOR_WASM_TIMEOUT.",
    ),
    Setting(
        "drain_s",
        "TENSOR_WASM_API_DRAIN",
        seconds,
        20.0,
        "Seconds that requests get to end when the server is told to stop.",
    ),
    Setting(
        "session_idle_s",
        "TENSOR_WASM_API_SESSION_IDLE",
        seconds,
        60.0,
        "Seconds without a call after which a session is saved and leaves memory until its next call.",
    ),
    Setting(
        "session_lease_s",
        "TENSOR_WASM_API_SESSION_LEASE",
        seconds,
        15.0,
        "Seconds after which other servers of a shared database take the sessions of one that is not heard of.",
    ),
    Setting(
        "server_name",
        "TENSOR_WASM_API_SERVER_NAME",
        text,
        "",
        "What clients are told who ask another server for a session of this one; empty takes the host's name and port.",
    ),
    Setting(
        "job_attempts",
        "TENSOR_WASM_API_JOB_ATTEMPTS",
        count,
        3,
        "Times that a job is tried unless it says otherwise, before it is a dead letter.",
    ),
    Setting(
        "job_keep_s",
        "TENSOR_WASM_API_JOB_KEEP",
        seconds,
        86_400.0,
        "Seconds that an ended job is kept.",
    ),
    Setting(
        "oidc_issuer",
        "TENSOR_WASM_API_OIDC_ISSUER",
        text,
        "",
        "Issuer of JWTs that are taken as bearer tokens, an https URL; empty takes none.",
    ),
    Setting(
        "oidc_audience",
        "TENSOR_WASM_API_OIDC_AUDIENCE",
        text,
        "",
        "Audience that such a token must name.",
    ),
    Setting(
        "oidc_jwks",
        "TENSOR_WASM_API_OIDC_JWKS",
        text,
        "",
        "Where the issuer's keys are, an https URL of the issuer's own host, or a file.",
    ),
    Setting(
        "isolation",
        "TENSOR_WASM_API_ISOLATION",
        text,
        "",
        "Who shares a worker of a GPU: shared or process; empty takes process on CUDA and shared on the emulator.",
    ),
)


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The settings of a service; `SERVICE_SETTINGS` says what each means."""

    tokens: str = field(repr=False)
    allow_dev_mode: bool
    allow_plaintext_public: bool
    require_tenant: bool
    trusted_hosts: str
    trusted_proxies: str
    cors_origins: str
    metrics_token: str = field(repr=False)
    rate_qps: int | None
    rate_burst: int | None
    tenant_caps: str
    audit_log: str
    audit_flush_s: float
    audit_rotate_mib: int
    audit_keep: int
    snapshot_hmac_key: str = field(repr=False)
    kernel_hmac_key: str = field(repr=False)
    kernel_publish_tokens: str = field(repr=False)
    kernel_publishers: str
    openai_models: str
    database: str = field(repr=False)
    data: str
    disk_reserve_mib: int
    max_body_mib: int
    request_timeout_s: float
    max_deadline_s: float
    drain_s: float
    session_idle_s: float
    session_lease_s: float
    server_name: str
    job_attempts: int
    job_keep_s: float
    oidc_issuer: str
    oidc_audience: str
    oidc_jwks: str
    isolation: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ServiceSettings:
        """Read the variables of `SERVICE_SETTINGS`.

        Raises:
            InvalidArgs: a variable does not parse; the message names it, and never has its value where that is secret.
        """
        # The table's readers return what the fields say; their common type cannot say so.
        return cls(**{each.field: read(each, environment) for each in SERVICE_SETTINGS})  # type: ignore[arg-type]


assert tuple(each.name for each in fields(ServiceSettings)) == tuple(each.field for each in SERVICE_SETTINGS)  # noqa: S101 - the table and the class are one list
