"""Every error this package raises, in one tree.

::

    TensorWasmError
    ├── CallerError              the caller's mistake: retrying unchanged cannot help
    │   ├── InvalidWasm          not a valid module under the enabled proposals
    │   │   └── UnsupportedProposal   uses a proposal of WebAssembly that is off
    │   ├── ModuleTooLarge       more bytes than the limit
    │   ├── ModuleMemoryTooLarge declares more memory than the limit
    │   ├── StdinTooLarge        standard input has more bytes than the limit
    │   ├── CompileFailed        the compiler crashed on the module, or took more than it may
    │   │   ├── CompileTimeout   compiling took longer than it may
    │   │   └── CompileMemory    compiling takes more memory than it may
    │   ├── UnknownImport        asks for a host function that does not exist
    │   ├── MissingExport        no such exported function
    │   ├── InvalidArgs          arguments do not fit the export's signature
    │   ├── MalformedPtx         PTX text that does not parse or is inconsistent (line, column)
    │   │   └── UnsupportedPtx   valid PTX that asks for what the device lacks (named)
    │   ├── InvalidKernel        no such kernel or entry
    │   ├── InvalidDimensions    a launch geometry outside the limits
    │   ├── InvalidKernelArgs    arguments do not fit the kernel's parameters
    │   ├── KernelArgsUnsupported  more arguments than a launch may carry, or a shape argv cannot express
    │   ├── InvalidPointer       a region outside linear memory
    │   ├── InvalidHandle        no such device buffer, stream, event or graph
    │   ├── LaunchRefused        a pointer that is not the caller's, or misaligned: the device never saw it
    │   ├── NotSupported         this kind of memory, or this device, cannot do that
    │   ├── NotCapturable        what is live and cannot be saved, by name
    │   ├── InvalidSnapshot      a saved state that contradicts itself or what it is restored into
    │   ├── ArtifactNotFound     no such artifact of this tenant, or no such name
    │   ├── ArtifactInUse        a name or another artifact still leads to it
    │   ├── TooLarge             more memory at once than there can be (requested, limit)
    │   ├── InvalidKey           no such key: wrong length, kind or text
    │   ├── SealRefused          a sealed file that is not taken: nothing in it was decompressed or parsed
    │   │   ├── NotSealed        no sealed file, or one whose header contradicts itself
    │   │   ├── UnknownVersion   of a version that this release does not read
    │   │   ├── Unsigned         has no signature, and nobody asked for that
    │   │   ├── UnknownKey       signed or encrypted under a key that is not on the ring
    │   │   ├── WrongKeyKind     names a key of the ring, which is of another kind
    │   │   ├── SignatureInvalid  the signature is not that key's
    │   │   ├── Damaged          signed, and then cut, lengthened or changed
    │   │   ├── WrongContent     holds something else
    │   │   ├── WrongModule      belongs to another module
    │   │   └── WrongParent      adds to a snapshot that is not there, is another one, or is too far down a chain
    │   ├── Unauthorized         no credentials that are known, in time and not revoked
    │   ├── TenantScopeDenied    may not act for this tenant, or it is disabled
    │   ├── ScopeDenied          the token does not allow this operation
    │   ├── OriginDenied         a WebSocket from an origin that is not allowed
    │   ├── HostDenied           a Host that is not served
    │   ├── MissingTenant        no tenant in the header, or none that can be
    │   ├── NotFound             no such thing, or another tenant's
    │   │   ├── InstanceNotFound  no such instance
    │   │   └── ModelNotFound     no function serves a model of that name
    │   ├── MethodNotAllowed     the path takes other methods
    │   ├── InvalidRequest       a header, query or field is not what its type says
    │   │   └── ModelRefused      a model that cannot serve the request says so
    │   ├── InvalidJson          not JSON, or not of the type that the route takes
    │   │   └── UnknownField     a field that the route does not take, by name
    │   ├── UnsupportedMediaType  a body of another content type or encoding than the route takes
    │   ├── InvalidName          a name that cannot be one
    │   ├── InvalidBase64        not base64
    │   ├── InvalidImage         an OCI image that is damaged, or holds anything but one module
    │   ├── TooManyArgs          more than 256 arguments
    │   ├── BodyTooLarge         a body over the cap
    │   ├── RequestTimeout       the request did not come in whole in time
    │   ├── IdempotencyMismatch  the key was used with another request
    │   ├── Conflict             the state of the thing does not allow this
    │   │   ├── SessionElsewhere another server has the session
    │   │   └── AlreadyRegistered that kernel is there already
    │   ├── DigestMismatch       the digest is not the text's
    │   ├── PublishDisabled      nobody publishes kernels without authentication
    │   ├── PublishScopeRequired the token may not publish kernels
    │   ├── PublisherNotAllowed  not a publisher that is taken
    │   └── BadSignature         not the publisher's signature
    ├── GuestError               the guest program's own doing
    │   ├── GuestTrap            a Wasm trap
    │   ├── GuestExit            proc_exit with a code other than 0
    │   ├── ModelOutputInvalid   a model that does not answer by the protocol
    │   ├── KernelFault          a kernel broke a rule while running (thread, instruction, address)
    │   └── InvokeTimeout        the deadline passed
    ├── LimitError               refused for now by a quota or a full pool
    │   ├── QuotaExceeded        over a quota
    │   ├── CapacityExhausted    no free slot in the pool
    │   └── RateLimited          too many requests; says when to come again
    └── HostError                this machine or this program
        ├── DeviceUnavailable    no such device here, and why
        ├── DeviceLost           the device stopped answering; the worker must be replaced
        │   └── DeviceFault      a worker process went down with its device; another takes its place
        ├── TickerNotRunning     deadlines cannot be kept, so nothing is started
        ├── OutputClosed         nobody takes what is written any more
        ├── ArtifactCorrupt      what was stored is not what was put; it is never given out
        ├── StoreUnavailable     the place where artifacts are kept does not answer, or has no room
        ├── DatabaseUnavailable  the database does not answer, is locked or has no room
        ├── SchemaTooNew         a later release has changed the database
        ├── KernelRegistryNotConfigured  there is no key that kernels are verified with
        ├── Draining             the server is going down and takes nothing new
        ├── NotReady             the server has just begun, and loads what it needs
        ├── SigningNotConfigured  there is no key that signs, or none that encrypts
        ├── StorageFull          the data folder cannot be written, or has less room than its reserve
        ├── SnapshotKeyMissing   saved state is signed under a key that is not here
        ├── UnsafeFile           a file or folder that must be this user's alone is not
        ├── ServerUnreachable    a client command's server does not answer
        ├── Refused              a client command's server refused or failed, and of which kind
        ├── EndpointMissing      a client command's server has no such route
        ├── EngineMismatch       the installed wasmtime is not the one this release is written for
        └── InternalError        a bug here
"""

