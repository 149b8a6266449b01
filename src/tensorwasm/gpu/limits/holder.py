"""What a gate asks of those who hold its permits."""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """What has or wants a permit. Compared by identity."""

    @property
    def tenant(self) -> str:
        """Whose it is."""

    def suspend(self) -> None:
        """Have compiled code ask here before it gives more work. Called by the gate, on any thread; must not wait."""

    def release_if_idle(self) -> bool:
        """Give the permit up unless it is needed now. Called by the gate, on any thread, at any time; must not wait."""


class IdleQuestion(Protocol):
    """Asks whether a session has nothing on its device any more."""

    def __call__(self) -> bool:
        """Return whether; False also if it was asked a short time ago."""

    def at_once(self) -> bool:
        """Return whether, however often this is asked."""
