"""`tensor-wasm serve` and `reload`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from tensorwasm.cli.local.run import ChosenDevice
from tensorwasm.cli.options import Option, without_none
from tensorwasm.errors import InvalidArgs
from tensorwasm.settings import current

MAX_WORKERS: Final = 200
"""Most processes that take requests."""

_POLICIES: Final = {None: None, "optional": "0", "required": "1"}

Address = Annotated[
    str, Option(metavar="HOST:PORT", help="Address to listen at, or unix:PATH; port 0 takes a free one.")
]
Tokens = Annotated[
    list[str] | None,
    Option(
        metavar="TOKEN[:tenant=1,2]",
        help="A token that is valid besides those of the database. Repeatable. [env: TENSOR_WASM_API_TOKENS]",
    ),
]
TenantHeaderPolicy = Annotated[
    str | None,
    Option(
        metavar="POLICY",
        help="Whether requests must name their tenant: optional or required. [env: TENSOR_WASM_API_REQUIRE_TENANT]",
    ),
]
Origins = Annotated[
    list[str] | None,
    Option(
        metavar="ORIGIN",
        help="Origin that browsers may call from. Repeatable. [env: TENSOR_WASM_API_CORS_ALLOWED_ORIGINS]",
    ),
]
MaxBody = Annotated[
    int | None,
    Option(metavar="BYTES", min=1, help="Longest body of a request. [env: TENSOR_WASM_API_MAX_BODY, in MiB]"),
]
AllowPlaintext = Annotated[
    bool,
    Option(
        help="Listen without authentication at an address of the network. [env: TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC]"
    ),
]
TlsCert = Annotated[
    Path | None,
    Option(metavar="FILE", help="Certificate and chain (PEM): speak TLS. [env: TENSOR_WASM_TLS_CERT]"),
]
TlsKey = Annotated[
    Path | None, Option(metavar="FILE", help="Private key of the certificate (PEM). [env: TENSOR_WASM_TLS_KEY]")
]
TlsClientCa = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="Authorities (PEM) by which clients' certificates must be signed. [env: TENSOR_WASM_TLS_CLIENT_CA]",
    ),
]
DataFolder = Annotated[
    Path | None,
    Option(metavar="DIR", help="Folder of all stored data, made if it does not exist. [env: TENSOR_WASM_DATA]"),
]
Workers = Annotated[
    int | None,
    Option(
        metavar="N",
        min=1,
        help="Processes that take requests, at most 200. [env: TENSOR_WASM_WORKERS; default: the processors, less one "
        "for the process that keeps the server's state and one for each GPU]",
    ),
]


def serve(
    *,
    addr: Address = "127.0.0.1:8080",
    token: Tokens = None,
    tenant_header_policy: TenantHeaderPolicy = None,
    cors_origin: Origins = None,
    max_body_bytes: MaxBody = None,
    allow_plaintext_public: AllowPlaintext = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    data: DataFolder = None,
    device: ChosenDevice = None,
    workers: Workers = None,
) -> int:
    """Serve functions over HTTP until it is stopped.

    By default it keeps its records in SQLite and its artifacts in the data folder, and shows a first token once. A
    process that dies is started again. SIGTERM and SIGINT let running calls end; a second signal does not. SIGHUP opens
    the audit log and the certificate's files again, and SIGUSR2 is `tensor-wasm reload`.
    """
    from tensorwasm.server.process.address import parse_address  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.server.process.supervisor import Supervisor  # noqa: PLC0415 - the same
    from tensorwasm.settings.service import ServiceSettings, folder_of  # noqa: PLC0415 - the same

    if tenant_header_policy not in _POLICIES:
        raise InvalidArgs(f"the policy is optional or required, not {tenant_header_policy!r}")
    chosen = without_none(
        TENSOR_WASM_API_TOKENS=",".join(token) if token else None,
        TENSOR_WASM_API_REQUIRE_TENANT=_POLICIES[tenant_header_policy],
        TENSOR_WASM_API_CORS_ALLOWED_ORIGINS=",".join(cors_origin) if cors_origin else None,
        TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC="1" if allow_plaintext_public else None,
        TENSOR_WASM_TLS_CERT=_absolute(tls_cert),
        TENSOR_WASM_TLS_KEY=_absolute(tls_key),
        TENSOR_WASM_TLS_CLIENT_CA=_absolute(tls_client_ca),
        TENSOR_WASM_DATA=_absolute(data),
        TENSOR_WASM_DEVICE=device,
    )
    environment = dict(os.environ) | chosen
    settings = ServiceSettings.from_environment(environment)
    return Supervisor(
        parse_address(addr),
        environment,
        max_body_bytes,
        workers=_checked_workers(workers or settings.workers or default_workers(device or current().device)),
        drain_s=settings.drain_s,
        folder=folder_of(settings.data),
    ).run()


def _checked_workers(number: int) -> int:
    if number > 1 and sys.platform != "linux":
        raise InvalidArgs("several workers need Linux: leave --workers out")
    if number > MAX_WORKERS:
        raise InvalidArgs(f"there are at most {MAX_WORKERS} workers, not {number}")
    return number


def default_workers(device: str) -> int:
    """Return how many processes take requests, unless it is said: one for each processor that has nothing else to do.

    The process that keeps the server's state takes one, and driving each GPU another.
    """
    if sys.platform != "linux":
        return 1
    usable = len(os.sched_getaffinity(0))
    found = len(list(Path("/dev").glob("nvidia[0-9]*")))
    gpus = {"emulator": 0, "auto": found, "cuda": found}.get(device, 1)
    return min(max(usable - 1 - gpus, 1), MAX_WORKERS)


def reload(*, data: DataFolder = None) -> None:
    """Replace all processes of a running server of this machine, and wait until that is done.

    The new processes are of the release that is installed now. No request is lost: each process ends when it has
    answered what it has, and its successor is ready by then. The exit code is 1 if it was given up.
    """
    from tensorwasm.server.process.record import request_reload  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.settings.service import ServiceSettings, folder_of  # noqa: PLC0415 - the same

    settings = ServiceSettings.from_environment(os.environ)
    request_reload(folder_of(settings.data if data is None else str(data)), partial(print, flush=True))


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
