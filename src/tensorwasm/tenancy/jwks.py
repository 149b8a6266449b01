"""An issuer's public keys, from a file or from the issuer's own host."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from tensorwasm.errors import InvalidArgs

MAX_JWKS_BYTES: Final = 256 << 10
MAX_KEYS: Final = 64
FETCH_S: Final = 10.0
"""Longest that fetching keys may take, redirects not followed."""
REFRESH_S: Final = 30.0
"""Keys are asked for once in this time at most, whatever comes in."""
MAX_AGE_S: Final = 600.0
"""After this time they are asked for again, so that keys that the issuer withdrew go."""

RSA_BITS: Final = range(2048, 8193)

_log = logging.getLogger(__name__)


class _Jwk(msgspec.Struct, frozen=True):
    """What is read of a key; private parts, certificates and addresses of others are not."""

    kty: str
    use: str = "sig"
    key_ops: tuple[str, ...] = ("verify",)
    alg: str = ""
    kid: str = ""
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""


class _Jwks(msgspec.Struct, frozen=True):
    keys: list[msgspec.Raw]


_KINDS: Final[Mapping[tuple[str, str], tuple[str, tuple[str, ...]]]] = {
    ("RSA", ""): ("RS256", ("n", "e")),
    ("EC", "P-256"): ("ES256", ("crv", "x", "y")),
    ("OKP", "Ed25519"): ("EdDSA", ("crv", "x")),
}
"""The algorithm that goes with a type and curve of key, and the members that make the key.
Source: RFC 7518, 6.2 and 6.3; RFC 8037, 2."""

ALGORITHMS: Final = frozenset(algorithm for algorithm, _ in _KINDS.values())

Keys = Mapping[tuple[str, str], Any]
"""Keys by algorithm and key id; the id is empty where a key has none."""


def parse_keys(text: bytes) -> Keys:
    """Return the keys of a JWK set with which tokens can be verified; others are left out. Source: RFC 7517, 5.

    Raises:
        ValueError: it is no such set, is too long, or has no key that can be used.
    """
    if len(text) > MAX_JWKS_BYTES:
        raise ValueError("too long")
    try:
        rows = msgspec.json.decode(text, type=_Jwks).keys
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("no JWK set") from None
    found = {place: key for row in rows[:MAX_KEYS] for place, key in _parse_key(row)}
    if not found:
        raise ValueError("no key that can be used")
    return found


def _parse_key(row: msgspec.Raw) -> list[tuple[tuple[str, str], Any]]:
    """Return where a key belongs, and the key; nothing for one that cannot be used."""
    import jwt  # noqa: PLC0415 - only who takes JWTs pays for it

    try:
        jwk = msgspec.json.decode(row, type=_Jwk)
        algorithm, members = _KINDS[jwk.kty, jwk.crv]
        if jwk.use != "sig" or "verify" not in jwk.key_ops or jwk.alg not in ("", algorithm):
            return []
        key = jwt.PyJWK({"kty": jwk.kty} | {name: getattr(jwk, name) for name in members}, algorithm).key
    except (msgspec.DecodeError, RecursionError, KeyError, ValueError, TypeError, jwt.PyJWTError):
        return []
    if algorithm == "RS256" and key.key_size not in RSA_BITS:
        return []
    return [((algorithm, jwk.kid), key)]


class KeySet:
    """Keys as they were last read. Used by one event loop.

    Args:
        load: reads them.
        now_s: a monotonic clock.
    """

    def __init__(self, load: Callable[[], Awaitable[bytes]], now_s: Callable[[], float] = time.monotonic) -> None:
        self._load = load
        self._now_s = now_s
        self._keys: Keys = {}
        self._read_s = self._tried_s = float("-inf")
        self._lock = asyncio.Lock()

    async def find(self, algorithm: str, kid: str | None) -> Any:
        """Return a key, None if there is none; unknown ones are asked for, once in 30 s at most.

        Args:
            algorithm: of `ALGORITHMS`.
            kid: its id; None takes the only key that the algorithm has.
        """
        if self._now_s() - self._read_s > MAX_AGE_S or self._choose(algorithm, kid) is None:
            await self._refresh()
        return self._choose(algorithm, kid)

    def _choose(self, algorithm: str, kid: str | None) -> Any:
        if kid is not None:
            return self._keys.get((algorithm, kid))
        only = [key for (of, _), key in self._keys.items() if of == algorithm]
        return only[0] if len(only) == 1 else None

    async def _refresh(self) -> None:
        """Read the keys anew, unless that was tried just now; where it fails those that are there stay."""
        async with self._lock:
            if self._now_s() - self._tried_s < REFRESH_S:
                return
            self._tried_s = self._now_s()
            try:
                self._keys = parse_keys(await self._load())
            except (OSError, ValueError) as error:
                _log.warning("the issuer's keys cannot be read: %s", error)
                return
            self._read_s = self._now_s()


@dataclass(frozen=True, slots=True)
class FileSource:
    """Keys in a file."""

    path: Path

    async def __call__(self) -> bytes:
        """Return the file's bytes, as many as a key set may have and one.

        Raises:
            OSError: it cannot be read.
        """
        return await asyncio.to_thread(self._read)

    def _read(self) -> bytes:
        with self.path.open("rb") as file:
            return file.read(MAX_JWKS_BYTES + 1)


@dataclass(frozen=True, slots=True)
class HostSource:
    """Keys at an https URL.

    Attributes:
        url: which is the issuer's own: nothing leads elsewhere.
        transport: of httpx; None for the network.
    """

    url: str
    transport: Any = None

    async def __call__(self) -> bytes:
        """Return what the host answers, as many bytes as a key set may have and one.

        Neither redirects nor the environment's proxies and passwords are followed, and nothing is decompressed.

        Raises:
            OSError: it does not answer, too slowly or with something else.
        """
        import httpx  # noqa: PLC0415 - only who takes JWTs pays for it

        client = httpx.AsyncClient(
            transport=self.transport, timeout=FETCH_S, trust_env=False, headers={"Accept-Encoding": "identity"}
        )
        try:
            async with asyncio.timeout(FETCH_S), client, client.stream("GET", self.url) as answer:
                if answer.status_code != httpx.codes.OK or "content-encoding" in answer.headers:
                    raise OSError(f"the issuer's host answers {answer.status_code}, or compressed")
                return await _read_some(answer)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OSError(f"the issuer's host does not answer: {type(error).__name__}") from None


async def _read_some(answer: Any) -> bytes:
    text = b""
    async for piece in answer.aiter_raw():
        text += piece
        if len(text) > MAX_JWKS_BYTES:
            break
    return text


def open_source(issuer: str, place: str) -> FileSource | HostSource:
    """Return where an issuer's keys are.

    Args:
        issuer: an https URL.
        place: an https URL of the same host and port, or a file.

    Raises:
        InvalidArgs: it is neither.
    """
    if "://" not in place:
        if not place:
            raise InvalidArgs("TENSOR_WASM_API_OIDC_JWKS is missing: where the issuer's keys are")
        return FileSource(Path(place))
    if _host(place, "TENSOR_WASM_API_OIDC_JWKS") != _host(issuer, "TENSOR_WASM_API_OIDC_ISSUER"):
        raise InvalidArgs("TENSOR_WASM_API_OIDC_JWKS is at another host than the issuer: save it to a file instead")
    return HostSource(place)


def _host(url: str, variable: str) -> tuple[str, int]:
    """Return host and port of an https URL."""
    try:
        parts: SplitResult = urlsplit(url)
        port = 443 if parts.port is None else parts.port
    except ValueError:
        raise InvalidArgs(f"{variable} is no URL") from None
    if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc or parts.fragment or not url.isprintable():
        raise InvalidArgs(f"{variable} is no https URL without a user and a fragment")
    return parts.hostname, port


def check_issuer(issuer: str) -> str:
    """Return an issuer that can be one.

    Raises:
        InvalidArgs: it is no https URL.
    """
    _host(issuer, "TENSOR_WASM_API_OIDC_ISSUER")
    return issuer
