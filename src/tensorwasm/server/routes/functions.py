"""Functions, their versions and aliases: their JSON, and the routes that deploy, show, change and delete them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Self, cast, get_args

import msgspec
from msgspec import Meta

from tensorwasm.database.functions import AliasRecord, FunctionOptions, FunctionRecord, VersionRecord
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
from tensorwasm.server.http.decoding import (
    AFTER,
    LIMIT,
    PAGING,
    STORED,
    decode_base64,
    page_limit,
    query_number,
    read_key,
)
from tensorwasm.server.http.routing import HttpRequest, QueryParam, Reply, Route
from tensorwasm.server.http.schemas import NAME, Bytes64, Millis, Name, RecordBody
from tensorwasm.service.functions.checks import GRANTS, MAX_WARM
from tensorwasm.service.functions.functions import IfExists
from tensorwasm.service.functions.records import Note
from tensorwasm.service.idempotency import Repeated
from tensorwasm.values import MemoryKind, OffloadMath, OffloadMode

MAX_VERSION: Final = (1 << 31) - 1


class Options(RecordBody, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a version of a function runs.

    Attributes:
        grants: what its guests may use; `cuda` is the only grant.
        memory_mib: most linear memory in MiB; default: the operator's limit.
        timeout_s: longest invocation in seconds; default: the operator's.
        memory_kind: how kernels reach linear memory; default: the operator's choice.
        warm: sandboxes kept ready.
        model: whether clients of OpenAI's API may use it as a model.
        offload: where its loops run that can run in parallel: on a GPU, on all cores, or in the guest.
        offload_math: whether these loops add up and multiply floats in WebAssembly's order, or in another one.
    """

    grants: tuple[Annotated[str, Meta(extra_json_schema={"enum": sorted(GRANTS)})], ...] = ()
    memory_mib: Annotated[int, Meta(extra_json_schema={"minimum": 1})] | None = None
    timeout_s: Annotated[float, Meta(extra_json_schema={"exclusiveMinimum": 0})] | None = None
    memory_kind: MemoryKind | None = None
    warm: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_WARM})] = 0
    env: dict[str, str] = msgspec.field(default_factory=dict)
    model: bool = False
    offload: OffloadMode = "off"
    offload_math: OffloadMath = "exact"

    def to_options(self) -> FunctionOptions:
        """Return the service's options."""
        return FunctionOptions(**(msgspec.structs.asdict(self) | {"env": tuple(self.env.items())}))

    @classmethod
    def of(cls, options: FunctionOptions) -> Options:
        """Return the JSON of the service's options."""
        return cls.copy(options, env=dict(options.env))


class VersionBody(RecordBody):
    """A version of a function, which never changes: its number, from 1, and its hash, `blake3:` and 64 hex digits."""

    version: int
    module_hash: str
    module_bytes: int
    options: Options
    created_unix_ms: Millis

    @classmethod
    def of(cls, record: VersionRecord) -> VersionBody:
        """Return the JSON of a version."""
        module_hash, options = f"blake3:{record.module.hex()}", Options.of(record.options)
        return cls.copy(record, version=record.number, module_hash=module_hash, options=options)


class VersionPage(msgspec.Struct):
    """Some versions of a function, oldest first. `next` is the `after` of the following page, null on the last."""

    versions: list[VersionBody]
    next: int | None


class PointAlias(msgspec.Struct, forbid_unknown_fields=True):
    """The number of the version that an alias names."""

    version: Annotated[int, Meta(ge=1, le=1_000_000_000)]


class AliasBody(RecordBody):
    """A name of a version, and when it was set."""

    alias: str
    version: int
    updated_unix_ms: Millis

    @classmethod
    def of(cls, record: AliasRecord) -> AliasBody:
        """Return the JSON of an alias."""
        return cls.copy(record, version=record.number)


async def list_versions(request: HttpRequest) -> Reply:
    """Return some of a function's versions."""
    limit, after = page_limit(request), query_number(request, "after", 0, MAX_VERSION)
    found = await request.service.functions.versions(request.tenant, request.params["id"], after, limit)
    following = found[-1].number if len(found) == limit else None
    return Reply(VersionPage([VersionBody.of(each) for each in found], following))


async def set_alias(request: HttpRequest) -> Reply:
    """Point an alias to a version."""
    function_id, alias = _audit_alias(request)
    record = await request.service.functions.set_alias(request.tenant, function_id, alias, request.body.version)
    return Reply(AliasBody.of(record))


async def delete_alias(request: HttpRequest) -> Reply:
    """Delete an alias."""
    await request.service.functions.delete_alias(request.tenant, *_audit_alias(request))
    return Reply()


def _audit_alias(request: HttpRequest) -> tuple[str, str]:
    function_id, alias = request.params["id"], request.params["alias"]
    request.audit |= {"function_id": function_id, "alias": alias}
    return function_id, alias


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


class FunctionBody(RecordBody):
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
    def of(cls, record: FunctionRecord, **more: list[AliasBody]) -> Self:
        """Return the JSON of a function, with more fields of a subclass."""
        return cls.copy(record, tenant_id=record.tenant, **more)


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
    return Reply(FunctionDetail.of(record, aliases=aliases))


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
    _read(
        "GET", "/functions/{id}/versions", list_versions, "List a function's versions.", response=VersionPage,
        errors=(InvalidRequest, *STORED),
        query={
            "after": QueryParam(AFTER, {"type": "integer", "minimum": 0, "maximum": MAX_VERSION}),
            "limit": LIMIT,
        },
    ),
    _write(
        "PUT", "/functions/{id}/aliases/{alias}", set_alias, "Point an alias to a version.",
        request=PointAlias, response=AliasBody, errors=(InvalidName, Conflict, *STORED), action="set_alias",
    ),
    _write(
        "DELETE", "/functions/{id}/aliases/{alias}", delete_alias, "Delete an alias.", status=204,
        action="delete_alias",
    ),
)  # fmt: skip
