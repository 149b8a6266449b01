"""JWTs as bearer tokens: one issuer, one audience, three algorithms, and the public keys of the issuer.

The keys come from a file or from the issuer's own host. PyJWT parses each key; its client for key sets is not used,
since it follows redirects and proxies, reads replies of any length, accepts symmetric and private keys, and fetches
again for every unknown key id.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tensorwasm.errors import InvalidArgs, Unauthorized
from tensorwasm.tenancy.principal import MAX_TENANT, REFUSAL, SCOPES, USER_SCOPES, Principal

MAX_JWKS_BYTES: Final = 256 << 10
MAX_KEYS: Final = 64
FETCH_S: Final = 10.0
"""Longest fetch of keys."""
REFRESH_S: Final = 30.0
"""Shortest time between two fetches, whatever comes in."""
MAX_AGE_S: Final = 600.0
"""Longest time between two fetches, so that keys that the issuer withdrew go."""

RSA_BITS: Final = range(2048, 8193)

_log = logging.getLogger(__name__)


class _Jwk(msgspec.Struct, frozen=True):
    """The members of a key that are read; private parts, certificates and addresses are ignored."""

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


_decode_set = msgspec.json.Decoder(_Jwks).decode
_decode_key = msgspec.json.Decoder(_Jwk).decode


_KINDS: Final[Mapping[tuple[str, str], tuple[str, tuple[str, ...]]]] = {
    ("RSA", ""): ("RS256", ("n", "e")),
    ("EC", "P-256"): ("ES256", ("crv", "x", "y")),
    ("OKP", "Ed25519"): ("EdDSA", ("crv", "x")),
}
"""The algorithm for a type and curve of key, and the members that make the key.
Source: RFC 7518, 6.2 and 6.3; RFC 8037, 2."""

ALGORITHMS: Final = frozenset(algorithm for algorithm, _ in _KINDS.values())

Keys = Mapping[tuple[str, str], Any]
"""Keys by algorithm and key id; the id is empty for a key without one."""


def parse_keys(text: bytes) -> Keys:
    """Return the keys of a JWK set that can verify tokens; others are skipped. Source: RFC 7517, 5.

    Raises:
        ValueError: it is not a JWK set, is too long, or has no usable key.
    """
    if len(text) > MAX_JWKS_BYTES:
        raise ValueError("too long")
    try:
        rows = _decode_set(text).keys
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("no JWK set") from None
    found = {place: key for row in rows[:MAX_KEYS] for place, key in _parse_key(row)}
    if not found:
        raise ValueError("no key that can be used")
    return found


def _parse_key(row: msgspec.Raw) -> list[tuple[tuple[str, str], Any]]:
    """Return a key's place in `Keys` and the key; nothing for an unusable one."""
    import jwt  # noqa: PLC0415 - only a service that accepts JWTs pays for it

    try:
        jwk = _decode_key(row)
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
    """A cache of an issuer's keys. Used by one event loop."""

    def __init__(self, load: Callable[[], Awaitable[bytes]], now_s: Callable[[], float] = time.monotonic) -> None:
        self._load = load
        self._now_s = now_s
        self._keys: Keys = {}
        self._read_s = self._tried_s = float("-inf")
        self._lock = asyncio.Lock()

    async def find(self, algorithm: str, kid: str | None) -> Any:
        """Return the key of an algorithm of `ALGORITHMS`, None if there is none; without an id, its only key.

        An unknown key makes the set be read again, at most once in 30 s.
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
        """Read the keys again, unless that was tried just now; if it fails, the old keys stay."""
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


def open_source(issuer: str, place: str) -> Callable[[], Awaitable[bytes]]:
    """Return what reads an issuer's keys, from a file or an https URL of the issuer's own host and port.

    Raises:
        InvalidArgs: the issuer is not an https URL, or the place is neither.
    """
    host = _host(issuer, "TENSOR_WASM_API_OIDC_ISSUER")
    if not place:
        raise InvalidArgs("TENSOR_WASM_API_OIDC_JWKS is missing: where the issuer's keys are")
    if "://" not in place:
        return partial(asyncio.to_thread, read_file, Path(place))
    if _host(place, "TENSOR_WASM_API_OIDC_JWKS") != host:
        raise InvalidArgs("TENSOR_WASM_API_OIDC_JWKS is at another host than the issuer: save it to a file instead")
    return partial(fetch, place)


def read_file(path: Path) -> bytes:
    """Return a file, at most one byte more than a key set may have, or raise OSError."""
    with path.open("rb") as file:
        return file.read(MAX_JWKS_BYTES + 1)


async def fetch(url: str, transport: Any = None) -> bytes:
    """Return a host's reply, at most one piece more than a key set may have; ``transport`` is httpx's.

    Neither redirects nor the environment's proxies and passwords are followed, and nothing is decompressed.

    Raises:
        OSError: the host does not reply in time, or not with a plain 200.
    """
    import httpx  # noqa: PLC0415 - only a service that accepts JWTs pays for it

    client = httpx.AsyncClient(
        transport=transport, timeout=FETCH_S, trust_env=False, headers={"Accept-Encoding": "identity"}
    )
    text = b""
    try:
        async with asyncio.timeout(FETCH_S), client, client.stream("GET", url) as reply:
            if reply.status_code != httpx.codes.OK or "content-encoding" in reply.headers:
                raise OSError(f"the issuer's host replies {reply.status_code}, or compressed")
            async for piece in reply.aiter_raw():
                text += piece
                if len(text) > MAX_JWKS_BYTES:
                    break
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OSError(f"the issuer's host does not reply: {type(error).__name__}") from None
    return text


def _host(url: str, variable: str) -> tuple[str, int]:
    """Return host and port of an https URL."""
    try:
        parts = urlsplit(url)
        port = 443 if parts.port is None else parts.port
    except ValueError:
        raise InvalidArgs(f"{variable} is no URL") from None
    if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc or parts.fragment or not url.isprintable():
        raise InvalidArgs(f"{variable} is no https URL without a user and a fragment")
    return parts.hostname, port


LEEWAY_S: Final = 30
TENANTS_CLAIM: Final = "tensorwasm_tenants"
MAX_SUBJECT: Final = 255
_MAX_SECONDS: Final = 1 << 40

_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_REFUSED: Final = frozenset({"crit", "b64", "zip", "cty", "enc"})
"""Headers that change what a token means: nested, compressed, detached or encrypted tokens are refused."""


class JwtVerifier:
    """Verifies JWTs.

    A token selects nothing but one of the issuer's keys: the algorithm is the key's own, and keys or addresses in the
    token's header (`jwk`, `jku`, `x5u`, `x5c`) are ignored. Source: RFC 8725, 3.1 to 3.10.
    """

    def __init__(self, issuer: str, audience: str, keys: KeySet) -> None:
        import jwt  # noqa: PLC0415 - loaded here, and only if JWTs are accepted, so that no request waits for it

        self._jwt = jwt
        self._issuer = issuer
        self._audience = audience
        self._keys = keys

    async def verify(self, token: str) -> Principal:
        """Return the principal of a JWT.

        Raises:
            Unauthorized: it is not a JWT, not signed by the issuer, for another audience, expired or not yet valid, or
                its claims are invalid.
        """
        try:
            algorithm, kid = _read_header(self._jwt.get_unverified_header(token))
            key = await self._keys.find(algorithm, kid)
            if key is None:
                raise Unauthorized(REFUSAL)
            claims = self._jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            return _read_claims(self._issuer, claims)
        # The last two: nesting depths and numbers that releases of PyJWT have let through.
        except (self._jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError):
            raise Unauthorized(REFUSAL) from None


def open_verifier(issuer: str, audience: str, jwks: str) -> JwtVerifier | None:
    """Return the verifier of an issuer's JWTs, None without an issuer, or raise InvalidArgs.

    The issuer is an https URL; ``jwks`` is an https URL of its own host, or a file.
    """
    if not issuer:
        if audience or jwks:
            raise InvalidArgs("TENSOR_WASM_API_OIDC_ISSUER is missing, but other settings of the issuer are set")
        return None
    if not audience:
        raise InvalidArgs("TENSOR_WASM_API_OIDC_AUDIENCE is missing: without it tokens for others would be accepted")
    return JwtVerifier(issuer, audience, KeySet(open_source(issuer, jwks)))


def _read_header(header: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return algorithm and key id of an unverified header."""
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS or _REFUSED & header.keys():
        raise ValueError
    if not isinstance(kid, str | None) or not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise ValueError
    return algorithm, kid


