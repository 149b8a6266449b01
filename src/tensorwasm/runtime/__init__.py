"""Loads modules and runs calls, in this process or in worker processes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorwasm.runtime.api.function import Function
    from tensorwasm.runtime.api.runtime import Runtime
    from tensorwasm.runtime.executor.local import LocalExecutor
    from tensorwasm.runtime.executor.request import Executor, ExecutorStatistics, Request
    from tensorwasm.runtime.invoke.grants import Grants, parse_directory, parse_grants
    from tensorwasm.runtime.invoke.invocation import Invocation, PendingInvocation
    from tensorwasm.runtime.snapshots.live import LiveInstance
    from tensorwasm.runtime.snapshots.snapshot import Snapshot
    from tensorwasm.runtime.workers.options import WorkerOptions
    from tensorwasm.runtime.workers.pool import WorkerExecutor

__all__ = [
    "Executor",
    "ExecutorStatistics",
    "Function",
    "Grants",
    "Invocation",
    "LiveInstance",
    "LocalExecutor",
    "PendingInvocation",
    "Request",
    "Runtime",
    "Snapshot",
    "WorkerExecutor",
    "WorkerOptions",
    "parse_directory",
    "parse_grants",
]

_HOMES = {
    "Executor": "executor.request",
    "ExecutorStatistics": "executor.request",
    "Function": "api.function",
    "Grants": "invoke.grants",
    "Invocation": "invoke.invocation",
    "LiveInstance": "snapshots.live",
    "LocalExecutor": "executor.local",
    "PendingInvocation": "invoke.invocation",
    "Request": "executor.request",
    "Runtime": "api.runtime",
    "Snapshot": "snapshots.snapshot",
    "WorkerExecutor": "workers.pool",
    "WorkerOptions": "workers.worker",
    "parse_directory": "invoke.grants",
    "parse_grants": "invoke.grants",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for: one call needs neither workers nor snapshots."""
    import importlib  # noqa: PLC0415 - keeps this module's own namespace to what is public

    if name in _HOMES:
        return getattr(importlib.import_module(f"tensorwasm.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