from __future__ import annotations

from tensorwasm.errors.base import (
    MAX_MESSAGE,
    MAX_NAME,
    CallerError,
    GuestError,
    HostError,
    LimitError,
    TensorWasmError,
    plain,
    quote,
    quote_all,
)
from tensorwasm.errors.caller import (
    ArtifactInUse,
    ArtifactNotFound,
    CompileFailed,
    CompileMemory,
    CompileTimeout,
    InvalidArgs,
    InvalidDimensions,
    InvalidHandle,
    InvalidKernel,
    InvalidKernelArgs,
    InvalidPointer,
    InvalidSnapshot,
    InvalidWasm,
    KernelArgsUnsupported,
    LaunchRefused,
    MalformedPtx,
    MissingExport,
    ModuleMemoryTooLarge,
    ModuleTooLarge,
    NotCapturable,
    NotSupported,
    StdinTooLarge,
    TooLarge,
    UnknownImport,
    UnsupportedProposal,
    UnsupportedPtx,
)
from tensorwasm.errors.edge import (
    AlreadyRegistered,
    BadSignature,
    BodyTooLarge,
    Conflict,
    DigestMismatch,
    HostDenied,
    IdempotencyMismatch,
    InstanceNotFound,
    InvalidBase64,
    InvalidImage,
    InvalidJson,
    InvalidName,
    InvalidRequest,
    MethodNotAllowed,
    MissingTenant,
    ModelNotFound,
    ModelRefused,
    NotFound,
    OriginDenied,
    PublishDisabled,
    PublisherNotAllowed,
    PublishScopeRequired,
    RequestTimeout,
    ScopeDenied,
    SessionElsewhere,
    TenantScopeDenied,
    TooManyArgs,
    Unauthorized,
    UnknownField,
    UnsupportedMediaType,
)
from tensorwasm.errors.guest import (
    Frame,
    GuestExit,
    GuestTrap,
    InvokeTimeout,
    KernelFault,
    ModelOutputInvalid,
)
from tensorwasm.errors.host import (
    ArtifactCorrupt,
    CapacityExhausted,
    DatabaseUnavailable,
    DeviceFault,
    DeviceLost,
    DeviceUnavailable,
    Draining,
    EngineMismatch,
    InternalError,
    KernelRegistryNotConfigured,
    NotReady,
    OutputClosed,
    QuotaExceeded,
    RateLimited,
    SchemaTooNew,
    SigningNotConfigured,
    SnapshotKeyMissing,
    StorageFull,
    StoreUnavailable,
    TickerNotRunning,
    UnsafeFile,
)
from tensorwasm.errors.remote import EndpointMissing, Refused, ServerUnreachable
from tensorwasm.errors.sealed import (
    Damaged,
    InvalidKey,
    NotSealed,
    SealRefused,
    SignatureInvalid,
    UnknownKey,
    UnknownVersion,
    Unsigned,
    WrongContent,
    WrongKeyKind,
    WrongModule,
    WrongParent,
)

