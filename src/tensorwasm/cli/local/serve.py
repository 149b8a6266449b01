"""`tensor-wasm serve`: the service, over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from tensorwasm.cli.options import without_none
from tensorwasm.errors import InvalidArgs

_POLICIES: Final = {None: None, "optional": "0", "required": "1"}

Address = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address to listen at, or unix:PATH; port 0 takes a free one.")
]
Tokens = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOKEN[:tenant=1,2]",
        help="A token that is valid besides those of the database. Repeatable. [env: TENSOR_WASM_API_TOKENS]",
    ),
]
TenantHeaderPolicy = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        help="Whether requests must name their tenant: optional or required. [env: TENSOR_WASM_API_REQUIRE_TENANT]",
    ),
]
Origins = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="Origin that browsers may call from. Repeatable. [env: TENSOR_WASM_API_CORS_ALLOWED_ORIGINS]",
    ),
]
MaxBody = Annotated[
    int | None,
    typer.Option(metavar="BYTES", min=1, help="Longest body of a request. [env: TENSOR_WASM_API_MAX_BODY, in MiB]"),
]
AllowPlaintext = Annotated[
    bool,
    typer.Option(
        help="Listen without authentication at an address of the network. [env: TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC]"
    ),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of all stored data, made if it does not exist. [env: TENSOR_WASM_DATA]"),
]
ChosenDevice = Annotated[
    str | None, typer.Option(help="auto, emulator, cuda or cuda:N. [env: TENSOR_WASM_DEVICE; default: auto]")
]


def serve(
    *,
    addr: Address = "127.0.0.1:8080",
    token: Tokens = None,
    tenant_header_policy: TenantHeaderPolicy = None,
    cors_origin: Origins = None,
    max_body_bytes: MaxBody = None,
    allow_plaintext_public: AllowPlaintext = False,
    data: DataFolder = None,
    device: ChosenDevice = None,
) -> int:
    """Serve functions over HTTP until it is stopped.

    By default it keeps its records in SQLite and its artifacts in the data folder, and shows a first token once. A
    server that dies is started again. SIGTERM and SIGINT let running calls end; a second signal does not.
    """
    from tensorwasm.server.process.address import parse_address  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.server.process.supervisor import ServeOptions, Supervisor  # noqa: PLC0415 - the same

    if tenant_header_policy not in _POLICIES:
        raise InvalidArgs(f"the policy is optional or required, not {tenant_header_policy!r}")
    chosen = without_none(
        TENSOR_WASM_API_TOKENS=",".join(token) if token else None,
        TENSOR_WASM_API_REQUIRE_TENANT=_POLICIES[tenant_header_policy],
        TENSOR_WASM_API_CORS_ALLOWED_ORIGINS=",".join(cors_origin) if cors_origin else None,
        TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC="1" if allow_plaintext_public else None,
        TENSOR_WASM_DATA=str(data.absolute()) if data is not None else None,
        TENSOR_WASM_DEVICE=device,
    )
    return Supervisor(ServeOptions(parse_address(addr), max_body_bytes), dict(os.environ) | chosen).run()
