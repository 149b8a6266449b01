"""The routes, one module for each noun, and the table of all of them."""

from __future__ import annotations

from typing import Final

from tensorwasm.server.http.routing import Route
from tensorwasm.server.routes import (
    functions,
    invocations,
    jobs,
    kernels,
    openai,
    probes,
    sessions,
    snapshots,
    tenants,
    tokens,
)

ALL: Final[tuple[Route, ...]] = (
    *probes.ROUTES,
    *probes.documentation_routes(lambda: ALL),
    *functions.ROUTES,
    *invocations.ROUTES,
    *jobs.ROUTES,
    *sessions.ROUTES,
    *snapshots.ROUTES,
    *kernels.ROUTES,
    *openai.ROUTES,
    *tenants.ROUTES,
    *tokens.ROUTES,
    *tenants.USAGE_ROUTES,
)
"""Every route."""
