"""Where the server listens: an IP address and port, or a Unix socket; and whether it may, without authentication.

A socket that never listens reserves the port while the supervisor lives: so the port is known before the server runs,
and no other process gets it during a restart. Source: Linux man-pages, socket(7) SO_REUSEPORT.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tensorwasm.errors import InvalidArgs

_UNIX: Final = "unix:"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the server listens: an IP address (`host`) and a TCP port, or else the path of a Unix socket; with TLS?"""

    host: str = ""
    port: int = 0
    path: str = ""
    secure: bool = False

    @property
    def url(self) -> str:
        """The address as clients write it."""
        scheme = "https" if self.secure else "http"
        if self.path:
            return f"{scheme}+unix://{self.path}"
        return f"{scheme}://[{self.host}]:{self.port}" if ":" in self.host else f"{scheme}://{self.host}:{self.port}"

    @property
    def family(self) -> socket.AddressFamily:
        """Its address family."""
        if self.path:
            return socket.AF_UNIX
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET


def parse_address(text: str) -> ListenAddress:
    """Parse ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:PATH``; raise `InvalidArgs` for others and unknown hosts."""
    if text.startswith(_UNIX):
        path = Path(text.removeprefix(_UNIX)).absolute()
        if not path.parent.is_dir():
            raise InvalidArgs("the folder of the socket does not exist")
        return ListenAddress(path=str(path))
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidArgs(f"an address is HOST:PORT or unix:PATH, not {text[:64]!r}")
    try:
        found = socket.getaddrinfo(host.strip("[]") or "127.0.0.1", int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidArgs(f"{host[:64]!r} has no address: {error.strerror}") from None
    return ListenAddress(str(found[0][4][0]), int(port))


def reserve(address: ListenAddress) -> tuple[ListenAddress, socket.socket | None]:
    """Return an address with its port, and the socket that reserves it for processes that share it.

    Raises:
        InvalidArgs: the address is in use or not permitted.
    """
    if address.path:
        return address, None
    try:
        if address.port:  # binding without SO_REUSEPORT detects another listener that shares the port
            with socket.socket(address.family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address.host, address.port))
        holder = socket.socket(address.family, socket.SOCK_STREAM)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((address.host, address.port))
    except OSError as error:
        raise InvalidArgs(f"{address.url} cannot be listened on: {error.strerror}") from None
    return replace(address, port=holder.getsockname()[1]), holder


def clear(address: ListenAddress) -> None:
    """Delete the Unix socket of a dead server; raise `InvalidArgs` if it is in use or not a socket."""
    if not address.path or not Path(address.path).exists():
        return
    if not Path(address.path).is_socket():
        raise InvalidArgs(f"{address.url} is not a socket")
    if is_reached(address):
        raise InvalidArgs(f"{address.url} cannot be listened on: another process does")
    Path(address.path).unlink(missing_ok=True)


def is_reached(address: ListenAddress) -> bool:
    """Return whether a process listens there. Blocks for a second at most."""
    with socket.socket(address.family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path or (address.host, address.port))
        except OSError:
            return False
        return True


def check_exposure(host: str, *, dev_mode: bool, allow_public: bool, has_auth: bool) -> str:
    """Check whether a service may listen on an address or name; return a warning, or an empty text.

    Without authentication every client may act for every tenant.

    The operator allows service without authentication by ``dev_mode``, and on a public address by ``allow_public``.
    If there are tokens or an issuer of them, ``has_auth``, authentication stays on.

    Raises:
        InvalidArgs: the service must not start; the message says what to do.
    """
    if has_auth:
        return "dev mode has no effect: there are tokens, or an issuer of them" if dev_mode else ""
    if not dev_mode:
        raise InvalidArgs("there are no tokens: make one, or set TENSOR_WASM_API_ALLOW_DEV_MODE=1 to serve without")
    if is_loopback(host):
        return "dev mode: every client on this machine is served as any tenant"
    if not allow_public:
        raise InvalidArgs(
            f"dev mode needs no tokens, and other machines reach {host[:64]!r}: listen on 127.0.0.1, use tokens, "
            "or set TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC=1"
        )
    return "dev mode on a public address: every client is served as any tenant"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; the only name that counts is ``localhost``."""
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return host.lower() == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
