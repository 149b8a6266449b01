"""The client's TCP connection, beside the server that owns it.

The server's own streams take any number of bytes without waiting for the client, end a body that failed as one that is
whole, have no trailers, and accept a WebSocket without choosing its subprotocol. All of that is a matter of what is
written to the connection. While a request of HTTP/1.1 has no answer, the server writes nothing there: so a duplicate of
the descriptor can.

Source: RFC 9112 6.1, 7.1 (chunked, trailers), 9.6 (close); unix(7), tcp(7).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import sys
import termios
from collections import deque
from contextlib import suppress
from itertools import chain
from typing import Final, Self

from tensorwasm.errors import CapacityExhausted

STALL_S: Final = 60.0
"""Seconds in which a client must take one piece: 64 KiB at most, or what is left of them."""

_SLICE: Final = 256
"""Descriptors looked at before the event loop has its turn, less than 1 ms."""

_DESCRIPTORS: Final = "/proc/self/fd"
_lately: Final[deque[int]] = deque(maxlen=64)
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: closing throws away what was not sent, and resets."""

_ACKNOWLEDGED: Final = slice(120, 128)
"""Where tcpi_bytes_acked is in struct tcp_info."""

_Address = tuple[str, int]


def parse_address(text: str) -> _Address | None:
    """Return host and port of ``127.0.0.1:80`` or ``[::1]:80``; None for anything else, such as a path."""
    host, separator, port = text.rpartition(":")
    if not separator or not (port.isascii() and port.isdigit()):
        return None
    return host.strip("[]").partition("%")[0], int(port)


class Connection:
    """A duplicate of the connection. Close it, or use it in ``with``.

    Args:
        of: the duplicate; does not block.
        stall_s: seconds in which the client must take what one `send` sends.
    """

    __slots__ = ("_socket", "_stall_s")

    def __init__(self, of: socket.socket, stall_s: float = STALL_S) -> None:
        self._socket = of
        self._stall_s = stall_s

    @classmethod
    async def find(cls, client: str, server: str) -> Self | None:
        """Return the connection between two addresses, as RSGI writes them.

        None if this process has no such connection, or is not told its address (Unix sockets).

        Raises:
            CapacityExhausted: there is no descriptor to look at others with.
        """
        peer, local = parse_address(client), parse_address(server)
        if peer is None or local is None:
            return None
        # Found lately: a new connection gets the lowest number that is free, often that of the last stream that ended.
        lately = tuple(_lately)
        # Not pathlib: it costs as much as all the rest of the search.
        try:
            descriptors = os.listdir(_DESCRIPTORS)  # noqa: PTH208
        except OSError:
            raise CapacityExhausted("no descriptor is free") from None
        for at, descriptor in enumerate(chain(lately, map(int, descriptors)), start=1):
            if at % _SLICE == 0:
                await asyncio.sleep(0)
            if _peer_of(descriptor) == peer and (found := _duplicate(descriptor, peer, local[1])) is not None:
                if descriptor not in lately:
                    _lately.append(descriptor)
                return cls(found)
        return None

    async def send(self, data: bytes) -> bool:
        """Send all of it; return False if the client has left, or does not take it in time. Waits while it is slow."""
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        return sent == len(data) or await self._send_rest(data[sent:])

    async def _send_rest(self, data: bytes) -> bool:
        try:
            async with asyncio.timeout(self._stall_s):
                await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except (OSError, TimeoutError):
            return False
        return True

    def written_bytes(self) -> int:
        """Return how many bytes were written to the connection, whether they have arrived or not."""
        try:
            told = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.stop)
            waiting = fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4))
        except OSError:
            return 0
        return int.from_bytes(told[_ACKNOWLEDGED], sys.byteorder) + int.from_bytes(waiting, sys.byteorder)

    def finish(self) -> None:
        """Send nothing more; what was sent still arrives, what the server writes does not."""
        with suppress(OSError):  # the client has left
            self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """End the connection both ways, and forget what the client has not taken."""
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the duplicate back; the connection stays the server's."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _peer_of(descriptor: int) -> _Address | None:
    """Return whom a descriptor is connected to; it stays whose it is."""
    # With the family given, the kernel is asked for little more than the address.
    try:
        borrowed = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:  # no socket, or closed meanwhile
        return None
    try:
        return _plain(borrowed.getpeername())
    except OSError:
        return None
    finally:
        borrowed.detach()


def _duplicate(descriptor: int, peer: _Address, port: int) -> socket.socket | None:
    """Return a duplicate if it is that connection still: a number goes to another once its owner has closed it."""
    try:
        duplicate = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    with suppress(OSError):
        local = _plain(duplicate.getsockname())
        if _plain(duplicate.getpeername()) == peer and local is not None and local[1] == port:
            duplicate.setblocking(False)
            duplicate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return duplicate
    duplicate.close()
    return None


def _plain(address: object) -> _Address | None:
    if not isinstance(address, tuple) or not isinstance(address[0], str):  # netlink's has no names
        return None
    return address[0].partition("%")[0], address[1]
