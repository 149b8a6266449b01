"""Where the server listens: an address and a port, or a socket in the file system.

The port is held by a socket that never listens, as long as the process that began it all lives: so it is known before
the server is there, and nobody else gets it while the server is started again. Source: Linux man-pages, socket(7)
SO_REUSEPORT.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwasm.errors import InvalidArgs

_UNIX: Final = "unix:"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens.

    Attributes:
        host: an IP address; empty for a socket in the file system.
        port: of it.
        path: of the socket; empty for an IP address.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def url(self) -> str:
        """The address as clients write it."""
        if self.path:
            return f"http+unix://{self.path}"
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:PATH``.

    Raises:
        InvalidArgs: it is none of them, or the host has no address.
    """
    if text.startswith(_UNIX):
        path = Path(text.removeprefix(_UNIX)).absolute()
        if not path.parent.is_dir():
            raise InvalidArgs("the folder of the socket is not there")
        return Address(path=str(path))
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidArgs(f"an address is HOST:PORT or unix:PATH, not {text[:64]!r}")
    try:
        found = socket.getaddrinfo(host.strip("[]") or "127.0.0.1", int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidArgs(f"{host[:64]!r} has no address: {error.strerror}") from None
    return Address(str(found[0][4][0]), int(port))


def reserve(address: Address) -> tuple[Address, socket.socket | None]:
    """Return an address with its port, and what holds it: only who shares it can listen there until that is closed.

    Raises:
        InvalidArgs: somebody listens there already, or nobody may.
    """
    if address.path:
        return address, None
    try:
        _probe(address)
        holder = socket.socket(_family(address), socket.SOCK_STREAM)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((address.host, address.port))
    except OSError as error:
        raise InvalidArgs(f"{address.url} cannot be listened on: {error.strerror}") from None
    return Address(address.host, holder.getsockname()[1]), holder


def clear(address: Address) -> None:
    """Take away a socket in the file system that a server left which died.

    Raises:
        InvalidArgs: somebody listens there, or it is something else.
    """
    if not address.path or not Path(address.path).exists():
        return
    if not Path(address.path).is_socket():
        raise InvalidArgs(f"{address.url} is something else than a socket")
    if is_reached(address):
        raise InvalidArgs(f"{address.url} cannot be listened on: somebody does")
    Path(address.path).unlink(missing_ok=True)


def is_reached(address: Address) -> bool:
    """Return whether somebody listens there. Blocks for a second at most."""
    family = socket.AF_UNIX if address.path else _family(address)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path or (address.host, address.port))
        except OSError:
            return False
        return True


def _probe(address: Address) -> None:
    """Raise OSError if somebody has the address: a socket that shares its port would not notice."""
    if address.port:
        with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.host, address.port))


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET
