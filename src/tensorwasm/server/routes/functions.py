"""Functions: deployed, seen, changed, called and taken away."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Final, cast, get_args

import msgspec

from tensorwasm.errors import (
    CapacityExhausted,
    CompileFailed,
    CompileMemory,
    CompileTimeout,
    Conflict,
    DatabaseUnavailable,
    DeviceFault,
    DeviceUnavailable,
    DigestMismatch,
    GuestExit,
    GuestTrap,
    IdempotencyMismatch,
    InvalidArgs,
    InvalidBase64,
    InvalidImage,
    InvalidJson,
    InvalidName,
    InvalidRequest,
    InvalidWasm,
    InvokeTimeout,
    KernelFault,
    MissingExport,
    ModuleMemoryTooLarge,
    ModuleTooLarge,
    NotFound,
    QuotaExceeded,
    StdinTooLarge,
    StoreUnavailable,
    TooManyArgs,
    UnknownImport,
)
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.server.bodies import decode_base64
from tensorwasm.server.idempotency import read_key
from tensorwasm.server.outcomes import answer, answer_at_once
from tensorwasm.server.routing import Call, Param, Reply, Route, Streamed
from tensorwasm.server.wire import functions as wire
from tensorwasm.service.functions.functions import IfExists, Note
from tensorwasm.service.idempotency import Repeated
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.pages import CURSOR
from tensorwasm.values import Deadline

UPLOADS: Final = (
    "application/wasm",
    "application/octet-stream",
    "application/vnd.oci.image.layout.v1.tar",
    "application/x-tar",
)
"""Content types of a body that is the module itself, or an image layout with one; what it is, its bytes say."""

PAGE: Final = 100
MAX_PAGE: Final = 1000
MAX_VERSION: Final = (1 << 31) - 1

LIMIT: Final = Param(
    f"Most that are returned, 1 to {MAX_PAGE}; {PAGE} unless said otherwise.",
    {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
)
PAGING: Final[Mapping[str, Param]] = {
    "after": Param("`next` of the page before.", {"type": "string", "pattern": CURSOR}),
    "limit": LIMIT,
}

_SCALARS: Final = frozenset({int, float, str})

_STORED: Final = (NotFound, DatabaseUnavailable, CapacityExhausted)
_COMPILED: Final = (
    InvalidName, InvalidBase64, InvalidWasm, InvalidImage, DigestMismatch, InvalidArgs, InvalidRequest, UnknownImport,
    CompileFailed, CompileMemory, CompileTimeout,
    ModuleTooLarge, ModuleMemoryTooLarge, QuotaExceeded, StoreUnavailable, Conflict, *_STORED,
)  # fmt: skip
CALLED: Final = (
    MissingExport, InvalidArgs, TooManyArgs, InvalidBase64, InvalidRequest, GuestTrap, GuestExit, KernelFault,
    InvokeTimeout, QuotaExceeded, CapacityExhausted, DeviceUnavailable, DeviceFault, StoreUnavailable, StdinTooLarge,
    *_STORED,
)  # fmt: skip
"""What a call can raise."""


# ---------------------------------------------------------------- deploying


async def deploy(call: Call) -> Reply:
    """Make a function of a module in JSON, or of one that is the body itself; once for each idempotency key."""
    service, tenant = call.service, call.tenant
    said = [call.query[name] for name in ("if_exists",) if name in call.query]
    key = await read_key(call, "deploy", call.query.get("name", ""), *said)
    made = await service.idempotency.find(tenant, key)
    if made is None:
        try:
            made = await _deploy(call, service.idempotency.note(tenant, key))
        except Repeated as repeated:
            made = repeated.subject
    call.audit["function_id"] = made
    return Reply(wire.Deployed(made))


async def _deploy(call: Call, note: Note | None) -> str:
    body: wire.Deploy | None = call.body
    source: bytes | str | None = call.raw
    if body is not None:
        source = await _source(body.wasm_b64, body.module_hash)
    if source is None:
        raise InvalidJson("the body has neither wasm_b64 nor module_hash")
    name = body.name if body is not None else _required(call, "name")
    chosen = body.options.to_options() if body is not None and body.options is not None else None
    if_exists = body.if_exists if body is not None else _if_exists(call)
    made = await call.service.functions.deploy(
        call.tenant, name, source, chosen, if_exists=if_exists, note=note, gone=call.gone
    )
    return made.id


async def update(call: Call) -> Reply:
    """Give a function a new version, another name, or both."""
    body: wire.Update = call.body
    call.audit["function_id"] = call.params["id"]
    source = await _source(body.wasm_b64, body.module_hash)
    options = body.options.to_options() if body.options is not None else None
    record = await call.service.functions.update(
        call.tenant, call.params["id"], module=source, options=options, name=body.name, gone=call.gone
    )
    return Reply(wire.FunctionBody.of(record))


async def promote(call: Call) -> Reply:
    """Make another version the current one."""
    call.audit["function_id"] = call.params["id"]
    record = await call.service.functions.promote(call.tenant, call.params["id"], call.body.current)
    return Reply(wire.FunctionBody.of(record))


async def delete(call: Call) -> Reply:
    """Take a function away."""
    call.audit["function_id"] = call.params["id"]
    await call.service.functions.delete(call.tenant, call.params["id"])
    return Reply()


async def _source(wasm_b64: str | None, module_hash: str | None) -> bytes | str | None:
    if wasm_b64 is not None and module_hash is not None:
        raise InvalidJson("the body has wasm_b64 or module_hash, not both")
    return module_hash if wasm_b64 is None else await decode_base64(wasm_b64)


# ---------------------------------------------------------------- seeing


async def list_functions(call: Call) -> Reply:
    """Return some of the tenant's functions."""
    limit = page_limit(call)
    found = await call.service.functions.list(call.tenant, call.query.get("after") or None, limit)
    following = found[-1].cursor if len(found) == limit else None
    return Reply(wire.FunctionPage([wire.FunctionBody.of(each) for each in found], following))


