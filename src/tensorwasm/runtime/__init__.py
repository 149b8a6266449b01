"""Where nouns meet: load a module, invoke it, in this process or in workers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorwasm.runtime.executor import Executor, ExecutorStatistics, LocalExecutor
    from tensorwasm.runtime.function import Function
    from tensorwasm.runtime.grants import Grants, parse_directory, parse_grants
    from tensorwasm.runtime.invocation import Invocation
    from tensorwasm.runtime.live import LiveInstance
    from tensorwasm.runtime.request import Request
    from tensorwasm.runtime.runtime import Runtime
    from tensorwasm.runtime.snapshots import Snapshot
    from tensorwasm.runtime.ticket import Ticket
    from tensorwasm.runtime.workers.pool import WorkerExecutor
    from tensorwasm.runtime.workers.worker import WorkerOptions

__all__ = [
    "Executor",
    "ExecutorStatistics",
    "Function",
    "Grants",
    "Invocation",
    "LiveInstance",
    "LocalExecutor",
    "Request",
    "Runtime",
    "Snapshot",
    "Ticket",
    "WorkerExecutor",
    "WorkerOptions",
    "parse_directory",
    "parse_grants",
]

_HOMES = {
    "Executor": "executor",
    "ExecutorStatistics": "executor",
    "Function": "function",
    "Grants": "grants",
    "Invocation": "invocation",
    "LiveInstance": "live",
    "LocalExecutor": "executor",
    "Request": "request",
    "Runtime": "runtime",
    "Snapshot": "snapshots",
    "Ticket": "ticket",
    "WorkerExecutor": "workers.pool",
    "WorkerOptions": "workers.worker",
    "parse_directory": "grants",
    "parse_grants": "grants",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for: one call needs neither workers nor snapshots."""
    import importlib  # noqa: PLC0415 - keeps this module's own namespace to what is public

    if name in _HOMES:
        return getattr(importlib.import_module(f"tensorwasm.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
