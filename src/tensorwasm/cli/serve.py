"""`tensor-wasm serve`: the service, over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tensorwasm.errors import InvalidArgs


def serve(
    *,
    addr: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen, or unix:PATH; port 0 takes a free one.")
    ] = "127.0.0.1:8080",
    token: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOKEN[:tenant=1,2]",
            help="A token that is taken besides those of the database. Repeatable. [env: TENSOR_WASM_API_TOKENS]",
        ),
    ] = None,
    tenant_header_policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Whether requests must name their tenant: optional or required. [env: TENSOR_WASM_API_REQUIRE_TENANT]",
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Origin that browsers may call from. Repeatable. [env: TENSOR_WASM_API_CORS_ALLOWED_ORIGINS]",
        ),
    ] = None,
    max_body_bytes: Annotated[
        int | None,
        typer.Option(metavar="BYTES", min=1, help="Longest body of a request. [env: TENSOR_WASM_API_MAX_BODY, in MiB]"),
    ] = None,
    allow_plaintext_public: Annotated[
        bool,
        typer.Option(
            help="Without authentication, listen where others reach it too. [env: TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC]"
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of all that is kept, made if it is not there. [env: TENSOR_WASM_DATA]"
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto, emulator, cuda or cuda:N. [env: TENSOR_WASM_DEVICE; default: auto]"),
    ] = None,
) -> int:
    """Serve functions over HTTP until it is told to stop.

    Without anything else it keeps its records in SQLite and its artifacts in the data folder, and shows a first token
    once. A server that dies is started again. SIGTERM and SIGINT let what runs end; a second one does not.
    """
    from tensorwasm.server.address import parse_address  # noqa: PLC0415 - keeps --help quick
    from tensorwasm.server.supervisor import Order, Supervisor  # noqa: PLC0415 - the same

    chosen = {
        "TENSOR_WASM_API_TOKENS": ",".join(token) if token else None,
        "TENSOR_WASM_API_REQUIRE_TENANT": _required(tenant_header_policy),
        "TENSOR_WASM_API_CORS_ALLOWED_ORIGINS": ",".join(cors_origin) if cors_origin else None,
        "TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC": "1" if allow_plaintext_public else None,
        "TENSOR_WASM_DATA": str(data.absolute()) if data is not None else None,
        "TENSOR_WASM_DEVICE": device,
    }
    environment = dict(os.environ) | {name: value for name, value in chosen.items() if value is not None}
    return Supervisor(Order(parse_address(addr), max_body_bytes), environment).run()


def _required(policy: str | None) -> str | None:
    """Return the setting that a policy stands for.

    Raises:
        InvalidArgs: there is no such policy.
    """
    known = {None: None, "optional": "0", "required": "1"}
    if policy not in known:
        raise InvalidArgs(f"the policy is optional or required, not {policy!r}")
    return known[policy]