def _read_claims(issuer: str, claims: Mapping[str, Any]) -> Principal:
    """Return the principal of claims with verified signature, issuer, audience and times."""
    subject = claims["sub"]
    if not isinstance(subject, str) or not 1 <= len(subject) <= MAX_SUBJECT or not subject.isprintable():
        raise ValueError
    for name in ("exp", "nbf", "iat"):
        if type(claims.get(name, 0)) not in (int, float) or not abs(claims.get(name, 0)) <= _MAX_SECONDS:
            raise ValueError
    expires_unix_ms = int((claims["exp"] + LEEWAY_S) * 1000)
    tenants = _read_tenants(claims.get(TENANTS_CLAIM, []))
    return Principal("oidc", f"{issuer}#{subject}", tenants, _read_scopes(claims.get("scope")), expires_unix_ms)


def _read_tenants(claim: object) -> frozenset[int] | None:
    """Return the claim's tenants: None for all, none without the claim."""
    if claim == "*":
        return None
    if not isinstance(claim, list) or not all(type(each) is int and 0 <= each <= MAX_TENANT for each in claim):
        raise ValueError
    return frozenset(claim)


def _read_scopes(claim: object) -> frozenset[str]:
    """Return the claim's known scopes; the usual ones without the claim. Source: RFC 8693, 4.2."""
    if claim is None:
        return USER_SCOPES
    if not isinstance(claim, str):
        raise TypeError
    return frozenset(SCOPES).intersection(claim.split(" "))
