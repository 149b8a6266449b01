"""JWTs: only unexpired ones of the one issuer for the one audience are accepted."""

import asyncio
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import issuer
from fakes.issuer import AUDIENCE, ISSUER, claims, raw, signed, token
from tensorwasm.errors import InvalidArgs, Unauthorized
from tensorwasm.tenancy.authentication import Authenticator, TokenTable
from tensorwasm.tenancy.oidc import JwtVerifier, KeySet, open_verifier
from tensorwasm.tenancy.principal import MAX_TENANT, SCOPES, USER_SCOPES
from timing import costs_less

GOOD = {"alg": "RS256", "typ": "JWT", "kid": "key-RS256"}


async def load():
    return issuer.JWKS


def verify(text, source=load):
    return asyncio.run(JwtVerifier(ISSUER, AUDIENCE, KeySet(source)).verify(text))


def refused(text, source=load):
    with pytest.raises(Unauthorized) as caught:
        verify(text, source)
    assert str(caught.value) == "no credentials that are known, in time and not revoked"
    assert caught.value.__cause__ is None
    return True


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_token_of_the_issuer_is_accepted_with_each_algorithm(algorithm):
    now = int(time.time())
    found = verify(token(algorithm, exp=now + 600, aud=["other", AUDIENCE]))
    assert (found.kind, found.id, found.tenants, found.scopes) == ("oidc", f"{ISSUER}#ann", frozenset({7}), USER_SCOPES)
    assert found.expires_unix_ms == (now + 630) * 1000


@pytest.mark.rule("14-oidc")
@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "nOnE", "HS256", "HS384", "HS512", "RS384", "PS256", "", "ES512"]
)
def test_no_token_chooses_another_algorithm(algorithm):
    assert refused(raw(GOOD | {"alg": algorithm}, claims()))
    good = signed(GOOD, claims()).rpartition(".")[2]
    assert refused(raw(GOOD | {"alg": algorithm}, claims()).rpartition(".")[0] + "." + good)


@pytest.mark.rule("14-oidc")
@pytest.mark.parametrize("secret", issuer.public_texts(), ids=["pem", "der", "jwk", "jwks"])
def test_the_public_key_is_no_secret_of_hmac(secret):
    assert refused(issuer.confused(secret))


@pytest.mark.rule("14-oidc")
@pytest.mark.parametrize(
    "more",
    [
        {"iss": "https://issuer.example.evil"},
        {"iss": ISSUER + "/"},
        {"iss": [ISSUER]},
        {"iss": None},
        {"aud": "somebody else"},
        {"aud": []},
        {"aud": [AUDIENCE + "x"]},
        {"aud": {AUDIENCE: 1}},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
        {"sub": "x" * 256},
        {"sub": "line\nbreak"},
        {"sub": ["ann"]},
        {"exp": None},
        {"exp": "9999999999"},
        {"exp": True},
        {"exp": [9999999999]},
        {"exp": 1e300},
        {"exp": float("inf")},
        {"exp": float("nan")},
        {"exp": -31},
        {"nbf": 300},
        {"iat": 300},
        {"iat": "soon"},
        {"nbf": float("-inf")},
    ],
    ids=str,
)
def test_a_token_with_a_wrong_claim_is_refused(more):
    ((name, value),) = more.items()
    if type(value) is int:
        value += int(time.time())
    assert refused(signed(GOOD, claims(**{name: value})))


def test_clocks_may_differ_by_thirty_seconds():
    now = int(time.time())
    assert verify(token(exp=now - 20, nbf=now + 20, iat=now + 20))


