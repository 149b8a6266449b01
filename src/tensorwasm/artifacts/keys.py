"""Keys that sign, verify or encrypt: single ones, the machine's own in files, and the rings that settings describe.

A key's id is the first 8 bytes of the BLAKE3 hash of the key (of a pair: of its public half), in hexadecimal digits. No
secret appears in ``repr`` or in a message.

A key is replaced in two steps: the new one signs while the old one still verifies; once nothing is signed with the old
one any more, it is removed. Of the keys that encrypt the first one encrypts and all decrypt.

As text a key is ``KIND:VALUE``: the kind one of ``hmac``, ``ed25519`` and ``ed25519-public``, the value 64 hexadecimal
digits or the path of a file with 32 bytes, 64 hexadecimal digits or, for Ed25519, PEM. Without a kind it is ``hmac``.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

from tensorwasm import settings
from tensorwasm.artifacts import private_files
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.errors import InvalidKey, SigningNotConfigured, UnsafeFile

KEY_BYTES: Final = 32
ID_BYTES: Final = 8
_FILE_CAP_BYTES: Final = 16 << 10
_PURPOSE: Final = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


class Algorithm(IntEnum):
    """How a signature is made; the numbers are those in sealed files."""

    HMAC_SHA256 = 1
    ED25519 = 2


SIGNATURE_BYTES: Final = {Algorithm.HMAC_SHA256: 32, Algorithm.ED25519: 64}


class _Key:
    """A key with an id; 32 bytes, InvalidKey otherwise.

    Attributes:
        raw: those bytes; of a pair, the public half.
    """

    __slots__ = ("id", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = _key_bytes(raw)
        self.id = blake3(raw)[:ID_BYTES].hex()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id})"


class CipherKey(_Key):
    """A secret of 32 bytes from which the encryption keys of single files are derived."""

    __slots__ = ()


class HmacKey(_Key):
    """A secret of 32 bytes that signs and verifies by HMAC-SHA256 (RFC 2104, FIPS 198-1)."""

    __slots__ = ()
    algorithm: Final = Algorithm.HMAC_SHA256

    def sign(self, message: bytes) -> bytes:
        """Return 32 bytes."""
        return hmac.digest(self.raw, message, hashlib.sha256)

    def copy_to(self, above: Path, purpose: str, what: str) -> HmacKey:
        """Keep it in another folder too, as `store_key` does."""
        return store_key(above, purpose, what, self.raw)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether the signature is this key's, in a time that does not depend on where it differs."""
        return hmac.compare_digest(self.sign(message), bytes(signature))


class Ed25519PublicKey(_Key):
    """The public half of a pair, 32 bytes; it verifies (RFC 8032, 5.1.7)."""

    __slots__ = ("_key",)
    algorithm: Final = Algorithm.ED25519

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        try:
            self._key = _ed25519().Ed25519PublicKey.from_public_bytes(self.raw)
        except ValueError:
            raise InvalidKey("these 32 bytes are no Ed25519 public key") from None

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether the signature was made with the private half."""
        with suppress(importlib.import_module("cryptography.exceptions").InvalidSignature):
            self._key.verify(bytes(signature), message)
            return True
        return False


class Ed25519Key(_Key):
    """A pair made from the 32 bytes that RFC 8032 calls the private key; it signs and verifies (5.1.5 to 5.1.7)."""

    __slots__ = ("_key", "public")
    algorithm: Final = Algorithm.ED25519

    def __init__(self, seed: bytes) -> None:
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(_key_bytes(seed))
        self.public = Ed25519PublicKey(self._key.public_key().public_bytes_raw())
        super().__init__(self.public.raw)

    def sign(self, message: bytes) -> bytes:
        """Return 64 bytes, always the same for a message."""
        return bytes(self._key.sign(message))

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether the signature is this pair's."""
        return self.public.verify(message, signature)


