"""JWTs as bearer tokens: one issuer, one audience, three algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tensorwasm.errors import InvalidArgs, Unauthorized
from tensorwasm.tenancy.jwks import ALGORITHMS, KeySet, open_source
from tensorwasm.tenancy.principal import MAX_TENANT, REFUSAL, SCOPES, USER_SCOPES, Principal

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
