"""The table of tokens has exactly those that are live."""

from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.database.identity import TokenRecord
from tensorwasm.tenancy.authentication import TokenTable, digest, parse_tokens
from tensorwasm.tenancy.principal import USER_SCOPES

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
def test_the_table_has_each_tokens_last_record_while_it_is_live(steps, now_unix_ms):
    table, last = TokenTable(parse_tokens(f"{TOKEN}:tenant=9")), {}
    for number, expires, revoked in steps:
        last[number] = record(number, expires, revoked)
        table.enter(last[number], now_unix_ms)
    live = {each.digest for each in last.values() if each.live(now_unix_ms)}
    assert {each for each in map(digest, (f"token {n}" for n in range(5))) if table.find(each)} == live
    assert len(table) == len(live) + 1
    table.sweep(now_unix_ms + 10)
    assert len(table) == sum(last[n].live(now_unix_ms + 10) for n in last if last[n].digest in live) + 1
    table.clear()
    assert len(table) == 1
    assert table.find(digest(TOKEN))


def test_a_token_of_the_database_never_replaces_one_of_the_operators_list():
    table = TokenTable(parse_tokens(f"{TOKEN}:tenant=9"))
    table.enter(record(1, text=TOKEN), 0)
    table.enter(record(1, text=TOKEN, revoked_unix_ms=1), 0)
    assert table.find(digest(TOKEN)).tenants == {9}


def test_unknown_scopes_are_left_out():
    table = TokenTable()
    table.enter(record(1, scopes=frozenset({"invoke", "of:tomorrow"})), 0)
    assert table.find(digest("token 1")).scopes == {"invoke"}
