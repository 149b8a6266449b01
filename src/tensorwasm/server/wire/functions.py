"""Functions, versions, aliases and invocations in JSON."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tensorwasm.database.functions import AliasRecord, FunctionOptions, FunctionRecord, VersionRecord
from tensorwasm.server.wire.output import Bytes64, Output
from tensorwasm.service.functions.functions import IfExists
from tensorwasm.service.functions.options import GRANTS, MAX_WARM
from tensorwasm.service.invocations.request import MAX_ARGS
from tensorwasm.values import NEVER, Deadline, MemoryKind

Millis = Annotated[int, Meta(ge=0, description="Milliseconds since 1970.")]


NAME: Final = {"type": "string", "pattern": r"^[^\x00-\x1f\x7f-\x9f]{1,256}$"}
"""What a name is, but that it has 256 bytes at most and is not blank: handlers say so under a kind of its own."""

Name = Annotated[str, Meta(extra_json_schema=NAME)]
ModuleHash = Annotated[str, Meta(extra_json_schema={"pattern": "^blake3:[0-9a-fA-F]{64}$"})]
Arguments = Annotated[
    tuple[Any, ...], Meta(extra_json_schema={"items": {"type": ["number", "string"]}, "maxItems": MAX_ARGS})
]


class Options(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a version of a function is run.

    Attributes:
        grants: what its guests may use; `cuda` is all there is.
        memory_mib: most linear memory in MiB; without, as much as the operator allows.
        timeout_s: longest that an invocation may take; without, the operator's usual time.
        memory_kind: how kernels reach linear memory; without, the operator's choice.
        warm: sandboxes kept ready.
        env: environment that its guests find.
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
        """Return them as the service takes them."""
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
        """Return the service's."""
        return cls(
            grants=options.grants,
            memory_mib=options.memory_mib,
            timeout_s=options.timeout_s,
            memory_kind=options.memory_kind,
            warm=options.warm,
            env=dict(options.env),
            model=options.model,
        )


