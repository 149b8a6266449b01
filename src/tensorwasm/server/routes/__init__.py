"""The routes, one file for each noun, and the table of them all."""

from __future__ import annotations

from typing import Final

from tensorwasm.server.routes import (
    functions,
    jobs,
    kernels,
    openai,
    probes,
    sessions,
    snapshots,
    streams,
    tenants,
    tokens,
    usage,
)
from tensorwasm.server.routing import Route

ALL: Final[tuple[Route, ...]] = (
    *probes.ROUTES,
    *functions.ROUTES,
    *jobs.ROUTES,
    *streams.ROUTES,
    *sessions.ROUTES,
    *snapshots.ROUTES,
    *kernels.ROUTES,
    *openai.ROUTES,
    *tenants.ROUTES,
    *tokens.ROUTES,
    *usage.ROUTES,
)
"""Every route."""
