"""Queries of tokens and tenants, on each database."""

import dataclasses
import itertools

import pytest
from sqlalchemy import select

from tensorwasm.database import tenants, tokens
from tensorwasm.database.revisions import read_revision, take_revision
from tensorwasm.database.schema import TOKENS
from tensorwasm.database.tenants import TenantRecord
from tensorwasm.database.tokens import TokenRecord
from tensorwasm.tenancy.principal import MAX_TENANT
from tensorwasm.tenancy.tokens import mint

_times = itertools.count(1000)


def token(**fields):
    minted = mint()
    usual = {"name": "n", "tenants": frozenset({1}), "scopes": frozenset({"invoke"}), "created_unix_ms": next(_times)}
    return TokenRecord(id=minted.id, digest=minted.digest, **usual | fields)


def everyone(_record):
    return True


@pytest.fixture
def add(desk):
    return lambda **fields: desk.write_now(tokens.add_token, token(**fields))


@pytest.mark.parametrize("chosen", [None, frozenset({0}), frozenset({1, MAX_TENANT, 1 << 63})])
def test_a_token_is_found_as_it_was_written(desk, add, chosen):
    record = add(tenants=chosen, scopes=frozenset({"admin", "invoke"}), expires_unix_ms=5, replaces="other")
    assert record.revision == 1
    assert desk.read_now(tokens.find_token, record.id) == record
    assert desk.read_now(tokens.find_token, "none") is None
    assert desk.write_now(tokens.find_token, record.id, lock=True) == record


@pytest.mark.rule("14-hashed")
def test_no_column_has_more_of_a_token_than_its_digest(desk):
    minted = mint()
    desk.write_now(tokens.add_token, dataclasses.replace(token(), id=minted.id, digest=minted.digest))
    row = desk.read_now(lambda connection: connection.execute(select(TOKENS)).one())
    assert minted.text.split("_", 2)[2] not in repr(tuple(row))
    assert row.digest == minted.digest


def test_every_change_takes_the_next_revision_and_is_seen_by_who_saw_the_one_before(desk, add):
    assert desk.read_now(read_revision) == 0
    first, second = add(), add()
    assert [desk.read_now(read_revision), first.revision, second.revision] == [2, 1, 2]
    ended = desk.write_now(tokens.end_token, first, expires_unix_ms=None, revoked_unix_ms=7)
    assert (ended.revision, ended.revoked_unix_ms) == (3, 7)
    assert desk.read_now(tokens.find_token, first.id) == ended
    assert desk.read_now(tokens.changed_tokens, 2, 0) == [ended]
    assert desk.read_now(tokens.changed_tokens, 0, 0) == [second]
    desk.write_now(take_revision)
    assert desk.read_now(tokens.changed_tokens, 3, 0) == []


def test_a_transaction_that_is_undone_takes_no_revision(desk, add):
    add()

    def fail(connection):
        take_revision(connection)
        raise LookupError

    with pytest.raises(LookupError):
        desk.write_now(fail)
    assert desk.read_now(read_revision) == 1


def test_tokens_are_listed_in_their_order_page_by_page_as_far_as_they_are_shown(desk, add):
    made = [add(created_unix_ms=5 + n // 3) for n in range(9)]
    order = sorted(made, key=lambda each: (each.created_unix_ms, each.id))
    assert desk.read_now(tokens.list_tokens, None, 100, everyone) == order
    assert desk.read_now(tokens.list_tokens, order[2].id, 3, everyone) == order[3:6]
    assert desk.read_now(tokens.list_tokens, None, 2, lambda record: record in order[4:]) == order[4:6]
    assert desk.read_now(tokens.list_tokens, "none", 3, everyone) == []


def test_live_tokens_are_neither_revoked_nor_past_their_end(desk, add):
    assert not desk.read_now(tokens.has_live_token, 100)
    add(expires_unix_ms=100)
    add(revoked_unix_ms=50)
    assert not desk.read_now(tokens.has_live_token, 100)
    assert desk.read_now(tokens.has_live_token, 99)
    assert {each.live(99) for each in desk.read_now(tokens.changed_tokens, 0, 99)} == {True}


def test_replaced_tokens_are_known(desk, add):
    old = add()
    assert not desk.read_now(tokens.is_replaced, old.id)
    add(replaces=old.id)
    assert desk.read_now(tokens.is_replaced, old.id)


def test_tokens_that_are_dead_for_long_are_erased_and_no_others(desk, add):
    kept = [add(), add(expires_unix_ms=100), add(revoked_unix_ms=100)]
    add(expires_unix_ms=99)
    add(revoked_unix_ms=99)
    assert desk.write_now(tokens.erase_dead_tokens, 100) == 2
    assert {each.id for each in desk.read_now(tokens.list_tokens, None, 9, everyone)} == {each.id for each in kept}


NUMBERS = [0, 2, 7, 10, 1 << 63, MAX_TENANT]


@pytest.fixture
def six(desk):
    for number in reversed(NUMBERS):
        desk.write_now(tenants.add_tenant, TenantRecord(tenant=number, created_unix_ms=1))


def numbers(records):
    return [record.tenant for record in records]


def test_a_tenant_is_found_as_it_was_written_and_changed(desk):
    quotas = {"memory_bytes": (1 << 63) - 1, "qps": 0}
    record = TenantRecord(tenant=MAX_TENANT, name="Ünï", weight=9, quotas=quotas, created_unix_ms=5)
    written = desk.write_now(tenants.add_tenant, record)
    assert desk.read_now(tenants.find_tenant, MAX_TENANT) == written
    changed = desk.write_now(tenants.change_tenant, dataclasses.replace(written, disabled=True, quotas={}))
    assert desk.write_now(tenants.find_tenant, MAX_TENANT, lock=True) == changed
    assert (changed.disabled, changed.revision) == (True, 2)
    assert desk.read_now(tenants.find_tenant, 1) is None


@pytest.mark.usefixtures("six")
def test_tenants_are_listed_by_number_page_by_page_among_those_that_are_asked_for(desk):
    def listed(after, limit, among=None):
        return numbers(desk.read_now(tenants.list_tenants, after, limit, among))

    assert listed(None, 100) == NUMBERS
    assert listed(2, 3) == NUMBERS[2:5]
    assert listed(8, 100) == NUMBERS[3:]
    assert listed(MAX_TENANT, 100) == []
    assert listed(None, 100, {10, 2, 3, MAX_TENANT}) == [2, 10, MAX_TENANT]
    assert listed(2, 1, {10, 2, MAX_TENANT}) == [10]
    assert listed(None, 100, set()) == []
    assert listed(None, 5, frozenset(range(2000)) | {MAX_TENANT}) == [0, 2, 7, 10, MAX_TENANT]


@pytest.mark.usefixtures("six")
def test_tenants_that_changed_are_seen_by_who_saw_the_revision_before(desk):
    assert set(numbers(desk.read_now(tenants.changed_tenants, 0))) == set(NUMBERS)
    assert set(numbers(desk.read_now(tenants.changed_tenants, 4))) == {0, 2}
    assert desk.read_now(tenants.changed_tenants, 6) == []
