"""From a header to a principal: exact, immediate for known tokens, and bounded under floods."""

import asyncio
import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strategies.identity import strong_tokens
from tensorwasm.database.identity import TokenRecord
from tensorwasm.errors import DatabaseUnavailable, RateLimited, Unauthorized
from tensorwasm.tenancy.authentication import (
    JWT_CACHE_MS,
    MAX_FORGERIES,
    MAX_HEADER,
    MAX_SLOW,
    Authenticator,
    TokenTable,
    digest,
    mint,
    parse_tokens,
)
from tensorwasm.tenancy.principal import USER_SCOPES, Principal

TOKEN = "operators-own-token-0001"
JWT = "aaaa.bbbb.cccc"


class World:
    """A table of tokens, a database that others write to, an issuer, and a clock."""

    def __init__(self, listed="", publishers=frozenset(), verifier=None, **options):
        self.now_unix_ms = 1_000_000
        self.looks = 0
        self.written = []
        self.gate = None
        self.tokens = TokenTable(parse_tokens(listed), publishers)
        self.auth = Authenticator(
            self.tokens, self.catch_up, verifier=verifier, now_unix_ms=lambda: self.now_unix_ms, **options
        )

    async def catch_up(self):
        self.looks += 1
        if self.gate is not None:
            await self.gate.wait()
        for record in self.written:
            self.tokens.enter(record, self.now_unix_ms)

    def make(self, **fields):
        minted = mint()
        values = {"name": "n", "tenants": frozenset({7}), "scopes": USER_SCOPES, "created_unix_ms": 0}
        return minted.text, TokenRecord(id=minted.id, digest=minted.digest, **values | fields)


class Issuer:
    def __init__(self):
        self.good = {JWT: Principal("oidc", "issuer#ann", frozenset({1}), expires_unix_ms=2_000_000)}
        self.asked = 0

    async def verify(self, token):
        self.asked += 1
        if token not in self.good:
            raise Unauthorized("no")
        return self.good[token]


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "bEaReR   ", "Bearer  "])
def test_the_scheme_is_read_in_any_case_and_the_token_exactly(scheme):
    world = World(f"{TOKEN}:tenant=7")
    assert world.auth.authenticate(scheme + TOKEN) == Principal("bearer", "env:1", frozenset({7}))


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer{TOKEN}",
        f" Bearer {TOKEN}",
        f"Bearer {TOKEN} ",
        f"Bearer {TOKEN}, {TOKEN}",
        f"Bearer {TOKEN}\n",
        f"Bearer\t{TOKEN}",
        f"Bearer {TOKEN}\x00",
        f"Bearer {TOKEN}é",
        "Bearer \udcff",
        "Bearer " + "a" * MAX_HEADER,
    ],
)
def test_other_headers_are_refused_at_once_with_one_message(header):
    world = World(f"{TOKEN}:tenant=7")
    with pytest.raises(Unauthorized) as caught:
        world.auth.authenticate(header)
    assert TOKEN not in str(caught.value)
    assert world.looks == 0


pieces = st.one_of(
    st.sampled_from(["Bearer ", "bearer", " ", TOKEN, TOKEN[:12], TOKEN[12:], TOKEN.upper(), "=", ",", "\t"]),
    st.text(max_size=3),
)


@given(st.lists(pieces, max_size=5).map("".join))
@example(f"Bearer  {TOKEN}")
def test_a_header_is_accepted_only_as_scheme_spaces_and_token(header):
    world = World(f"{TOKEN}:tenant=7")
    try:
        found = world.auth.authenticate(header)
    except Unauthorized:
        found = None
    assert (found is not None) == (re.fullmatch(f"(?i:bearer) +{TOKEN}", header, re.ASCII) is not None)


@given(strong_tokens)
def test_an_unknown_token_is_left_to_the_slow_path_which_refuses_it(token):
    world = World()
    assert world.auth.authenticate(f"Bearer {token}") is None
    with pytest.raises(Unauthorized):
        asyncio.run(world.auth.authenticate_slowly(f"Bearer {token}"))
    assert world.looks == 1


def test_another_processs_new_token_is_found_by_one_query():
    world = World()
    text, record = world.make()
    world.written.append(record)
    principal = asyncio.run(world.auth.authenticate_slowly(f"Bearer {text}"))
    assert principal == Principal("bearer", record.id, frozenset({7}), USER_SCOPES)
    assert world.auth.authenticate(f"Bearer {text}") is principal
    assert world.looks == 1


@pytest.mark.rule("14-ended")
def test_a_token_is_valid_until_its_end_exactly():
    world = World()
    text, record = world.make(expires_unix_ms=1_000_001)
    world.tokens.enter(record, world.now_unix_ms)
    assert world.auth.authenticate(f"Bearer {text}")
    world.now_unix_ms += 1
    with pytest.raises(Unauthorized):
        world.auth.authenticate(f"Bearer {text}")


def test_during_a_database_outage_known_tokens_work_and_others_get_the_reason():
    world = World(f"{TOKEN}:tenant=7")

    async def fail():
        raise DatabaseUnavailable("locked")

    auth = Authenticator(world.tokens, fail)
    assert auth.authenticate(f"Bearer {TOKEN}")
    with pytest.raises(DatabaseUnavailable):
        asyncio.run(auth.authenticate_slowly("Bearer unknown-unknown-unknown"))