@pytest.mark.rule("14-oidc")
@pytest.mark.parametrize(
    "headers",
    [
        {"jku": "https://evil.example/jwks.json"},
        {"x5u": "https://evil.example/cert.pem"},
        {"jwk": issuer.jwk(issuer.EC, "key-RS256")},
        {"x5c": ["MIIB"]},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_keys_and_addresses_in_a_token_are_ignored(headers):
    assert verify(signed(GOOD | headers, claims()))
    forger = issuer.rsa.generate_private_key(65537, 2048)
    own = headers | ({"jwk": issuer.jwk(forger, "key-RS256")} if "jwk" in headers else {})
    assert refused(token(key=forger, headers=own))


@pytest.mark.parametrize(
    "header",
    [
        GOOD | {"crit": ["exp"]},
        GOOD | {"b64": False},
        GOOD | {"zip": "DEF"},
        GOOD | {"cty": "JWT"},
        GOOD | {"enc": "A256GCM"},
        GOOD | {"kid": 7},
        GOOD | {"kid": "unknown"},
        GOOD | {"kid": "../../etc/passwd"},
        GOOD | {"kid": "key-ES256"},
        GOOD | {"typ": "dpop+jwt"},
        GOOD | {"typ": 1},
        GOOD | {"alg": ["RS256"]},
        GOOD | {"alg": {"RS256": 1}},
        {"typ": "JWT"},
    ],
    ids=str,
)
def test_a_header_that_means_something_else_is_refused(header):
    assert refused(signed(header, claims()))


@pytest.mark.parametrize(
    "text",
    [
        "..",
        "a.b.c",
        raw(b"[]", claims()),
        raw(b"null", claims()),
        raw(GOOD, b"[]"),
        raw(b'{"alg":"RS256"', claims()),
        raw(b"[" * 5000, claims()),
        raw(GOOD, b"\xff\xfe"),
        signed(GOOD, b"[]"),
        signed(GOOD, b"7"),
        signed(GOOD, b"\xff"),
        signed(GOOD, b'{"a":' * 3000),
        signed(GOOD, b"[" * 100_000),
        signed(GOOD, b'{"exp":' + b"9" * 5000 + b"}"),
        raw(GOOD, claims(), b"\0" * 256),
        raw(GOOD, claims(), b"\0" * 100_000),
        token() + "x",
    ],
    ids=range(17),
)
def test_other_texts_than_the_issuers_tokens_are_refused(text):
    seen = []
    assert costs_less(1, lambda: seen.append(refused(text)))
    assert all(seen)


def test_a_token_in_a_token_is_not_opened():
    assert refused(signed(GOOD | {"cty": "JWT"}, token().encode()))
    assert refused(signed(GOOD, json.dumps(token()).encode()))


@given(st.data())
def test_no_damaged_token_is_taken(data):
    good = token("EdDSA")
    place = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:place] + data.draw(st.characters(codec="ascii")) + good[place + 1 :]
    same = [issuer.base64.urlsafe_b64decode(part + "==") for part in good.split(".")]
    try:
        verify(damaged)
    except Unauthorized:
        return
    assert [issuer.base64.urlsafe_b64decode(part + "==") for part in damaged.split(".")] == same


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(st.sampled_from(["sub", "exp", "nbf", "iat", "aud", "tensorwasm_tenants", "scope"]), json_values)
)
def test_any_signed_claims_give_a_principal_or_a_refusal(more):
    try:
        found = verify(signed(GOOD, claims() | more))
    except Unauthorized:
        return
    assert found.scopes <= SCOPES.keys()
    assert found.tenants is None or all(type(each) is int and 0 <= each <= MAX_TENANT for each in found.tenants)
    assert isinstance(found.expires_unix_ms, int)


@pytest.mark.parametrize(
    ("claim", "tenants"),
    [("*", None), ([1, 2, 2], {1, 2}), ([0, MAX_TENANT], {0, MAX_TENANT}), ([], set()), (None, set())],
)
def test_tenants_are_those_of_the_claim_and_none_without_it(claim, tenants):
    assert verify(token(tensorwasm_tenants=claim)).tenants == tenants


@pytest.mark.parametrize(
    "claim", ["7", 7, True, [True], ["7"], ["*"], [-1], [MAX_TENANT + 1], [1.0], {"7": 1}, [[7]]], ids=str
)
def test_an_invalid_tenants_claim_is_refused(claim):
    assert refused(token(tensorwasm_tenants=claim))


@pytest.mark.parametrize(
    ("scope", "scopes"),
    [
        (None, USER_SCOPES),
        ("", set()),
        ("invoke jobs", {"invoke", "jobs"}),
        ("openid profile admin", {"admin"}),
        ("invoke\tjobs", set()),
    ],
)
def test_scopes_are_the_known_ones_of_the_claim(scope, scopes):
    assert verify(token(scope=scope)).scopes == scopes


def test_an_invalid_scopes_claim_is_refused():
    assert refused(token(scope=["admin"]))


def test_a_token_without_a_key_id_is_verified_with_the_only_key():
    async def one():
        return issuer.jwks(issuer.jwk(issuer.RSA, "a"), issuer.jwk(issuer.ED, "b"))

    async def two():
        return issuer.jwks(issuer.jwk(issuer.RSA, "a"), issuer.jwk(issuer.rsa.generate_private_key(65537, 2048), "b"))

    header = {"alg": "RS256"}
    assert verify(signed(header, claims()), one)
    assert refused(signed(header, claims()), two)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("", AUDIENCE, ""), "OIDC_ISSUER is missing"),
        (("", "", "keys.json"), "OIDC_ISSUER is missing"),
        ((ISSUER, "", "keys.json"), "OIDC_AUDIENCE is missing"),
        ((ISSUER, AUDIENCE, ""), "OIDC_JWKS is missing"),
        (("http://issuer.example", AUDIENCE, "keys.json"), "no https URL"),
        (("issuer.example", AUDIENCE, "keys.json"), "no https URL"),
        ((ISSUER, AUDIENCE, "https://evil.example/keys"), "another host"),
    ],
)
def test_incomplete_settings_of_an_issuer_are_refused(options, complaint):
    with pytest.raises(InvalidArgs, match=complaint):
        open_verifier(*options)


def test_without_settings_there_is_no_verifier():
    assert open_verifier("", "", "") is None


def test_a_header_of_a_request_becomes_a_principal(tmp_path):
    path = tmp_path / "jwks.json"
    path.write_bytes(issuer.JWKS)

    async def never():
        raise AssertionError

    auth = Authenticator(TokenTable(), never, verifier=open_verifier(ISSUER, AUDIENCE, str(path)))
    header = f"Bearer {token('EdDSA')}"
    principal = asyncio.run(auth.authenticate_slowly(header))
    assert auth.authenticate(header) is principal


def test_errors_and_logs_contain_no_part_of_a_token(caplog):
    caplog.set_level(0)
    text = token("EdDSA", aud="somebody else")
    refused(text)
    refused(text[:-4])
    assert all(part not in caplog.text for part in text.split("."))
