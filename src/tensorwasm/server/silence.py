"""Closes connections that do not send enough to be a request.

Granian has no time limit until it knows the version of HTTP, so a client could open every connection that the server
takes, and send nothing. The kernel records how much each connection has received, and when.

Source: tcp(7) TCP_INFO; linux/tcp.h, struct tcp_info; RFC 9113 3.4.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from typing import Final

FIRST_BYTES: Final = 24
"""HTTP/2's first words. Once as many have come the server has a time limit of its own."""

LOOK_S: Final = 5.0

_DESCRIPTORS: Final = "/proc/self/fd"
_ESTABLISHED: Final = 1
_SINCE_MS: Final = slice(52, 56)
"""Where tcpi_last_data_recv is in struct tcp_info; of a connection on which nothing came, since it was opened."""

_CAME_BYTES: Final = slice(128, 136)
"""Where tcpi_bytes_received is."""


async def watch(port: int, limit_ms: int) -> None:
    """End silent connections for as long as this runs. Linux can tell which they are; elsewhere they stay.

    Args:
        port: that they lead to; others are none of the server's.
        limit_ms: how long a client may be silent.
    """
    while sys.platform == "linux":
        await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(end_silent, port, limit_ms)


def end_silent(port: int, limit_ms: int) -> int:
    """End this process's connections on which nearly nothing has come for so long, and return how many. Blocks."""
    ended = 0
    for descriptor in map(int, os.listdir(_DESCRIPTORS)):  # noqa: PTH208 - there may be thousands
        if _is_silent(descriptor, limit_ms):
            ended += _end(descriptor, port, limit_ms)
    return ended


def _is_silent(descriptor: int, limit_ms: int) -> bool:
    """Look at a descriptor, which stays whose it is, and may be no connection, or another by now."""
    try:
        # With the family given the kernel is asked nothing.
        borrowed = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return False
    try:
        told = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _CAME_BYTES.stop)
    except OSError:  # no TCP, or closed
        return False
    finally:
        borrowed.detach()
    if len(told) < _CAME_BYTES.stop or told[0] != _ESTABLISHED:
        return False
    since_ms, came_bytes = (int.from_bytes(told[part], sys.byteorder) for part in (_SINCE_MS, _CAME_BYTES))
    return came_bytes < FIRST_BYTES and since_ms >= limit_ms


def _end(descriptor: int, port: int, limit_ms: int) -> bool:
    """End a connection if it is still that: a number goes to another once its owner has closed it."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        name = connection.getsockname()
        if isinstance(name, tuple) and name[1] == port and _is_silent(connection.fileno(), limit_ms):
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False