async def get(call: Call) -> Reply:
    """Return a function with its aliases."""
    functions, function_id = call.service.functions, call.params["id"]
    record = await functions.get(call.tenant, function_id)
    aliases = [wire.AliasBody.of(each) for each in await functions.aliases(call.tenant, function_id)]
    shown = msgspec.structs.asdict(wire.FunctionBody.of(record))
    return Reply(wire.FunctionDetail(**shown, aliases=aliases))


async def list_versions(call: Call) -> Reply:
    """Return some of a function's versions."""
    limit, after = page_limit(call), _number(call, "after", 0, MAX_VERSION)
    found = await call.service.functions.versions(call.tenant, call.params["id"], after, limit)
    following = found[-1].number if len(found) == limit else None
    return Reply(wire.VersionPage([wire.VersionBody.of(each) for each in found], following))


async def set_alias(call: Call) -> Reply:
    """Let an alias lead to a version."""
    call.audit |= {"function_id": call.params["id"], "alias": call.params["alias"]}
    record = await call.service.functions.set_alias(
        call.tenant, call.params["id"], call.params["alias"], call.body.version
    )
    return Reply(wire.AliasBody.of(record))


async def delete_alias(call: Call) -> Reply:
    """Take an alias away."""
    call.audit |= {"function_id": call.params["id"], "alias": call.params["alias"]}
    await call.service.functions.delete_alias(call.tenant, call.params["id"], call.params["alias"])
    return Reply()


# ---------------------------------------------------------------- calling


def invoke(call: Call) -> Reply | Coroutine[Any, Any, Reply | Streamed]:
    """Call a function; at once where it is loaded and ends at once."""
    reference = call.params["id"]
    call.audit["function_id"] = reference
    service, tenant = call.service, call.tenant
    body: wire.Invoke = call.body
    resolved = service.functions.find(tenant, reference)
    if resolved is None or body.input_b64 is not None or body.stdin_b64 is not None:
        return _invoke_slowly(call, reference)
    outcome = service.invocations.begin(call.admitted, resolved, _ask(call, b"", b""))
    if isinstance(outcome, Invocation):
        return answer_at_once(_called(resolved.record.id), outcome)
    return _finish(resolved.record.id, outcome)


async def _invoke_slowly(call: Call, reference: str) -> Reply | Streamed:
    body: wire.Invoke = call.body
    given = [await _bytes(each) for each in (body.input_b64, body.stdin_b64)]
    resolved = await call.service.invocations.resolve(call.admitted, reference, call.deadline)
    outcome = call.service.invocations.begin(call.admitted, resolved, _ask(call, *given))
    if isinstance(outcome, Invocation):
        return answer_at_once(_called(resolved.record.id), outcome)
    return await _finish(resolved.record.id, outcome)


async def _finish(function_id: str, running: Coroutine[Any, Any, Invocation]) -> Reply | Streamed:
    return await answer(_called(function_id), await running)


async def _bytes(text: str | None) -> bytes:
    return b"" if text is None else await decode_base64(text)


