"""`Owner`: who has a conversation with a worker's process held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tensorwasm.runtime.workers.frames import Asked, ReadyFrame


class Owner(Protocol):
    """Who has the conversation held; `talk` is that, a `Conversation`."""

    def ready(self, info: ReadyFrame, pid: int) -> None:
        """The process takes requests; with its number."""

    def sick(self, message: str) -> None:
        """The process's device is lost: it is not to be given more."""

    def found_long(self, tenant: str) -> None:
        """Kernels of a tenant run long in the process."""

    def wish(self, tenants: Mapping[str, int]) -> None:
        """These tenants, and no others, keep the device busy in the process; with their weights."""

    def end_turn(self, number: int, *, late: bool) -> None:
        """The process has ended a turn, or what ran on from it."""

    def want(self, talk: Any, frame: Asked, data: bytes) -> None:
        """The process wants a kernel of a text, or the plan of a job: `Conversation.answer` is to be called."""

    def attend(self, talk: Any, now_s: float) -> float | None:
        """Do what is to be done now; return when there will be something again, None if only a wake-up will tell."""

    def serve(self) -> None:
        """Give the process what waits for it, unless another thread is just doing that. Nobody's turn it is then."""

    def wake(self) -> None:
        """Have the thread that holds the conversation look after it."""