SigningKey: TypeAlias = HmacKey | Ed25519Key
VerifyingKey: TypeAlias = HmacKey | Ed25519Key | Ed25519PublicKey


def machine_key(purpose: str) -> HmacKey:
    """Return this machine's own key for a purpose: 32 random bytes, made at the first call. Reads a file each time.

    It is the file ``keys/<purpose>`` of `settings.state_dir`, mode 0600 in a folder with mode 0700. Processes that call
    this at once get the same key. InvalidKey if the purpose is no short word of small letters; else as `load_key`.
    """
    if _PURPOSE.fullmatch(purpose) is None:
        raise InvalidKey(f"a key's purpose is a word of small letters, not {purpose[:40]!r}")
    folder = settings.state_dir()
    return load_key(folder, purpose, private_files.STATE) or store_key(
        folder, purpose, private_files.STATE, secrets.token_bytes(KEY_BYTES)
    )


def load_key(above: Path, purpose: str, what: str) -> HmacKey | None:
    """Return the key in the file ``keys/<purpose>`` of a folder, which messages call ``what``; None if there is none.

    Raises:
        InvalidKey: the file has not 32 bytes.
        UnsafeFile: folder or file belong to another user, are open to others, or cannot be read.
    """
    path = private_files.open_folder(above, "keys", what) / purpose
    try:
        return HmacKey(private_files.read_file(path, f"the key keys/{purpose} in {what}", KEY_BYTES))
    except FileNotFoundError:
        return None


def store_key(above: Path, purpose: str, what: str, secret: bytes) -> HmacKey:
    """Keep a key in the file ``keys/<purpose>`` of a folder unless there is one; return it as `load_key` does."""
    try:
        private_files.make_file(private_files.open_folder(above, "keys", what) / purpose, secret)
    except OSError as error:
        raise UnsafeFile(f"the key keys/{purpose} in {what} cannot be made: {error.strerror}") from None
    if (found := load_key(above, purpose, what)) is None:
        raise UnsafeFile(f"the key keys/{purpose} in {what} was removed")
    return found


_KINDS: Final[Mapping[str, tuple[Callable[[bytes], VerifyingKey], str]]] = {
    "hmac": (HmacKey, ""),
    "ed25519": (Ed25519Key, "private"),
    "ed25519-public": (Ed25519PublicKey, "public"),
}
"""By kind: the class of the key, and which half of a pair it is: that says how its PEM is read."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys for sealed files.

    Attributes:
        signer: the key that signs; None for a ring that only verifies.
        verifiers: by id, the signer among them.
        ciphers: by id; the first one encrypts.
    """

    signer: SigningKey | None
    verifiers: Mapping[str, VerifyingKey] = field(default_factory=dict)
    ciphers: Mapping[str, CipherKey] = field(default_factory=dict)

    @classmethod
    def of(cls, signer: SigningKey | None, *others: VerifyingKey, ciphers: Iterable[CipherKey] = ()) -> KeyRing:
        """Return the ring of these keys.

        InvalidKey if two keys of different kinds are the same 32 bytes, so that a public key would be a secret.
        """
        verifiers: dict[str, VerifyingKey] = {}
        for key in (*(() if signer is None else (signer,)), *others):
            if verifiers.setdefault(key.id, key).algorithm != key.algorithm:
                raise InvalidKey(f"the key {key.id} is given as two kinds of key")
        return cls(signer, verifiers, {cipher.id: cipher for cipher in ciphers})

    @classmethod
    def from_settings(cls) -> KeyRing:
        """Return the ring that the settings describe; without a configured signer the machine's own key signs.

        Reads the files that the settings name, at every call.

        Raises:
            InvalidKey: a setting is no key; the message names the setting and not the key.
            UnsafeFile: a file of a key is missing, another user's or open to others.
        """
        current, name = settings.current(), "TENSOR_WASM_SNAPSHOT_KEY"
        signer = _parse(name, current.snapshot_key) if current.snapshot_key else machine_key("snapshot")
        if isinstance(signer, Ed25519PublicKey):
            raise InvalidKey(f"{name} signs: it cannot be a public key")
        trusted = [_parse("TENSOR_WASM_SNAPSHOT_TRUST", text) for text in _split(current.snapshot_trust)]
        return cls.of(signer, *trusted, ciphers=ciphers_from_settings())

    def require_signer(self) -> SigningKey:
        """Return the key that signs; SigningNotConfigured if there is none."""
        if self.signer is None:
            raise SigningNotConfigured("there is no key that signs: set TENSOR_WASM_SNAPSHOT_KEY")
        return self.signer

    def require_cipher(self) -> CipherKey:
        """Return the key that encrypts; SigningNotConfigured if there is none."""
        for cipher in self.ciphers.values():
            return cipher
        raise SigningNotConfigured("there is no key that encrypts: set TENSOR_WASM_SNAPSHOT_CIPHER_KEY")


