"""`ServerTls`: TLS of a listener, from files that may be renewed while it runs; and who a client's certificate names.

Source: RFC 8446 (TLS 1.3), RFC 7301 (ALPN), RFC 4514 (text of a distinguished name).
"""

from __future__ import annotations

import logging
import ssl
from typing import Any, Final

from tensorwasm.errors import InvalidArgs

MAX_SUBJECT: Final = 256
"""Characters kept of a certificate's subject."""

_PROTOCOLS: Final = ("http/1.1",)
_log = logging.getLogger(__name__)


class ServerTls:
    """The certificate that a listener shows, and whose clients' certificates it asks for.

    Args:
        cert: path of the certificate and its chain, as PEM.
        key: path of its private key, as PEM; empty if the key is in the same file. It may not be encrypted.
        client_ca: path of the authorities, as PEM, one of which must have signed each client's certificate; empty asks
            for none.

    Attributes:
        context: for connections that begin now.
        mutual: whether clients show certificates.

    Raises:
        InvalidArgs: a file cannot be read or does not fit, or there is a key or an authority without a certificate.
    """

    def __init__(self, cert: str, key: str = "", client_ca: str = "") -> None:
        """Read the files."""
        if not cert:
            raise InvalidArgs("TLS needs a certificate: set --tls-cert, or TENSOR_WASM_TLS_CERT")
        self._cert, self._key, self._client_ca = cert, key or cert, client_ca
        self.mutual = bool(client_ca)
        self.context = self._load()

    def reload(self) -> None:
        """Read the files again, for connections that begin later; log what is wrong with them, and keep what was."""
        try:
            self.context = self._load()
        except InvalidArgs as error:
            _log.error("the certificate is not renewed: %s", error.message)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(_PROTOCOLS)
        try:
            context.load_cert_chain(self._cert, self._key, password="")  # or OpenSSL would ask on the terminal
        except OSError as error:
            raise InvalidArgs(f"TENSOR_WASM_TLS_CERT or TENSOR_WASM_TLS_KEY: {_reason(error)}") from None
        if self._client_ca:
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                raise InvalidArgs(f"TENSOR_WASM_TLS_CLIENT_CA: {_reason(error)}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no PEM that fits ({error.reason or 'unknown'})".lower()
    return error.strerror or type(error).__name__


def subject_of(transport: Any) -> str:
    """Return whom the certificate of a connection's client names, as RFC 4514 writes it; empty without one."""
    link = transport.get_extra_info("ssl_object")
    shown = None if link is None else link.getpeercert(binary_form=True)
    if not shown:
        return ""
    from cryptography import x509  # noqa: PLC0415 - most servers ask for no certificates

    try:
        return x509.load_der_x509_certificate(shown).subject.rfc4514_string()[:MAX_SUBJECT]
    except (TypeError, ValueError, x509.InvalidVersion):  # the authority has signed what another library cannot read
        return ""
