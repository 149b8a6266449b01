"""An authority of tests, and what it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM


class Authority:
    """Signs certificates, each of which lies with its key in one file of a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name_of(name)
        made = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(made.public_bytes(PEM))

    def issue(self, name: str, address: str = "127.0.0.1") -> Path:
        """Return the file of a new certificate and its key, which is valid for an address."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        made = self._sign(_name_of(name), key, names)
        file = self._folder / f"{name}.pem"
        key_text = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file.write_bytes(made.public_bytes(PEM) + key_text)
        return file

    def _sign(self, name, key, extension):
        now = dt.datetime.now(dt.UTC)
        made = x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number()).add_extension(extension, critical=True)
        made = made.not_valid_before(now - dt.timedelta(hours=1)).not_valid_after(now + dt.timedelta(days=1))
        return made.sign(self._key, hashes.SHA256())


def _name_of(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Tests, Inc."),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
