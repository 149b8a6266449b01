"""Whether a service may listen on an address, with or without authentication."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tensorwasm.errors import InvalidArgs


@dataclass(frozen=True, slots=True)
class Exposure:
    """How a service listens: without authentication, every client may act for every tenant."""

    authenticated: bool
    warning: str = ""


def decide_exposure(host: str, *, dev_mode: bool, allow_public: bool, has_auth: bool) -> Exposure:
    """Return how a service may listen on an address or name.

    The operator allows service without authentication by ``dev_mode``, and on a public address by ``allow_public``.
    If there are tokens or an issuer of them, ``has_auth``, authentication stays on.

    Raises:
        InvalidArgs: the service must not start; the message says what to do.
    """
    if has_auth:
        ignored = "dev mode has no effect: there are tokens, or an issuer of them" if dev_mode else ""
        return Exposure(authenticated=True, warning=ignored)
    if not dev_mode:
        raise InvalidArgs("there are no tokens: make one, or set TENSOR_WASM_API_ALLOW_DEV_MODE=1 to serve without")
    if is_loopback(host):
        return Exposure(authenticated=False, warning="dev mode: every client on this machine is served as any tenant")
    if not allow_public:
        raise InvalidArgs(
            f"dev mode needs no tokens, and other machines reach {host[:64]!r}: listen on 127.0.0.1, use tokens, "
            "or set TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC=1"
        )
    return Exposure(authenticated=False, warning="dev mode on a public address: every client is served as any tenant")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; the only name that counts is ``localhost``."""
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return host.lower() == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
