"""The roll of good tokens: exactly those that are live."""

from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.database.tokens import TokenRecord
from tensorwasm.tenancy.principal import USER_SCOPES
from tensorwasm.tenancy.roll import Roll
from tensorwasm.tenancy.tokens import digest, parse_tokens

TOKEN = "operators-own-token-0001"


def record(number, expires_unix_ms=None, revoked_unix_ms=None, text=None, scopes=USER_SCOPES):
    return TokenRecord(
        id=str(number),
        digest=digest(text or f"token {number}"),
        name="",
        tenants=frozenset({number}),
        scopes=scopes,
        created_unix_ms=0,
        expires_unix_ms=expires_unix_ms,
        revoked_unix_ms=revoked_unix_ms,
    )


ends = st.one_of(st.none(), st.integers(1, 20))
steps = st.lists(st.tuples(st.integers(0, 4), ends, ends), max_size=30)


@given(steps, st.integers(0, 20))
def test_it_has_the_last_record_of_each_token_while_that_is_live(steps, now_unix_ms):
    roll, last = Roll(parse_tokens(f"{TOKEN}:tenant=9")), {}
    for number, expires, revoked in steps:
        last[number] = record(number, expires, revoked)
        roll.enter(last[number], now_unix_ms)
    live = {each.digest for each in last.values() if each.live(now_unix_ms)}
    assert {each for each in map(digest, (f"token {n}" for n in range(5))) if roll.find(each)} == live
    assert len(roll) == len(live) + 1
    roll.sweep(now_unix_ms + 10)
    assert len(roll) == sum(last[n].live(now_unix_ms + 10) for n in last if last[n].digest in live) + 1
    roll.clear()
    assert len(roll) == 1
    assert roll.find(digest(TOKEN))


def test_no_token_of_the_database_takes_the_place_of_one_of_the_operators_list():
    roll = Roll(parse_tokens(f"{TOKEN}:tenant=9"))
    roll.enter(record(1, text=TOKEN), 0)
    roll.enter(record(1, text=TOKEN, revoked_unix_ms=1), 0)
    assert roll.find(digest(TOKEN)).tenants == {9}


def test_scopes_that_this_release_does_not_know_are_left_out():
    roll = Roll()
    roll.enter(record(1, scopes=frozenset({"invoke", "of:tomorrow"})), 0)
    assert roll.find(digest("token 1")).scopes == {"invoke"}
