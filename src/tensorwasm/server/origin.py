"""Where a request comes from: hosts that are served, browsers' origins, whose word on client certificates counts.

Source: Fetch standard, "CORS protocol"; RFC 9110, 7.2 "Host"; Envoy, "x-forwarded-client-cert".
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any, Final

from tensorwasm.errors import HostDenied, InvalidArgs, OriginDenied
from tensorwasm.settings.service import ServiceSettings

MAX_SUBJECT: Final = 256
"""Characters of a certificate's subject that are kept."""

_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_EXPOSED: Final = (
    "X-Request-Id, X-Trace-Id, Retry-After, RateLimit, RateLimit-Policy, ETag, X-TensorWasm-Route, X-TensorWasm-Server"
)
_FIELD_NAMES: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z, ]{1,2048}", re.ASCII)
_SUBJECT: Final = re.compile(r'(?:^|;)Subject="((?:[^"\\]|\\.)*)"')

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Origins:
    """What the settings say about who may ask from where.

    Attributes:
        hosts: values of Host that are served, in lower case; empty for any.
        origins: origins that browsers may call from.
        proxies: networks whose X-Forwarded-Client-Cert is believed.
    """

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    proxies: tuple[Network, ...] = ()

    @classmethod
    def from_settings(cls, settings: ServiceSettings) -> Origins:
        """Read them.

        Raises:
            InvalidArgs: a network is none.
        """
        try:
            proxies = tuple(ipaddress.ip_network(each, strict=False) for each in _split(settings.trusted_proxies))
        except ValueError as error:
            raise InvalidArgs(f"TENSOR_WASM_API_TRUSTED_XFCC_PROXIES: {error}") from None
        hosts = frozenset(each.lower() for each in _split(settings.trusted_hosts))
        return cls(hosts, frozenset(_split(settings.cors_origins)), proxies)

    def check_host(self, host: str | None) -> None:
        """Hold a Host header, or what HTTP/2 has in its place, against those that are served; a port is not looked at.

        Raises:
            HostDenied: it is not served, or is missing where only some are.
        """
        if not self.hosts:
            return
        given = (host or "").lower()
        name = given if given.endswith("]") else given.rsplit(":", 1)[0]
        if given not in self.hosts and name not in self.hosts:
            raise HostDenied("this host is not served here")

    def check_page(self, origin: str | None) -> None:
        """Hold an Origin against those that are allowed, where browsers do not ask first; programs send none.

        Raises:
            OriginDenied: a page from elsewhere asks.
        """
        if origin is not None and origin not in self.origins:
            raise OriginDenied("this is not open to pages of this origin")

    def cors(self, origin: str | None) -> tuple[tuple[str, str], ...]:
        """Return the headers that let a page of an origin see an answer, to a preflight too; none if it may not.

        Where any origin is allowed, every answer needs ``Vary: Origin`` besides.
        """
        if origin is None or origin not in self.origins:
            return ()
        return (("access-control-allow-origin", origin), ("access-control-expose-headers", _EXPOSED))

    def preflight(self, origin: str | None, wanted: str | None) -> tuple[tuple[str, str], ...]:
        """Return the headers that say what a page may send, beside those of `cors`; none if it may nothing.

        Args:
            origin: of the page.
            wanted: ``Access-Control-Request-Headers``. A page that is allowed may send what any client may.
        """
        if origin is None or origin not in self.origins:
            return ()
        fields = (("access-control-allow-headers", wanted),) if wanted and _FIELD_NAMES.fullmatch(wanted) else ()
        return (("access-control-allow-methods", _METHODS), *fields, ("access-control-max-age", "600"))

    def certificate(self, client: str, headers: Any) -> str | None:
        """Return the subject of the client's certificate, if a proxy that is trusted says one."""
        if not self.proxies:
            return None
        try:
            address = ipaddress.ip_address(client)
        except ValueError:
            return None
        if not any(address in network for network in self.proxies):
            return None
        found = _SUBJECT.search(headers.get("x-forwarded-client-cert") or "")
        return found[1][:MAX_SUBJECT] if found else None


def _split(text: str) -> list[str]:
    return [each for part in text.split(",") if (each := part.strip())]
