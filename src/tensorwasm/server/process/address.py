"""Where the server listens: an IP address and port, or a Unix socket; and whether it may, without authentication.

The supervisor owns the socket that listens, and servers inherit it: clients that come while one server is replaced by
the next wait in its queue instead of being refused. Source: Linux man-pages, listen(2), unix(7).
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tensorwasm.errors import InvalidArgs

BACKLOG: Final = 4096
"""Connections that wait to be accepted; the kernel may allow fewer (net.core.somaxconn)."""

AGAIN_S: Final = 0.01
"""How often it is tried to listen at an address that is in use."""

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


def listen(address: ListenAddress, *, patience_s: float = 0.0) -> tuple[ListenAddress, socket.socket]:
    """Return an address with its port, and a socket that listens there and does not block.

    Deletes the Unix socket of a dead server; that of this one is the caller's to delete. If the address is in use, it
    is tried again for `patience_s`: whoever uses it may be about to end.

    Raises:
        InvalidArgs: the address is in use, not permitted, or a file that is no socket.
    """
    ends_s = time.monotonic() + patience_s
    while True:
        try:
            return _listen(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= ends_s:
                raise InvalidArgs(f"{address.url} cannot be listened on: {error.strerror}") from None
        time.sleep(AGAIN_S)


def _listen(address: ListenAddress) -> tuple[ListenAddress, socket.socket]:
    if address.path:
        _clear(address)
    listening = socket.socket(address.family, socket.SOCK_STREAM)
    masked = os.umask(0o177)  # the file of a Unix socket is for this user alone
    try:
        if address.path:
            listening.bind(address.path)
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if address.family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((address.host, address.port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(masked)
    listening.setblocking(False)
    return (address if address.path else replace(address, port=listening.getsockname()[1])), listening


def _clear(address: ListenAddress) -> None:
    """Delete the Unix socket of a dead server; raise OSError if it is in use, and InvalidArgs if it is no socket."""
    path = Path(address.path)
    if not path.exists():
        return
    if not path.is_socket():
        raise InvalidArgs(f"{address.url} is not a socket")
    if is_reached(address):
        raise OSError(errno.EADDRINUSE, "another process does")
    path.unlink(missing_ok=True)


def is_reached(address: ListenAddress) -> bool:
    """Return whether a process listens there. Blocks for a second at most."""
    with socket.socket(address.family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path or (address.host, address.port))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # its queue is full
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