__all__ = [
    "MAX_MESSAGE",
    "MAX_NAME",
    "AlreadyRegistered",
    "ArtifactCorrupt",
    "ArtifactInUse",
    "ArtifactNotFound",
    "BadSignature",
    "BodyTooLarge",
    "CallerError",
    "CapacityExhausted",
    "CompileFailed",
    "CompileMemory",
    "CompileTimeout",
    "Conflict",
    "Damaged",
    "DatabaseUnavailable",
    "DeviceFault",
    "DeviceLost",
    "DeviceUnavailable",
    "DigestMismatch",
    "Draining",
    "EndpointMissing",
    "EngineMismatch",
    "Frame",
    "GuestError",
    "GuestExit",
    "GuestTrap",
    "HostDenied",
    "HostError",
    "IdempotencyMismatch",
    "InstanceNotFound",
    "InternalError",
    "InvalidArgs",
    "InvalidBase64",
    "InvalidDimensions",
    "InvalidHandle",
    "InvalidImage",
    "InvalidJson",
    "InvalidKernel",
    "InvalidKernelArgs",
    "InvalidKey",
    "InvalidName",
    "InvalidPointer",
    "InvalidRequest",
    "InvalidSnapshot",
    "InvalidWasm",
    "InvokeTimeout",
    "KernelArgsUnsupported",
    "KernelFault",
    "KernelRegistryNotConfigured",
    "LaunchRefused",
    "LimitError",
    "MalformedPtx",
    "MethodNotAllowed",
    "MissingExport",
    "MissingTenant",
    "ModelNotFound",
    "ModelOutputInvalid",
    "ModelRefused",
    "ModuleMemoryTooLarge",
    "ModuleTooLarge",
    "NotCapturable",
    "NotFound",
    "NotReady",
    "NotSealed",
    "NotSupported",
    "OriginDenied",
    "OutputClosed",
    "PublishDisabled",
    "PublishScopeRequired",
    "PublisherNotAllowed",
    "QuotaExceeded",
    "RateLimited",
    "Refused",
    "RequestTimeout",
    "SchemaTooNew",
    "ScopeDenied",
    "SealRefused",
    "ServerUnreachable",
    "SessionElsewhere",
    "SignatureInvalid",
    "SigningNotConfigured",
    "SnapshotKeyMissing",
    "StdinTooLarge",
    "StorageFull",
    "StoreUnavailable",
    "TenantScopeDenied",
    "TensorWasmError",
    "TickerNotRunning",
    "TooLarge",
    "TooManyArgs",
    "Unauthorized",
    "UnknownField",
    "UnknownImport",
    "UnknownKey",
    "UnknownVersion",
    "UnsafeFile",
    "Unsigned",
    "UnsupportedMediaType",
    "UnsupportedProposal",
    "UnsupportedPtx",
    "WrongContent",
    "WrongKeyKind",
    "WrongModule",
    "WrongParent",
    "plain",
    "quote",
    "quote_all",
]
