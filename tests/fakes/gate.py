"""Holders of permits at the gate, without a session."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class Sitter:
    """Keeps its permit until it is idle."""

    idle: bool = False
    asked: int = 0
    tenant: str = "ann"
    suspended: int = 0

    def suspend(self) -> None:
        self.suspended += 1

    def release_if_idle(self) -> bool:
        self.asked += 1
        return self.idle
