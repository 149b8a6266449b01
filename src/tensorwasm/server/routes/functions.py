"""Functions: their JSON, and the routes that deploy, show, change and delete them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Self, cast, get_args

import msgspec
from msgspec import Meta

from tensorwasm.database.functions import FunctionRecord
from tensorwasm.errors import (
    CompileFailed,
    CompileMemory,
    CompileTimeout,
    Conflict,
    DigestMismatch,
    IdempotencyMismatch,
    InvalidArgs,
    InvalidBase64,
    InvalidImage,
    InvalidJson,
    InvalidName,
    InvalidRequest,
    InvalidWasm,
    ModuleMemoryTooLarge,
    ModuleTooLarge,
    QuotaExceeded,
    StoreUnavailable,
    UnknownImport,
)
from tensorwasm.server.http.decoding import decode_base64
from tensorwasm.server.http.routing import HttpRequest, QueryParam, Reply, Route
from tensorwasm.server.http.schemas import NAME, Bytes64, Millis, Name
from tensorwasm.server.routes.parameters import PAGING, STORED, page_limit, read_key
from tensorwasm.server.routes.versions import AliasBody, Options
from tensorwasm.service.functions.functions import IfExists
from tensorwasm.service.functions.records import Note
from tensorwasm.service.idempotency import Repeated

UPLOADS: Final = (
    "application/wasm",
    "application/octet-stream",
    "application/vnd.oci.image.layout.v1.tar",
    "application/x-tar",
)
"""Content types of a body that is the module itself, or an image layout with one; its bytes tell which."""

_COMPILED: Final = (
    InvalidName, InvalidBase64, InvalidWasm, InvalidImage, DigestMismatch, InvalidArgs, InvalidRequest, UnknownImport,
    CompileFailed, CompileMemory, CompileTimeout,
    ModuleTooLarge, ModuleMemoryTooLarge, QuotaExceeded, StoreUnavailable, Conflict, *STORED,
)  # fmt: skip


class ModuleSource(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The module of a version, as bytes or by its hash, and how the version runs."""

    wasm_b64: Bytes64 | None = None
    module_hash: Annotated[str, Meta(extra_json_schema={"pattern": "^blake3:[0-9a-fA-F]{64}$"})] | None = None
    options: Options | None = None

    async def module(self) -> bytes | str | None:
        """Return the module's bytes or hash, None without either; raise `InvalidJson` for both."""
        if self.wasm_b64 is not None and self.module_hash is not None:
            raise InvalidJson("the body has wasm_b64 or module_hash, not both")
        return self.module_hash if self.wasm_b64 is None else await decode_base64(self.wasm_b64)


class Deploy(ModuleSource, kw_only=True, forbid_unknown_fields=True):
    """A new function. It has `wasm_b64` or `module_hash`.

    Attributes:
        name: 1 to 256 bytes, not blank, without control characters.
        wasm_b64: the module, or an OCI image layout with one as a tar file.
        module_hash: `blake3:` and 64 hex digits of a module that the tenant already has.
        if_exists: if the tenant has a function of that name: create another one, give the newest of that name a new
            version, or fail with `conflict`.
    """

    name: Name
    if_exists: IfExists = "new_function"


class Update(ModuleSource, kw_only=True, forbid_unknown_fields=True):
    """A new version or name of a function, or both; the fields are as in a deploy, absent ones stay unchanged."""

    name: Name | None = None


class Promote(msgspec.Struct, forbid_unknown_fields=True):
    """The number of the version to make current."""

    current: Annotated[int, Meta(ge=1, le=1_000_000_000)]


class Deployed(msgspec.Struct):
    """The UUID of a function that was created, or given a version."""

    id: str


class FunctionBody(msgspec.Struct):
    """A function.

    Attributes:
        current: number of the version that is called by default.
        updated_unix_ms: when its current version or name was set.
    """

    id: str
    tenant_id: int
    name: str
    current: int
    created_unix_ms: Millis
    updated_unix_ms: Millis

    @classmethod
    def of(cls, record: FunctionRecord, *more: list[AliasBody]) -> Self:
        """Return the JSON of a function, with more fields of a subclass."""
        return cls(
            record.id, record.tenant, record.name, record.current, record.created_unix_ms, record.updated_unix_ms, *more
        )


class FunctionDetail(FunctionBody):
    """A function as in `FunctionBody`, with the aliases of its versions."""

    aliases: list[AliasBody]


class FunctionPage(msgspec.Struct):
    """Some functions, oldest first. `next` is the `after` of the following page, null on the last."""

    functions: list[FunctionBody]
    next: str | None