def ask_of(body: wire.Invoke, deadline: Deadline, given: bytes, stdin: bytes) -> InvocationRequest:
    """Return what a body asks for.

    Args:
        body: it.
        deadline: of the call.
        given: `input_b64`, decoded.
        stdin: `stdin_b64`, decoded.

    Raises:
        InvalidArgs: an argument is no number and no text.
        InvalidRequest: input or standard input is there twice.
    """
    for index, value in enumerate(body.args):
        if type(value) not in _SCALARS:
            raise InvalidArgs(f"argument {index} is neither a number nor a text")
    if body.input is None and body.stdin is None and body.env is None and body.argv is None and not given and not stdin:
        return InvocationRequest(body.export, body.args, deadline=deadline)
    if (body.input is not None and given) or (body.stdin is not None and stdin):
        raise InvalidRequest("input and stdin are texts or base64, not both")
    return InvocationRequest(
        body.export,
        body.args,
        input=body.input.encode() if body.input is not None else given,
        stdin=body.stdin.encode() if body.stdin is not None else stdin,
        env=tuple((body.env or {}).items()),
        argv=body.argv,
        deadline=deadline,
    )


def _ask(call: Call, given: bytes, stdin: bytes) -> InvocationRequest:
    return ask_of(call.body, call.deadline, given, stdin)


def _called(function_id: str) -> bytes:
    return b'"function_id":"%b"' % function_id.encode()


# ---------------------------------------------------------------- queries


def page_limit(call: Call) -> int:
    """Return how many records a page may have.

    Raises:
        InvalidRequest: the query says no number from 1 to 1000.
    """
    return _number(call, "limit", PAGE, MAX_PAGE, least=1)


def _number(call: Call, name: str, usual: int, most: int, least: int = 0) -> int:
    text = call.query.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or not least <= int(text) <= most:
        raise InvalidRequest(f"{name} is a number from {least} to {most}")
    return int(text)


def _if_exists(call: Call) -> IfExists:
    text = call.query.get("if_exists", "new_function")
    if text not in get_args(IfExists):
        raise InvalidRequest(f"if_exists is one of {', '.join(get_args(IfExists))}")
    return cast("IfExists", text)


def _required(call: Call, name: str) -> str:
    text = call.query.get(name)
    if text is None:
        raise InvalidName(f"a module that is the body needs ?{name}=")
    return text


def _route(
    method: str, path: str, handle: Any, summary: str, scope: str, *, writes: bool = False, **more: Any
) -> Route:
    kind = more.pop("kind", "writes" if writes else "reads")
    errors = more.pop("errors", _STORED)
    return Route(
        method, path, handle, summary, "functions", scope, kind=kind, errors=errors, etag=method == "GET", **more
    )


ROUTES: Final[tuple[Route, ...]] = (
    _route(
        "POST", "/functions", deploy, "Deploy a function.", "functions:write", writes=True,
        request=wire.Deploy, uploads=UPLOADS, response=wire.Deployed, errors=(*_COMPILED, IdempotencyMismatch),
        action="create_function",
        query={
            "name": Param("Its name, where the body is the module itself.", wire.NAME),
            "if_exists": Param("As in JSON, where the body is the module itself.", {"enum": list(get_args(IfExists))}),
        },
    ),
    _route(
        "GET", "/functions", list_functions, "List functions.", "functions:read", response=wire.FunctionPage,
        errors=(InvalidRequest, *_STORED), query=PAGING,
    ),
    _route("GET", "/functions/{id}", get, "See a function.", "functions:read", response=wire.FunctionDetail),
    _route(
        "PUT", "/functions/{id}", update, "Give a function a new version or name.", "functions:write", writes=True,
        request=wire.Update, response=wire.FunctionBody, errors=_COMPILED, action="update_function",
    ),
    _route(
        "PATCH", "/functions/{id}", promote, "Make another version the current one.", "functions:write", writes=True,
        request=wire.Promote, response=wire.FunctionBody, action="promote_function",
    ),
    _route(
        "DELETE", "/functions/{id}", delete, "Delete a function.", "functions:write", writes=True, status=204,
        action="delete_function",
    ),
    _route(
        "GET", "/functions/{id}/versions", list_versions, "List a function's versions.", "functions:read",
        response=wire.VersionPage, errors=(InvalidRequest, *_STORED),
        query={
            "after": Param("`next` of the page before.", {"type": "integer", "minimum": 0, "maximum": MAX_VERSION}),
            "limit": LIMIT,
        },
    ),
    _route(
        "PUT", "/functions/{id}/aliases/{alias}", set_alias, "Let an alias lead to a version.", "functions:write",
        writes=True, request=wire.PointAlias, response=wire.AliasBody, errors=(InvalidName, Conflict, *_STORED),
        action="set_alias",
    ),
    _route(
        "DELETE", "/functions/{id}/aliases/{alias}", delete_alias, "Delete an alias.", "functions:write", writes=True,
        status=204, action="delete_alias",
    ),
    _route(
        "POST", "/functions/{id}/invoke", invoke, "Call a function.", "invoke", kind="invoke", guest=True,
        request=wire.Invoke, optional_body=True, response=wire.Invoked, errors=CALLED, action="invoke_function",
    ),
)  # fmt: skip
