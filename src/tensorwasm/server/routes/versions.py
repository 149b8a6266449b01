"""Versions and aliases of a function: their JSON and routes."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from tensorwasm.database.functions import AliasRecord, FunctionOptions, VersionRecord
from tensorwasm.errors import Conflict, InvalidName, InvalidRequest
from tensorwasm.server.http.routing import HttpRequest, QueryParam, Reply, Route
from tensorwasm.server.http.schemas import Millis
from tensorwasm.server.routes.parameters import AFTER, LIMIT, STORED, page_limit, query_number
from tensorwasm.service.functions.checks import GRANTS, MAX_WARM
from tensorwasm.values import MemoryKind

MAX_VERSION: Final = (1 << 31) - 1


class Options(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a version of a function runs.

    Attributes:
        grants: what its guests may use; `cuda` is the only grant.
        memory_mib: most linear memory in MiB; default: the operator's limit.
        timeout_s: longest invocation in seconds; default: the operator's.
        memory_kind: how kernels reach linear memory; default: the operator's choice.
        warm: sandboxes kept ready.
        model: whether clients of OpenAI's API may use it as a model.
    """

    grants: tuple[Annotated[str, Meta(extra_json_schema={"enum": sorted(GRANTS)})], ...] = ()
    memory_mib: Annotated[int, Meta(extra_json_schema={"minimum": 1})] | None = None
    timeout_s: Annotated[float, Meta(extra_json_schema={"exclusiveMinimum": 0})] | None = None
    memory_kind: MemoryKind | None = None
    warm: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_WARM})] = 0
    env: dict[str, str] = {}
    model: bool = False

    def to_options(self) -> FunctionOptions:
        """Return the service's options."""
        return FunctionOptions(
            grants=self.grants,
            memory_mib=self.memory_mib,
            timeout_s=self.timeout_s,
            memory_kind=self.memory_kind,
            warm=self.warm,
            env=tuple(self.env.items()),
            model=self.model,
        )

    @classmethod
    def of(cls, options: FunctionOptions) -> Options:
        """Return the JSON of the service's options."""
        return cls(
            grants=options.grants,
            memory_mib=options.memory_mib,
            timeout_s=options.timeout_s,
            memory_kind=options.memory_kind,
            warm=options.warm,
            env=dict(options.env),
            model=options.model,
        )


class VersionBody(msgspec.Struct):
    """A version of a function, which never changes: its number, from 1, and its hash, `blake3:` and 64 hex digits."""

    version: int
    module_hash: str
    module_bytes: int
    options: Options
    created_unix_ms: Millis

    @classmethod
    def of(cls, record: VersionRecord) -> VersionBody:
        """Return the JSON of a version."""
        return cls(
            record.number,
            f"blake3:{record.module.hex()}",
            record.module_bytes,
            Options.of(record.options),
            record.created_unix_ms,
        )


class VersionPage(msgspec.Struct):
    """Some versions of a function, oldest first. `next` is the `after` of the following page, null on the last."""

    versions: list[VersionBody]
    next: int | None


class PointAlias(msgspec.Struct, forbid_unknown_fields=True):
    """The number of the version that an alias names."""

    version: Annotated[int, Meta(ge=1, le=1_000_000_000)]


class AliasBody(msgspec.Struct):
    """A name of a version, and when it was set."""

    alias: str
    version: int
    updated_unix_ms: Millis

    @classmethod
    def of(cls, record: AliasRecord) -> AliasBody:
        """Return the JSON of an alias."""
        return cls(record.alias, record.number, record.updated_unix_ms)


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


_write = partial(Route, group="functions", scope="functions:write", kind="writes")

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET", "/functions/{id}/versions", list_versions, "List a function's versions.", "functions", "functions:read",
        response=VersionPage, errors=(InvalidRequest, *STORED), etag=True,
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
        "DELETE", "/functions/{id}/aliases/{alias}", delete_alias, "Delete an alias.", status=204, errors=STORED,
        action="delete_alias",
    ),
)  # fmt: skip
