"""An issuer's keys: from a file or its own host, bounded in number, length and frequency of fetches."""

import asyncio
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import issuer
from tensorwasm.errors import InvalidArgs
from tensorwasm.tenancy.oidc import (
    MAX_AGE_S,
    MAX_JWKS_BYTES,
    MAX_KEYS,
    REFRESH_S,
    KeySet,
    fetch,
    open_source,
    parse_keys,
    read_file,
)

URL = "https://issuer.example/keys"
PLACES = {("RS256", "key-RS256"), ("ES256", "key-ES256"), ("EdDSA", "key-EdDSA")}


class World:
    """A changing key set, a counter of loads, and a clock."""

    def __init__(self, text=issuer.JWKS):
        self.text = text
        self.loads = 0
        self.now_s = 1000.0
        self.keys = KeySet(self.load, lambda: self.now_s)

    async def load(self):
        self.loads += 1
        await asyncio.sleep(0)
        if isinstance(self.text, Exception):
            raise self.text
        return self.text

    def find(self, kid="key-RS256", algorithm="RS256"):
        return asyncio.run(self.keys.find(algorithm, kid))


def test_each_key_is_found_by_its_algorithm_and_id():
    assert set(parse_keys(issuer.JWKS)) == PLACES


@pytest.mark.rule("14-oidc")
@pytest.mark.parametrize(
    "row",
    [
        {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256", "kid": "k"},
        issuer.jwk(issuer.RSA, "k", alg="PS256"),
        issuer.jwk(issuer.RSA, "k", alg="HS256"),
        issuer.jwk(issuer.RSA, "k", use="enc"),
        issuer.jwk(issuer.RSA, "k", key_ops=["encrypt"]),
        issuer.jwk(issuer.SHORT_RSA, "k"),
        issuer.jwk(issuer.EC384, "k"),
        issuer.jwk(issuer.EC, "k", crv="secp256k1"),
        issuer.jwk(issuer.EC, "k", x=issuer.b64(b"\1" * 32)),
        issuer.jwk(issuer.EC, "k", alg="RS256"),
        issuer.jwk(issuer.ED, "k", crv="Ed448"),
        issuer.jwk(issuer.ED, "k", x="AA"),
        issuer.jwk(issuer.RSA, "k", n="%%%"),
        issuer.jwk(issuer.RSA, 7),
        {"kty": "RSA", "n": "", "e": "", "kid": "k"},
        {"kid": "k"},
        [],
        None,
    ],
    ids=range(18),
)
def test_an_unusable_key_is_skipped_and_the_others_stay(row):
    good = issuer.jwk(issuer.ED, "good")
    assert set(parse_keys(issuer.jwks(row, good))) == {("EdDSA", "good")}
    with pytest.raises(ValueError, match="no key"):
        parse_keys(issuer.jwks(row))


def test_only_the_public_part_of_a_key_is_read():
    private = issuer.jwk(issuer.EC, "k") | {"d": issuer.b64(issuer.EC.private_numbers().private_value.to_bytes(32))}
    (key,) = parse_keys(issuer.jwks(private | {"x5u": "https://evil.example", "x5c": ["?"]})).values()
    assert not hasattr(key, "private_numbers")


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text(max_size=3), st.lists).map(lambda v: json.dumps({"keys": v}).encode())
)
def test_any_answer_of_a_host_gives_keys_or_a_value_error(text):
    with pytest.raises(ValueError, match=r"no (JWK set|key)"):
        parse_keys(text)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"keys":' + b"[" * 100_000, b'{"keys":[' + b'{"a":' * 50_000])
def test_deeply_nested_keys_are_refused(text):
    with pytest.raises(ValueError, match=r"too long|no JWK set"):
        parse_keys(text)


@pytest.mark.rule("14-keys")
def test_keys_are_bounded_in_bytes_and_number():
    with pytest.raises(ValueError, match="too long"):
        parse_keys(issuer.JWKS + b" " * MAX_JWKS_BYTES)
    rows = [issuer.jwk(issuer.ED, f"k{n}") for n in range(MAX_KEYS + 5)]
    assert len(parse_keys(issuer.jwks(*rows))) == MAX_KEYS


@pytest.mark.rule("14-keys")
def test_unknown_keys_cause_at_most_one_fetch_in_thirty_seconds():
    world = World()
    assert world.find()
    world.text = issuer.jwks(issuer.jwk(issuer.RSA, "new"))
    assert [world.find("new") for _ in range(5)] == [None] * 5
    assert world.loads == 1
    world.now_s += REFRESH_S
    assert world.find("new")
    assert world.find("key-RS256") is None
    assert world.loads == 2


def test_concurrent_look_ups_share_one_fetch():
    world = World()

    async def together():
        return await asyncio.gather(*(world.keys.find("RS256", "key-RS256") for _ in range(50)))

    assert all(asyncio.run(together()))
    assert world.loads == 1


def test_a_withdrawn_key_is_dropped_after_ten_minutes():
    world = World()
    assert world.find()
    world.text = issuer.jwks(issuer.jwk(issuer.ED, "other"))
    world.now_s += MAX_AGE_S
    assert world.find()
    world.now_s += 1
    assert world.find() is None


@pytest.mark.parametrize("failure", [OSError("gone"), TimeoutError(), b"nonsense", b'{"keys":[]}'], ids=str)
def test_failed_fetches_keep_the_known_keys(failure, caplog):
    world = World()
    assert world.find()
    world.text, world.now_s = failure, world.now_s + MAX_AGE_S + 1
    assert [bool(world.find()) for _ in range(5)] == [True] * 5
    assert world.loads == 2
    assert "cannot be read" in caplog.text


def test_a_key_file_is_read_no_further_than_the_limit(tmp_path):
    path = tmp_path / "keys.json"
    path.write_bytes(issuer.JWKS)
    assert read_file(path) == issuer.JWKS
    path.write_bytes(b" " * (2 * MAX_JWKS_BYTES))
    assert len(read_file(path)) == MAX_JWKS_BYTES + 1
    assert World(text=FileNotFoundError("no")).find() is None


@pytest.mark.rule("14-keys")
@pytest.mark.parametrize(
    "place",
    [
        "https://evil.example/keys",
        "https://issuer.example.evil/keys",
        "https://issuer.example:444/keys",
        "http://issuer.example/keys",
        "https://issuer.example@evil.example/keys",
        "https://ann:secret@issuer.example/keys",
        "https://issuer.example:x/keys",
        "https://[issuer.example/keys",
        "https:///keys",
        "https://issuer.example/keys#x",
        "https://issuer.example/\nkeys",
        "file:///etc/passwd",
        "ftp://issuer.example/keys",
    ],
)
def test_keys_at_another_host_than_the_issuers_are_refused(place):
    with pytest.raises(InvalidArgs) as caught:
        open_source("https://issuer.example", place)
    assert "secret" not in str(caught.value)


def test_the_issuers_host_matches_in_any_case_and_a_path_is_a_file(tmp_path):
    place = "https://issuer.EXAMPLE:443/keys"
    assert open_source("https://Issuer.example/realm", place).args == (place,)
    path = tmp_path / "keys.json"
    path.write_bytes(issuer.JWKS)
    assert asyncio.run(open_source("https://issuer.example", str(path))()) == issuer.JWKS


def serve(handle):
    return asyncio.run(fetch(URL, httpx.MockTransport(handle)))


class Endless(httpx.AsyncByteStream):
    sent = 0

    async def __aiter__(self):
        while True:
            self.sent += 1 << 16
            yield b" " * (1 << 16)


def test_a_host_answers_with_keys():
    assert serve(lambda _request: httpx.Response(200, stream=httpx.ByteStream(issuer.JWKS))) == issuer.JWKS


@pytest.mark.rule("14-keys")
def test_no_redirect_is_followed():
    asked = []

    def handle(request):
        asked.append(str(request.url))
        return httpx.Response(302, headers={"location": "https://evil.example/keys"})

    with pytest.raises(OSError, match="302"):
        serve(handle)
    assert asked == [URL]


@pytest.mark.rule("14-keys")
def test_an_endless_answer_is_read_no_further_than_the_limit():
    endless = Endless()
    assert len(serve(lambda _request: httpx.Response(200, stream=endless))) > MAX_JWKS_BYTES
    assert endless.sent <= 2 * MAX_JWKS_BYTES


@pytest.mark.rule("14-keys")
def test_a_silent_host_times_out(monkeypatch):
    monkeypatch.setattr("tensorwasm.tenancy.oidc.FETCH_S", 0.01)

    async def never(_request):
        await asyncio.Event().wait()

    with pytest.raises(OSError):  # noqa: PT011 - a timeout has no message
        serve(never)


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("x"), httpx.ReadTimeout("x"), httpx.RemoteProtocolError("x")], ids=repr
)
def test_every_network_failure_is_an_os_error(error):
    def handle(_request):
        raise error

    with pytest.raises(OSError, match=type(error).__name__):
        serve(handle)


@pytest.mark.parametrize(
    "answer", [httpx.Response(404), httpx.Response(200, headers={"content-encoding": "gzip"}, content=b"")]
)
def test_errors_and_compressed_answers_are_no_keys(answer):
    with pytest.raises(OSError, match="replies"):
        serve(lambda _request: answer)
