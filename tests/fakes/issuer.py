"""An issuer of JWTs with keys of its own, and a forger who knows what everybody knows."""

import base64
import hashlib
import hmac
import json
import time

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER = "https://issuer.example"
AUDIENCE = "tensorwasm"

RSA = rsa.generate_private_key(65537, 2048)
SHORT_RSA = rsa.generate_private_key(65537, 1024)
EC = ec.generate_private_key(ec.SECP256R1())
EC384 = ec.generate_private_key(ec.SECP384R1())
ED = ed25519.Ed25519PrivateKey.generate()
KEYS = {"RS256": RSA, "ES256": EC, "EdDSA": ED}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int) -> str:
    return b64(value.to_bytes((value.bit_length() + 7) // 8))


def jwk(key, kid, **more):
    """The public JWK of a private key."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        numbers = public.public_numbers()
        fields = {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
    elif isinstance(public, ec.EllipticCurvePublicKey):
        numbers, size = public.public_numbers(), public.key_size // 8
        fields = {"kty": "EC", "crv": f"P-{public.key_size}"}
        fields |= {"x": b64(numbers.x.to_bytes(size)), "y": b64(numbers.y.to_bytes(size))}
    else:
        fields = {"kty": "OKP", "crv": "Ed25519", "x": b64(public.public_bytes_raw())}
    return fields | {"kid": kid} | more


def jwks(*keys) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


JWKS = jwks(*(jwk(key, f"key-{name}", alg=name, use="sig") for name, key in KEYS.items()))


def claims(**more):
    """Claims that are good now; None leaves one out."""
    now = int(time.time())
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": now + 600, "iat": now, "nbf": now}
    return {name: value for name, value in (usual | {"tensorwasm_tenants": [7]} | more).items() if value is not None}


def token(algorithm="RS256", *, key=None, headers=None, **more) -> str:
    headers = {"kid": f"key-{algorithm}"} | (headers or {})
    return jwt.encode(claims(**more), key or KEYS[algorithm], algorithm, headers)


def raw(header: bytes | dict, payload: bytes | dict, signature: bytes = b"") -> str:
    """Three parts of anything."""
    parts = (json.dumps(part).encode() if isinstance(part, dict) else part for part in (header, payload))
    return ".".join((*map(b64, parts), b64(signature)))


def signed(header: dict, payload: bytes | dict) -> str:
    """Anything at all, signed by the issuer's RSA key."""
    text = raw(header, payload).rpartition(".")[0]
    return f"{text}.{b64(jwt.get_algorithm_by_name('RS256').sign(text.encode(), RSA))}"


def confused(secret: bytes) -> str:
    """A token under HMAC, whose secret is what everybody knows of the issuer's key."""
    text = raw({"alg": "HS256", "typ": "JWT", "kid": "key-RS256"}, claims()).rpartition(".")[0]
    return f"{text}.{b64(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


def public_texts(key=RSA) -> list[bytes]:
    """The issuer's public key, in each of its usual forms."""
    public = key.public_key()
    encodings = (serialization.Encoding.PEM, serialization.Encoding.DER)
    texts = [public.public_bytes(each, serialization.PublicFormat.SubjectPublicKeyInfo) for each in encodings]
    return [*texts, json.dumps(jwk(key, "key-RS256")).encode(), JWKS]
