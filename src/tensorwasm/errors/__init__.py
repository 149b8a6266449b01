"""Every error that this package raises, in one tree. Parentheses contain the subclasses of the name before them.

::

    TensorWasmError
    ├── CallerError  the caller's mistake: an unchanged retry cannot succeed
    │   ├── modules: InvalidWasm (UnsupportedProposal), ModuleTooLarge, ModuleMemoryTooLarge, UnknownImport,
    │   │   CompileFailed (CompileTimeout, CompileMemory)
    │   ├── calls: MissingExport, InvalidArgs, StdinTooLarge, TooLarge, NotSupported
    │   ├── kernels: MalformedPtx (UnsupportedPtx (KernelTooLarge)), InvalidKernel, InvalidDimensions,
    │   │   InvalidKernelArgs, KernelArgsUnsupported, InvalidPointer, InvalidHandle, LaunchRefused
    │   ├── saved state: NotCapturable, InvalidSnapshot, ArtifactNotFound, ArtifactInUse, InvalidKey,
    │   │   SealRefused (NotSealed, UnknownVersion, Unsigned, UnknownKey, WrongKeyKind, SignatureInvalid, Damaged,
    │   │   WrongContent, WrongModule, WrongParent)
    │   ├── identity: Unauthorized, TenantScopeDenied, ScopeDenied, MissingTenant
    │   ├── requests: NotFound (InstanceNotFound, ModelNotFound), MethodNotAllowed, OriginDenied, HostDenied,
    │   │   InvalidRequest (ModelRefused), InvalidJson (UnknownField), UnsupportedMediaType, InvalidName,
    │   │   InvalidBase64, InvalidImage, TooManyArgs, BodyTooLarge, RequestTimeout, IdempotencyMismatch,
    │   │   Conflict (SessionElsewhere, AlreadyRegistered)
    │   └── publishing: DigestMismatch, PublishDisabled, PublishScopeRequired, PublisherNotAllowed, BadSignature
    ├── GuestError  caused by the guest program
    │   └── GuestTrap, GuestExit, KernelFault, InvokeTimeout, ModelOutputInvalid
    ├── LimitError  refused for now by a quota or for lack of capacity
    │   └── QuotaExceeded, CapacityExhausted, RateLimited
    └── HostError  caused by this machine or this program
        ├── devices: DeviceUnavailable, DeviceLost (DeviceFault), TickerNotRunning, EngineMismatch
        ├── storage: ArtifactCorrupt, StoreUnavailable, StorageFull, DatabaseUnavailable (DatabaseOwned),
        │   SchemaTooNew, UnsafeFile, SigningNotConfigured, SnapshotKeyMissing
        ├── server: NotReady, Draining, KernelRegistryNotConfigured, OutputClosed
        ├── client commands: ServerUnreachable, ReloadFailed, Refused, EndpointMissing
        └── InternalError  a bug in this program
"""

from __future__ import annotations

