"""The settings of the service, in addition to those of every process; read once, when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwasm.settings import state_dir
from tensorwasm.settings.parsing import Setting, count, flag, fraction, read, seconds, setting, settings_of, size, text


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The settings of a service."""

    tokens: str = setting(
        "TENSOR_WASM_API_TOKENS",
        text,
        "",
        "Tokens in addition to those of the database, separated by commas: TOKEN:tenant=1,2,3 or TOKEN:tenant=*.",
        secret=True,
    )
    allow_dev_mode: bool = setting(
        "TENSOR_WASM_API_ALLOW_DEV_MODE",
        flag,
        False,
        "1 serves every client as any tenant, without tokens; by default on addresses of this machine only.",
    )
    allow_plaintext_public: bool = setting(
        "TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC",
        flag,
        False,
        "1 allows a service without authentication to listen on an address that other machines can reach.",
    )
    tls_cert: str = setting(
        "TENSOR_WASM_TLS_CERT",
        text,
        "",
        "File of the server's certificate and its chain (PEM), which makes it speak TLS; read again upon SIGHUP.",
    )
    tls_key: str = setting(
        "TENSOR_WASM_TLS_KEY",
        text,
        "",
        "File of the certificate's private key (PEM, not encrypted); by default it is in the certificate's file.",
    )
    tls_client_ca: str = setting(
        "TENSOR_WASM_TLS_CLIENT_CA",
        text,
        "",
        "File of authorities (PEM) by which clients' certificates must be signed; by default clients need none.",
    )
    require_tenant: bool = setting(
        "TENSOR_WASM_API_REQUIRE_TENANT",
        flag,
        False,
        "1 makes X-TensorWasm-Tenant mandatory; by default it is the tenant of a token with one tenant, else tenant 0.",
    )
    trusted_hosts: str = setting(
        "TENSOR_WASM_API_TRUSTED_HOSTS",
        text,
        "",
        "Accepted values of the Host header, separated by commas; by default any.",
    )
    trusted_proxies: str = setting(
        "TENSOR_WASM_API_TRUSTED_XFCC_PROXIES",
        text,
        "",
        "Networks whose X-Forwarded-Client-Cert is trusted, as CIDRs separated by commas; by default none.",
    )
    cors_origins: str = setting(
        "TENSOR_WASM_API_CORS_ALLOWED_ORIGINS",
        text,
        "",
        "Origins from which browsers may call, by WebSocket too, separated by commas; by default none.",
    )
    metrics_token: str = setting(
        "TENSOR_WASM_API_METRICS_TOKEN",
        text,
        "",
        "Bearer token of /metrics; without it only clients on this machine are answered.",
        secret=True,
    )
    rate_qps: int | None = setting(
        "TENSOR_WASM_API_RATE_LIMIT_QPS",
        size,
        None,
        "Requests per second of one token, for all its tenants together; 0 or empty for no limit.",
    )
    rate_burst: int | None = setting(
        "TENSOR_WASM_API_RATE_LIMIT_BURST",
        size,
        None,
        "Requests of one token at once; by default 200 if the rate is limited.",
    )
    tenant_caps: str = setting(
        "TENSOR_WASM_API_TENANT_CAPS",
        text,
        "qps=100,burst=200,requests=256,instances=256,streams=64",
        "Caps of each tenant without caps of its own, as NAME=NUMBER separated by commas; a missing one is unlimited.",
    )
    audit_log: str = setting(
        "TENSOR_WASM_API_AUDIT_LOG",
        text,
        "",
        "Where the audit log is written: file:/path, stdout or none; by default audit.log in the data folder.",
    )
    audit_flush_s: float = setting(
        "TENSOR_WASM_API_AUDIT_FLUSH",
        seconds,
        1.0,
        "Maximum delay in seconds until a line of the audit log is on the disk.",
    )
    audit_rotate_mib: int = setting(
        "TENSOR_WASM_API_AUDIT_ROTATE",
        size,
        64,
        "Size in MiB from which the audit log continues in a new file; 0 for a single file of any size.",
    )
    audit_keep: int = setting(
        "TENSOR_WASM_API_AUDIT_KEEP",
        size,
        32,
        "Number of full audit log files that are kept; a line records each removed one. 0 keeps all.",
    )
    trace_sample: float = setting(
        "TENSOR_WASM_API_TRACE_SAMPLE",
        fraction,
        0.0,
        "Part of the requests that are timed without asking for it, from 0 to 1.",
    )
    trace_log: str = setting(
        "TENSOR_WASM_API_TRACE_LOG",
        text,
        "",
        "Where the traces of those requests are written, file:/path, until it has 64 MiB; by default nowhere.",
    )
    snapshot_hmac_key: str = setting(
        "TENSOR_WASM_API_SNAPSHOT_HMAC_KEY",
        text,
        "",
        "Key that signs the service's snapshots, 64 hex digits or a file's path; by default one in the data folder.",
        secret=True,
    )
    kernel_hmac_key: str = setting(
        "TENSOR_WASM_API_KERNEL_HMAC_KEY",
        text,
        "",
        "Key that verifies kernel manifests, 64 hex digits; empty turns the registry off.",
        secret=True,
    )
    kernel_publish_tokens: str = setting(
        "TENSOR_WASM_API_KERNEL_PUBLISH_TOKENS",
        text,
        "",
        "Tokens that may publish kernels even without the scope kernels:publish, separated by commas.",
        secret=True,
    )
    kernel_publishers: str = setting(
        "TENSOR_WASM_API_KERNEL_PUBLISHERS",
        text,
        "",
        "Publishers whose kernels are accepted, separated by commas; by default all with a valid signature.",
    )
    openai_models: str = setting(
        "TENSOR_WASM_API_OPENAI_MODEL_MAP",
        text,
        "",
        "Models as MODEL:FUNCTION_ID, separated by commas; a tenant's own functions are also models by their names.",
    )
    workers: int | None = setting(
        "TENSOR_WASM_WORKERS",
        count,
        None,
        "Processes that take requests, at most 200; by default the processors that the server may use, less one for "
        "the process that keeps its state and one for each GPU.",
    )
    database: str = setting(
        "TENSOR_WASM_DATABASE",
        text,
        "",
        "Database as an SQLAlchemy URL (sqlite:, postgresql:); by default service.db in the data folder.",
        secret=True,
    )
    data: str = setting(
        "TENSOR_WASM_DATA", text, "", "Data folder of the service; by default service in the state folder."
    )
    disk_reserve_mib: int = setting(
        "TENSOR_WASM_API_DISK_RESERVE",
        size,
        64,
        "Free space of the data folder in MiB below which /readyz reports the server as not ready; it still serves.",
    )
    max_body_mib: int = setting("TENSOR_WASM_API_MAX_BODY", count, 64, "Maximum size of a request's body in MiB.")
    request_timeout_s: float = setting(
        "TENSOR_WASM_API_REQUEST_TIMEOUT",
        seconds,
        30.0,
        "Seconds, counted from its head, within which a request's body must have arrived. The head itself has 20 s.",
    )
    max_deadline_s: float = setting(
        "TENSOR_WASM_API_MAX_DEADLINE",
        seconds,
        300.0,
        "Maximum deadline in seconds that a client may request; the default deadline is TENSOR_WASM_TIMEOUT.",
    )
    drain_s: float = setting(
        "TENSOR_WASM_API_DRAIN", seconds, 20.0, "Seconds that running requests have to end when the server is stopped."
    )
    session_idle_s: float = setting(
        "TENSOR_WASM_API_SESSION_IDLE",
        seconds,
        60.0,
        "Seconds without a call after which a session is saved and removed from memory until its next call.",
    )
    session_lease_s: float = setting(
        "TENSOR_WASM_API_SESSION_LEASE",
        seconds,
        15.0,
        "Seconds without a sign of life after which other servers of a shared database take over a server's sessions.",
    )
    server_name: str = setting(
        "TENSOR_WASM_API_SERVER_NAME",
        text,
        "",
        "Name that clients get if they ask another server for a session of this one; by default host name and port.",
    )
    job_attempts: int = setting(
        "TENSOR_WASM_API_JOB_ATTEMPTS",
        count,
        3,
        "Default number of attempts of a job, before it becomes a dead letter.",
    )
    job_keep_s: float = setting(
        "TENSOR_WASM_API_JOB_KEEP", seconds, 86_400.0, "Seconds for which an ended job is kept."
    )
    oidc_issuer: str = setting(
        "TENSOR_WASM_API_OIDC_ISSUER",
        text,
        "",
        "Issuer whose JWTs are accepted as bearer tokens, an https URL; by default none.",
    )
    oidc_audience: str = setting("TENSOR_WASM_API_OIDC_AUDIENCE", text, "", "Audience that such a token must name.")
    oidc_jwks: str = setting(
        "TENSOR_WASM_API_OIDC_JWKS",
        text,
        "",
        "Where the issuer's keys are: an https URL of the issuer's own host, or a file.",
    )
    isolation: str = setting(
        "TENSOR_WASM_API_ISOLATION",
        text,
        "",
        "What keeps kernels of different tenants apart on a GPU: guarded, process, or stream for nothing; by default "
        "guarded on CUDA, process without a ptxas, stream on the emulator.",
    )
    broker: str = setting(
        "TENSOR_WASM_BROKER",
        text,
        "",
        "Socket of a `tensor-wasm broker`, whose GPU workers are used; by default the server starts its own.",
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ServiceSettings:
        """Read the environment variables, as `tensorwasm.settings.Settings.from_environment` does."""
        return cls(**{each.field: read(each, environment) for each in SERVICE_SETTINGS})


def folder_of(where: str) -> Path:
    """Return the path of the data folder; empty takes ``service`` in the state folder."""
    return Path(where).expanduser() if where else state_dir() / "service"


SERVICE_SETTINGS: Final[tuple[Setting, ...]] = settings_of(ServiceSettings)