def test_a_flood_of_unknown_tokens_is_bounded_and_harms_no_known_one():
    world = World(f"{TOKEN}:tenant=7")

    async def flood():
        world.gate = asyncio.Event()
        asks = [asyncio.ensure_future(world.auth.authenticate_slowly(f"Bearer {n:032}")) for n in range(1000)]
        await asyncio.sleep(0)
        assert world.looks == MAX_SLOW
        assert world.auth.authenticate(f"Bearer {TOKEN}")
        world.gate.set()
        return await asyncio.gather(*asks, return_exceptions=True)

    answers = asyncio.run(flood())
    assert sum(isinstance(each, Unauthorized) for each in answers) == MAX_SLOW
    assert sum(isinstance(each, RateLimited) for each in answers) == 1000 - MAX_SLOW
    assert len(world.tokens) == 1
    assert len(world.auth._verified) == 0
    assert world.auth._slow == 0


def test_a_cancelled_caller_makes_room_for_the_next():
    world = World()

    async def leave():
        world.gate = asyncio.Event()
        asks = [asyncio.ensure_future(world.auth.authenticate_slowly(f"Bearer {n:032}")) for n in range(MAX_SLOW)]
        await asyncio.sleep(0)
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)

    asyncio.run(leave())
    assert world.auth._slow == 0


def test_a_jwt_is_verified_again_after_five_minutes_and_refused_after_its_end():
    issuer = Issuer()
    world = World(verifier=issuer)
    header = f"Bearer {JWT}"
    assert world.auth.authenticate(header) is None
    principal = asyncio.run(world.auth.authenticate_slowly(header))
    assert world.auth.authenticate(header) is principal
    assert (issuer.asked, world.looks) == (1, 0)
    world.now_unix_ms += JWT_CACHE_MS
    assert world.auth.authenticate(header) is None
    asyncio.run(world.auth.authenticate_slowly(header))
    world.now_unix_ms = 2_000_000
    assert world.auth.authenticate(header) is None
    issuer.good.clear()
    with pytest.raises(Unauthorized):
        asyncio.run(world.auth.authenticate_slowly(header))


@pytest.mark.rule("14-ended")
def test_a_jwt_is_cached_until_its_end_exactly():
    issuer = Issuer()
    issuer.good[JWT] = Principal("oidc", "issuer#ann", expires_unix_ms=1_000_001)
    world = World(verifier=issuer)
    asyncio.run(world.auth.authenticate_slowly(f"Bearer {JWT}"))
    assert world.auth.authenticate(f"Bearer {JWT}")
    world.now_unix_ms += 1
    assert world.auth.authenticate(f"Bearer {JWT}") is None


def test_forged_jwts_are_limited_and_known_ones_still_work():
    issuer = Issuer()
    world = World(verifier=issuer)
    asyncio.run(world.auth.authenticate_slowly(f"Bearer {JWT}"))

    async def flood():
        asks = [world.auth.authenticate_slowly(f"Bearer a.b.{n}") for n in range(10 * MAX_FORGERIES)]
        return [await asyncio.gather(ask, return_exceptions=True) for ask in asks]

    answers = [answer for (answer,) in asyncio.run(flood())]
    assert sum(isinstance(each, Unauthorized) for each in answers) == MAX_FORGERIES
    assert issuer.asked == MAX_FORGERIES + 1
    assert world.auth.authenticate(f"Bearer {JWT}")
    assert len(world.auth._verified) == 1
    world.now_unix_ms += 1000
    with pytest.raises(Unauthorized):
        asyncio.run(world.auth.authenticate_slowly("Bearer a.b.c"))


def test_remembered_jwts_are_bounded(monkeypatch):
    monkeypatch.setattr(sys.modules[Authenticator.__module__], "JWT_CACHE", 3)
    issuer = Issuer()
    issuer.good = {f"a.b.{n}": Principal("oidc", str(n)) for n in range(10)}
    world = World(verifier=issuer)
    for token in issuer.good:
        asyncio.run(world.auth.authenticate_slowly(f"Bearer {token}"))
    assert [world.auth.authenticate(f"Bearer a.b.{n}") is not None for n in range(10)] == [False] * 7 + [True] * 3


def test_without_an_issuer_a_token_with_dots_is_like_any_other():
    world = World("own.token.with.dots-0001:tenant=7,own.token-with-two.dots:tenant=8")
    assert world.auth.authenticate("Bearer own.token-with-two.dots").tenants == {8}
    with pytest.raises(Unauthorized):
        asyncio.run(world.auth.authenticate_slowly(f"Bearer {JWT}"))


def test_dev_mode_allows_every_tenant_and_no_administration():
    world = World(developing=True)
    for header in (None, "Bearer x", "nonsense", f"Bearer {TOKEN}"):
        principal = world.auth.authenticate(header)
        assert (principal.kind, principal.tenants, principal.scopes) == ("dev", None, USER_SCOPES)
    assert asyncio.run(world.auth.authenticate_slowly(None)) is principal


def test_tokens_that_the_operator_named_may_publish_kernels():
    world = World(f"{TOKEN}:tenant=7", frozenset({digest(TOKEN)}))
    assert world.auth.authenticate(f"Bearer {TOKEN}").scopes == USER_SCOPES | {"kernels:publish"}
    text, record = world.make(scopes=frozenset({"invoke"}))
    world = World(publishers=frozenset({digest(text)}))
    world.tokens.enter(record, 0)
    assert world.auth.authenticate(f"Bearer {text}").scopes == {"invoke", "kernels:publish"}


@pytest.mark.rule("14-hashed")
def test_no_part_of_a_token_is_kept_in_memory():
    world = World(f"{TOKEN}:tenant=7")
    text, record = world.make()
    world.tokens.enter(record, 0)
    kept = repr((world.tokens._known, world.tokens._listed, world.tokens._digests, record))
    assert TOKEN not in kept
    assert text not in kept
    assert text.split("_", 2)[2] not in kept
