"""Who may be served where: whether a service may listen on an address, with or without authentication."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tensorwasm.errors import InvalidArgs


@dataclass(frozen=True, slots=True)
class Exposure:
    """How a service listens.

    Attributes:
        authenticated: whether a request needs a token; without, everybody is served as any tenant.
        warning: what the operator should know; empty for nothing.
    """

    authenticated: bool
    warning: str = ""


def decide(host: str, *, dev_mode: bool, allow_public: bool, has_auth: bool) -> Exposure:
    """Return how a service may listen on an address.

    Args:
        host: address or name to listen on, without a port.
        dev_mode: the operator allows service without authentication. Authentication that is there stays on.
        allow_public: the operator allows that on an address that others reach.
        has_auth: there are tokens, or an issuer of them.

    Raises:
        InvalidArgs: it must not start; the message says what to do.
    """
    if has_auth:
        ignored = "dev mode has no effect: there are tokens, or an issuer of them" if dev_mode else ""
        return Exposure(authenticated=True, warning=ignored)
    if not dev_mode:
        raise InvalidArgs("there are no tokens: make one, or set TENSOR_WASM_API_ALLOW_DEV_MODE=1 to serve without")
    if is_loopback(host):
        return Exposure(authenticated=False, warning="dev mode: whoever reaches this machine is served as any tenant")
    if not allow_public:
        raise InvalidArgs(
            f"dev mode serves anybody, and others reach {host[:64]!r}: listen on 127.0.0.1, give it tokens, "
            "or set TENSOR_WASM_ALLOW_PLAINTEXT_PUBLIC=1"
        )
    return Exposure(authenticated=False, warning="dev mode on a public address: anybody at all is served as any tenant")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; of names only ``localhost`` is known to be one."""
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return host.lower() == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
