"""What the head of every request must be, whatever is asked for.

Source: RFC 9112, 3.2 "Request Target": a request of HTTP/1.1 has one Host; RFC 9110, 5.3 "Field Order": a field that is
no list is there once.
"""

from __future__ import annotations

from typing import Any, Final

from tensorwasm.errors import InvalidRequest

ONCE: Final = (
    "host",
    "authorization",
    "content-type",
    "content-encoding",
    "idempotency-key",
    "origin",
    "x-tensorwasm-deadline-ms",
    "x-tensorwasm-snapshot-hmac-key",
    "x-tensorwasm-snapshot-require-signature",
    "x-tensorwasm-as-instance",
)
"""Fields of which two are refused: what is between a client and the server may have gone by the other one. The tenant's
header is one more, which `admit` refuses by a kind of its own."""


def check_head(http_version: str, headers: Any) -> None:
    """Hold a head against what every request must be.

    Args:
        http_version: ``1``, ``1.1`` or ``2``.
        headers: RSGI's.

    Raises:
        InvalidRequest: a field is there twice, or Host is missing.
    """
    if http_version == "1.1" and "host" not in headers:
        raise InvalidRequest("a request of HTTP/1.1 has the header Host")
    for name in ONCE:
        if name in headers and len(headers.get_all(name)) > 1:
            raise InvalidRequest(f"the header {name} is there twice")
