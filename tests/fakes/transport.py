"""A connection of HTTP without a network: what the client sends is given, what it gets is kept."""

from __future__ import annotations

import h11

from tensorwasm.server.connection.connection import HttpConnection
from tensorwasm.server.connection.listener import Listener


class FakeTransport:
    """The server's end of a connection."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.sent = b""
        self.reading, self.ended, self.closed, self.aborted = True, False, False, False
        self.unsent = 0  # what the client has not taken: a close waits for it
        protocol.connection_made(self)

    def get_extra_info(self, name):
        return ("127.0.0.1", 40000) if name == "peername" else None

    def write(self, data):
        assert not self.ended, "something was written behind the end"
        self.sent += data

    def get_write_buffer_size(self):
        return self.unsent

    def can_write_eof(self):
        return True

    def write_eof(self):
        assert not self.closed, "uvloop raises"
        self.ended = True

    def pause_reading(self):
        assert self.reading
        self.reading = False

    def resume_reading(self):
        assert not self.reading
        self.reading = True

    def close(self):
        if not self.closed and not self.unsent:
            self.closed = True
            self.protocol.connection_lost(None)

    def abort(self):
        self.aborted, self.unsent = True, 0
        self.close()


class FakeClient:
    """A client of a server that begins with each request as it is told to. Within an event loop.

    Args:
        begin: as `Listener`'s.
    """

    def __init__(self, begin, body_timeout_s=10.0, most=10):
        self.listener = Listener(begin, most, body_timeout_s)
        self.connect()

    def connect(self):
        self.connection = HttpConnection(self.listener)
        self.transport = FakeTransport(self.connection)
        return self.transport

    def send(self, data):
        if not self.transport.closed:
            self.connection.data_received(data)

    def leave(self):
        """End the client's own side, as a closed socket does first."""
        if not self.connection.eof_received():
            self.transport.close()

    def answers(self, *methods):
        """Return status, headers, body and trailers of each answer, as another library reads them."""
        reader, found = h11.Connection(h11.CLIENT), []
        reader.receive_data(self.transport.sent)
        if self.transport.ended or self.transport.closed:
            reader.receive_data(b"")
        for method in methods:
            reader.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
            reader.send(h11.EndOfMessage())
            head, body = reader.next_event(), b""
            while type(head) is h11.InformationalResponse:
                head = reader.next_event()
            while type(event := reader.next_event()) is h11.Data:
                body += event.data
            assert type(event) is h11.EndOfMessage, event
            found.append((head.status_code, dict(head.headers), body, list(event.headers)))
            if reader.our_state is h11.DONE and reader.their_state is h11.DONE:
                reader.start_next_cycle()
        return found