class Deploy(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function to be made. It has `wasm_b64` or `module_hash`.

    Attributes:
        name: 1 to 256 bytes, not blank, without control characters.
        wasm_b64: the module, or an OCI image layout with one as a tar file.
        module_hash: `blake3:` and 64 hex digits, of a module that the tenant has already.
        options: how it is run.
        if_exists: what is done where the tenant has a function of that name: make one more, give the newest of that
            name a new version, or refuse with `conflict`.
    """

    name: Name
    wasm_b64: Bytes64 | None = None
    module_hash: ModuleHash | None = None
    options: Options | None = None
    if_exists: IfExists = "new_function"


class Update(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A new version of a function, or another name, or both; what is left out stays.

    Attributes:
        name: as in a deploy.
        wasm_b64: likewise.
        module_hash: likewise.
        options: likewise.
    """

    name: Name | None = None
    wasm_b64: Bytes64 | None = None
    module_hash: ModuleHash | None = None
    options: Options | None = None


class Promote(msgspec.Struct, forbid_unknown_fields=True):
    """Which version is to be the current one.

    Attributes:
        current: its number.
    """

    current: Annotated[int, Meta(ge=1, le=1_000_000_000)]


class PointAlias(msgspec.Struct, forbid_unknown_fields=True):
    """Where an alias is to lead.

    Attributes:
        version: number of a version.
    """

    version: Annotated[int, Meta(ge=1, le=1_000_000_000)]


class Deployed(msgspec.Struct):
    """A function that was made, or was given a version.

    Attributes:
        id: UUID of the function.
    """

    id: str


class FunctionBody(msgspec.Struct):
    """A function.

    Attributes:
        id: UUID.
        tenant_id: whose it is.
        name: for people, and to be called by.
        current: number of the version that is called unless another is named.
        created_unix_ms: when it was deployed.
        updated_unix_ms: when it got its current version or name.
    """

    id: str
    tenant_id: int
    name: str
    current: int
    created_unix_ms: Millis
    updated_unix_ms: Millis

    @classmethod
    def of(cls, record: FunctionRecord) -> FunctionBody:
        """Return the service's."""
        return cls(
            record.id, record.tenant, record.name, record.current, record.created_unix_ms, record.updated_unix_ms
        )


class VersionBody(msgspec.Struct):
    """A version of a function; it never changes.

    Attributes:
        version: its number, from 1 on.
        module_hash: `blake3:` and 64 hex digits.
        module_bytes: length of the module.
        options: how it is run.
        created_unix_ms: when it was made.
    """

    version: int
    module_hash: str
    module_bytes: int
    options: Options
    created_unix_ms: Millis

    @classmethod
    def of(cls, record: VersionRecord) -> VersionBody:
        """Return the service's."""
        return cls(
            record.number,
            f"blake3:{record.module.hex()}",
            record.module_bytes,
            Options.of(record.options),
            record.created_unix_ms,
        )


class AliasBody(msgspec.Struct):
    """A name that leads to a version.

    Attributes:
        alias: the name.
        version: the version's number.
        updated_unix_ms: since when.
    """

    alias: str
    version: int
    updated_unix_ms: Millis

    @classmethod
    def of(cls, record: AliasRecord) -> AliasBody:
        """Return the service's."""
        return cls(record.alias, record.number, record.updated_unix_ms)


class FunctionDetail(msgspec.Struct):
    """A function, with what leads to its versions.

    Attributes:
        id: UUID.
        tenant_id: whose it is.
        name: for people, and to be called by.
        current: number of the version that is called unless another is named.
        created_unix_ms: when it was deployed.
        updated_unix_ms: when it got its current version or name.
        aliases: names that lead to versions.
    """

    id: str
    tenant_id: int
    name: str
    current: int
    created_unix_ms: Millis
    updated_unix_ms: Millis
    aliases: list[AliasBody]


class FunctionPage(msgspec.Struct):
    """Some functions, oldest first.

    Attributes:
        functions: them.
        next: what `after` is to be for those that follow; null if there are none.
    """

    functions: list[FunctionBody]
    next: str | None


class VersionPage(msgspec.Struct):
    """Some versions of a function, oldest first.

    Attributes:
        versions: them.
        next: what `after` is to be for those that follow; null if there are none.
    """

    versions: list[VersionBody]
    next: int | None


class Timed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What must have ended some time after it is asked for.

    Attributes:
        deadline_ms: milliseconds from when the request was read in which it must have ended, waiting included; no more
            than the operator allows.
    """

    from_arrival: ClassVar[bool] = True
    """Whether that time begins when it is asked for."""

    deadline_ms: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None

    def deadline(self, most_s: float) -> Deadline:
        """Return when it must have ended if it begins now.

        Args:
            most_s: longest that the operator allows.
        """
        return NEVER if self.deadline_ms is None else Deadline.after(min(self.deadline_ms / 1000, most_s))


class Invoke(Timed, kw_only=True, forbid_unknown_fields=True):
    """A call of an export.

    Attributes:
        export: without, `_start`, and where there is none, `main`.
        args: numbers, or their texts, as the export's signature says: at most 256. A text may be `NaN` or `Infinity`.
        input: what the guest reads with `read-input`, as text.
        input_b64: likewise, as base64.
        stdin: all of standard input, as text.
        stdin_b64: likewise, as base64.
        argv: arguments of WASI, the program's name first.
        env: environment besides the function's.
        deadline_ms: milliseconds from when the request was read in which it must have ended, waiting included; no more
            than the operator allows.
    """

    export: str | None = None
    args: Arguments = ()
    input: str | None = None
    input_b64: Bytes64 | None = None
    stdin: str | None = None
    stdin_b64: Bytes64 | None = None
    argv: tuple[str, ...] | None = None
    env: dict[str, str] | None = None


class Invoked(msgspec.Struct):
    """What came of a call.

    Attributes:
        function_id: UUID of the function.
        result: `ok` from an export without results, else all of them; numbers that JSON lacks are texts.
        stdout: what the guest wrote to standard output, if anything.
        stderr: likewise.
        output: what it sent with `emit-chunk`, if anything.
        stdout_truncated: true if it wrote more than the operator allows (TENSOR_WASM_OUTPUT); else left out.
        stderr_truncated: likewise.
    """

    function_id: str
    result: Annotated[list[int | float | str], Meta(description="All results.")] | str
    stdout: Output | UnsetType = UNSET
    stderr: Output | UnsetType = UNSET
    output: Output | UnsetType = UNSET
    stdout_truncated: bool | UnsetType = UNSET
    stderr_truncated: bool | UnsetType = UNSET