async def deploy(request: HttpRequest) -> Reply:
    """Create a function from a module in JSON, or from one that is the body; once for each idempotency key."""
    service, tenant, query = request.service, request.tenant, request.query
    made = note = None
    if "idempotency-key" in request.headers:
        more = [query["if_exists"]] if "if_exists" in query else []
        key = await read_key(request, "deploy", query.get("name", ""), *more)
        made, note = await service.idempotency.find(tenant, key), service.idempotency.note(tenant, key)
    if made is None:
        try:
            made = await _deploy(request, note)
        except Repeated as repeated:
            made = repeated.subject
    request.audit["function_id"] = made
    return Reply(Deployed(made))


async def _deploy(request: HttpRequest, note: Note | None) -> str:
    body: Deploy | None = request.body
    options: Options | None = None
    if body is None:
        source: bytes | str | None = request.raw
        name, if_exists = request.query.get("name"), request.query.get("if_exists", "new_function")
        if name is None:
            raise InvalidName("a module that is the body needs ?name=")
        if if_exists not in get_args(IfExists):
            raise InvalidRequest(f"if_exists is one of {', '.join(get_args(IfExists))}")
    else:
        source, name, options, if_exists = await body.module(), body.name, body.options, body.if_exists
    if source is None:
        raise InvalidJson("the body has neither wasm_b64 nor module_hash")
    made = await request.service.functions.deploy(
        request.tenant,
        name,
        source,
        options.to_options() if options is not None else None,
        if_exists=cast("IfExists", if_exists),
        note=note,
        gone=request.gone,
    )
    return made.id


async def update(request: HttpRequest) -> Reply:
    """Give a function a new version, another name, or both."""
    body: Update = request.body
    request.audit["function_id"] = request.params["id"]
    record = await request.service.functions.update(
        request.tenant,
        request.params["id"],
        module=await body.module(),
        options=body.options.to_options() if body.options is not None else None,
        name=body.name,
        gone=request.gone,
    )
    return Reply(FunctionBody.of(record))


async def promote(request: HttpRequest) -> Reply:
    """Make another version the current one."""
    request.audit["function_id"] = request.params["id"]
    record = await request.service.functions.promote(request.tenant, request.params["id"], request.body.current)
    return Reply(FunctionBody.of(record))


async def delete(request: HttpRequest) -> Reply:
    """Delete a function."""
    request.audit["function_id"] = request.params["id"]
    await request.service.functions.delete(request.tenant, request.params["id"])
    return Reply()


async def list_functions(request: HttpRequest) -> Reply:
    """Return some of the tenant's functions."""
    limit = page_limit(request)
    found = await request.service.functions.list(request.tenant, request.query.get("after") or None, limit)
    following = found[-1].cursor if len(found) == limit else None
    return Reply(FunctionPage([FunctionBody.of(each) for each in found], following))


async def get(request: HttpRequest) -> Reply:
    """Return a function with its aliases."""
    functions, function_id = request.service.functions, request.params["id"]
    record = await functions.get(request.tenant, function_id)
    aliases = [AliasBody.of(each) for each in await functions.aliases(request.tenant, function_id)]
    return Reply(FunctionDetail.of(record, aliases))


_read = partial(Route, group="functions", scope="functions:read", errors=STORED, etag=True)
_write = partial(Route, group="functions", scope="functions:write", kind="writes", errors=STORED)

ROUTES: Final[tuple[Route, ...]] = (
    _write(
        "POST", "/functions", deploy, "Deploy a function.", request=Deploy, uploads=UPLOADS, response=Deployed,
        errors=(*_COMPILED, IdempotencyMismatch), action="create_function",
        query={
            "name": QueryParam("The function's name, where the body is the module itself.", NAME),
            "if_exists": QueryParam(
                "As in JSON, where the body is the module itself.", {"enum": list(get_args(IfExists))}
            ),
        },
    ),
    _read(
        "GET", "/functions", list_functions, "List functions.", response=FunctionPage,
        errors=(InvalidRequest, *STORED), query=PAGING,
    ),
    _read("GET", "/functions/{id}", get, "Show a function.", response=FunctionDetail),
    _write(
        "PUT", "/functions/{id}", update, "Give a function a new version or name.", request=Update,
        response=FunctionBody, errors=_COMPILED, action="update_function",
    ),
    _write(
        "PATCH", "/functions/{id}", promote, "Make another version the current one.", request=Promote,
        response=FunctionBody, action="promote_function",
    ),
    _write("DELETE", "/functions/{id}", delete, "Delete a function.", status=204, action="delete_function"),
)  # fmt: skip