def ciphers_from_settings() -> tuple[CipherKey, ...]:
    """Return the keys that encrypt by the settings; errors as for `KeyRing.from_settings`."""
    given = _split(settings.current().snapshot_cipher_key)
    return tuple(CipherKey(_read_value("TENSOR_WASM_SNAPSHOT_CIPHER_KEY", text)) for text in given)


def parse_secret(name: str, text: str) -> HmacKey:
    """Return the key that the setting ``name`` has as 64 hexadecimal digits, or as the path of a file.

    Errors are as for `KeyRing.from_settings`.
    """
    if not _HEX.fullmatch(text) and "/" not in text:  # a mistyped key must not be taken for a file's name and shown
        raise InvalidKey(f"{name} is neither 64 hexadecimal digits nor the path of a file")
    return HmacKey(_read_value(name, text))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse(name: str, text: str) -> VerifyingKey:
    kind, colon, value = text.partition(":")
    if not colon or kind not in _KINDS:
        kind, value = "hmac", text
    make, half = _KINDS[kind]
    return make(_read_value(name, value, half))


def _read_value(name: str, value: str, half: str = "") -> bytes:
    """Return 32 bytes from hexadecimal digits or a file."""
    if _HEX.fullmatch(value):
        return bytes.fromhex(value)
    if not value or "\0" in value:
        raise InvalidKey(f"{name} is neither 64 hexadecimal digits nor the path of a file")
    what = f"the file that {name} names"
    others = private_files.OTHERS_WRITE if half == "public" else private_files.OTHERS
    try:
        data = private_files.read_file(Path(value), what, _FILE_CAP_BYTES, others=others, root=True)
    except FileNotFoundError:
        raise UnsafeFile(f"{what} is not there; a key itself would be 64 hexadecimal digits") from None
    if len(data) == KEY_BYTES:
        return data
    text = data.strip()
    if _HEX.fullmatch(text.decode("latin-1")):
        return bytes.fromhex(text.decode("ascii"))
    if not half or not text.startswith(b"-----BEGIN "):
        raise InvalidKey(f"{what} has no key of that kind in it")
    try:
        return _read_pem(text, half)
    except (ValueError, TypeError, importlib.import_module("cryptography.exceptions").UnsupportedAlgorithm):
        raise InvalidKey(f"{what} has no Ed25519 key of that kind in it, or one with a password") from None


def _read_pem(text: bytes, half: str) -> bytes:
    """Return the 32 bytes of the private or the public half of an Ed25519 pair."""
    # The second argument is the password of a private key, and of a public key unused.
    pem = importlib.import_module("cryptography.hazmat.primitives.serialization")
    loaded = getattr(pem, f"load_pem_{half}_key")(text, None)
    if not isinstance(loaded, getattr(_ed25519(), f"Ed25519{half.capitalize()}Key")):
        raise TypeError(half)
    return bytes(getattr(loaded, f"{half}_bytes_raw")())


def _key_bytes(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise InvalidKey(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return bytes(key)


def _ed25519() -> Any:
    return importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
