"""A primary and fronts in one process, over real sockets between them."""

from __future__ import annotations

import os
import socket
from contextlib import asynccontextmanager

from fakes.services import opened, settings_for
from tensorwasm.server.application import Application
from tensorwasm.server.connection.listener import Listener
from tensorwasm.server.relay import Relay
from tensorwasm.server.routes import ALL
from tensorwasm.service.front_opening import open_front
from tensorwasm.telemetry.metrics import Metrics
from tensorwasm.tenancy.shared_table import SharedTable, create_table

ROUTES = [(route.method, route.path) for route in ALL]


def listening_at(path):
    """A socket that listens there."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(64)
    listening.setblocking(False)
    return listening


class FleetFolder:
    """The sockets and the table that a supervisor would own; `environment` is that of all processes.

    Attributes:
        token: the first one, once there was a primary.
    """

    def __init__(self, folder, **environment):
        self.folder, self.sockets = folder, folder / "s"
        self.sockets.mkdir()
        self.environment = environment
        self.token = None
        self.table = create_table(8)
        self.listening = {name: listening_at(self.sockets / name) for name in ("http", "control")}

    def close(self):
        """Close what the supervisor would."""
        os.close(self.table)
        for each in self.listening.values():
            each.close()

    @asynccontextmanager
    async def primary(self, alive=()):
        """The primary: its service and its pipeline."""
        table = SharedTable(self.table, 8, 0)
        options = {"environment": self.environment, "metrics": Metrics(ROUTES), "table": table, "alive": alive}
        async with opened(self.folder, **options) as service:
            application = Application(service, ALL)
            listener = Listener(application.begin, 64, 5.0, relayed=True)
            await listener.listen(self.listening["http"].dup())
            await service.fronts.listen(self.listening["control"].dup())
            self.token = self.token or service.first_token.text
            try:
                yield service, application.pipeline
            finally:
                await application.drain(1.0)
                await listener.close(1.0)

    @asynccontextmanager
    async def front(self, row=1):
        """A front: its service and its pipeline."""
        settings = settings_for(self.folder, **self.environment)
        service = await open_front(
            settings, str(self.sockets / "control"), Metrics(ROUTES), SharedTable(self.table, 8, row)
        )
        relay = Relay(str(self.sockets / "http"))
        application = Application(service, ALL, relay=relay)
        try:
            yield service, application.pipeline
        finally:
            await application.drain(1.0)
            relay.close()
            await service.close()