from tensorwasm.errors.base import (
    MAX_MESSAGE,
    MAX_NAME,
    ArtifactCorrupt,
    CallerError,
    CapacityExhausted,
    DatabaseOwned,
    DatabaseUnavailable,
    DeviceFault,
    DeviceLost,
    DeviceUnavailable,
    Draining,
    EngineMismatch,
    Frame,
    GuestError,
    GuestExit,
    GuestTrap,
    HostError,
    InternalError,
    InvokeTimeout,
    KernelFault,
    KernelRegistryNotConfigured,
    LimitError,
    ModelOutputInvalid,
    NotReady,
    OutputClosed,
    QuotaExceeded,
    RateLimited,
    SchemaTooNew,
    SigningNotConfigured,
    SnapshotKeyMissing,
    StorageFull,
    StoreUnavailable,
    TensorWasmError,
    TickerNotRunning,
    UnsafeFile,
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
    Damaged,
    InvalidArgs,
    InvalidDimensions,
    InvalidHandle,
    InvalidKernel,
    InvalidKernelArgs,
    InvalidKey,
    InvalidPointer,
    InvalidSnapshot,
    InvalidWasm,
    KernelArgsUnsupported,
    KernelTooLarge,
    LaunchRefused,
    MalformedPtx,
    MissingExport,
    ModuleMemoryTooLarge,
    ModuleTooLarge,
    NotCapturable,
    NotSealed,
    NotSupported,
    SealRefused,
    SignatureInvalid,
    StdinTooLarge,
    TooLarge,
    UnknownImport,
    UnknownKey,
    UnknownVersion,
    Unsigned,
    UnsupportedProposal,
    UnsupportedPtx,
    WrongContent,
    WrongKeyKind,
    WrongModule,
    WrongParent,
)
from tensorwasm.errors.edge import (
    AlreadyRegistered,
    BadSignature,
    BodyTooLarge,
    Conflict,
    DigestMismatch,
    EndpointMissing,
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
    Refused,
    ReloadFailed,
    RequestTimeout,
    ScopeDenied,
    ServerUnreachable,
    SessionElsewhere,
    TenantScopeDenied,
    TooManyArgs,
    Unauthorized,
    UnknownField,
    UnsupportedMediaType,
)

__all__ = [
    "MAX_MESSAGE", "MAX_NAME", "AlreadyRegistered", "ArtifactCorrupt", "ArtifactInUse", "ArtifactNotFound",
    "BadSignature", "BodyTooLarge", "CallerError", "CapacityExhausted", "CompileFailed", "CompileMemory",
    "CompileTimeout", "Conflict", "Damaged", "DatabaseOwned", "DatabaseUnavailable", "DeviceFault", "DeviceLost",
    "DeviceUnavailable", "DigestMismatch", "Draining", "EndpointMissing", "EngineMismatch", "Frame", "GuestError",
    "GuestExit", "GuestTrap", "HostDenied", "HostError", "IdempotencyMismatch", "InstanceNotFound", "InternalError",
    "InvalidArgs", "InvalidBase64", "InvalidDimensions", "InvalidHandle", "InvalidImage", "InvalidJson",
    "InvalidKernel", "InvalidKernelArgs", "InvalidKey", "InvalidName", "InvalidPointer", "InvalidRequest",
    "InvalidSnapshot", "InvalidWasm", "InvokeTimeout", "KernelArgsUnsupported", "KernelFault",
    "KernelRegistryNotConfigured", "KernelTooLarge", "LaunchRefused", "LimitError", "MalformedPtx", "MethodNotAllowed",
    "MissingExport", "MissingTenant", "ModelNotFound", "ModelOutputInvalid", "ModelRefused", "ModuleMemoryTooLarge",
    "ModuleTooLarge", "NotCapturable", "NotFound", "NotReady", "NotSealed", "NotSupported", "OriginDenied",
    "OutputClosed", "PublishDisabled", "PublishScopeRequired", "PublisherNotAllowed", "QuotaExceeded", "RateLimited",
    "Refused", "ReloadFailed", "RequestTimeout", "SchemaTooNew", "ScopeDenied", "SealRefused", "ServerUnreachable",
    "SessionElsewhere", "SignatureInvalid", "SigningNotConfigured", "SnapshotKeyMissing", "StdinTooLarge",
    "StorageFull", "StoreUnavailable", "TenantScopeDenied", "TensorWasmError", "TickerNotRunning", "TooLarge",
    "TooManyArgs", "Unauthorized", "UnknownField", "UnknownImport", "UnknownKey", "UnknownVersion", "UnsafeFile",
    "Unsigned", "UnsupportedMediaType", "UnsupportedProposal", "UnsupportedPtx", "WrongContent", "WrongKeyKind",
    "WrongModule", "WrongParent", "plain", "quote", "quote_all",
]  # fmt: skip
