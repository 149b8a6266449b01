"""Queries of tokens and tenants, on each database."""

import dataclasses
import itertools

import pytest
from sqlalchemy import select

from tensorwasm.database import identity
from tensorwasm.database.identity import TenantRecord, TokenRecord, read_revision, take_revision
from tensorwasm.database.schema import TOKENS
from tensorwasm.tenancy.authentication import mint
from tensorwasm.tenancy.principal import MAX_TENANT

_times = itertools.count(1000)


def token(**fields):
    minted = mint()
    usual = {"name": "n", "tenants": frozenset({1}), "scopes": frozenset({"invoke"}), "created_unix_ms": next(_times)}
    return TokenRecord(id=minted.id, digest=minted.digest, **usual | fields)


def everyone(_record):
    return True


@pytest.fixture
def add(executor):
    return lambda **fields: executor.write_now(identity.add_token, token(**fields))


@pytest.mark.parametrize("chosen", [None, frozenset({0}), frozenset({1, MAX_TENANT, 1 << 63})])
def test_a_token_is_found_as_it_was_written(executor, add, chosen):
    record = add(tenants=chosen, scopes=frozenset({"admin", "invoke"}), expires_unix_ms=5, replaces="other")
    assert record.revision == 1
    assert executor.read_now(identity.find_token, record.id) == record
    assert executor.read_now(identity.find_token, "none") is None
    assert executor.write_now(identity.find_token, record.id, lock=True) == record


@pytest.mark.rule("14-hashed")
def test_only_the_digest_of_a_token_is_stored(executor):
    minted = mint()
    executor.write_now(identity.add_token, dataclasses.replace(token(), id=minted.id, digest=minted.digest))
    row = executor.read_now(lambda connection: connection.execute(select(TOKENS)).one())
    assert minted.text.split("_", 2)[2] not in repr(tuple(row))
    assert row.digest == minted.digest


def test_every_change_takes_the_next_revision_and_is_listed_after_the_one_before(executor, add):
    assert executor.read_now(read_revision) == 0
    first, second = add(), add()
    assert [executor.read_now(read_revision), first.revision, second.revision] == [2, 1, 2]
    ended = executor.write_now(identity.end_token, first, expires_unix_ms=None, revoked_unix_ms=7)
    assert (ended.revision, ended.revoked_unix_ms) == (3, 7)
    assert executor.read_now(identity.find_token, first.id) == ended
    assert executor.read_now(identity.changed_tokens, 2, 0) == [ended]
    assert executor.read_now(identity.changed_tokens, 0, 0) == [second]
    executor.write_now(take_revision)
    assert executor.read_now(identity.changed_tokens, 3, 0) == []


def test_a_transaction_that_is_undone_takes_no_revision(executor, add):
    add()

    def fail(connection):
        take_revision(connection)
        raise LookupError

    with pytest.raises(LookupError):
        executor.write_now(fail)
    assert executor.read_now(read_revision) == 1


def test_selected_tokens_are_listed_in_order_page_by_page(executor, add):
    made = [add(created_unix_ms=5 + n // 3) for n in range(9)]
    order = sorted(made, key=lambda each: (each.created_unix_ms, each.id))
    assert executor.read_now(identity.list_tokens, None, 100, everyone) == order
    assert executor.read_now(identity.list_tokens, order[2].id, 3, everyone) == order[3:6]
    assert executor.read_now(identity.list_tokens, None, 2, lambda record: record in order[4:]) == order[4:6]
    assert executor.read_now(identity.list_tokens, "none", 3, everyone) == []


def test_live_tokens_are_neither_revoked_nor_expired(executor, add):
    assert not executor.read_now(identity.has_live_token, 100)
    add(expires_unix_ms=100)
    add(revoked_unix_ms=50)
    assert not executor.read_now(identity.has_live_token, 100)
    assert executor.read_now(identity.has_live_token, 99)
    assert {each.live(99) for each in executor.read_now(identity.changed_tokens, 0, 99)} == {True}


def test_replaced_tokens_are_known(executor, add):
    old = add()
    assert not executor.read_now(identity.is_replaced, old.id)
    add(replaces=old.id)
    assert executor.read_now(identity.is_replaced, old.id)


def test_only_long_dead_tokens_are_erased(executor, add):
    kept = [add(), add(expires_unix_ms=100), add(revoked_unix_ms=100)]
    add(expires_unix_ms=99)
    add(revoked_unix_ms=99)
    assert executor.write_now(identity.erase_dead_tokens, 100) == 2
    left = executor.read_now(identity.list_tokens, None, 9, everyone)
    assert {each.id for each in left} == {each.id for each in kept}


NUMBERS = [0, 2, 7, 10, 1 << 63, MAX_TENANT]


@pytest.fixture
def six(executor):
    for number in reversed(NUMBERS):
        executor.write_now(identity.add_tenant, TenantRecord(tenant=number, created_unix_ms=1))


def numbers(records):
    return [record.tenant for record in records]


def test_a_tenant_is_found_as_it_was_written_and_changed(executor):
    quotas = {"memory_bytes": (1 << 63) - 1, "qps": 0}
    record = TenantRecord(tenant=MAX_TENANT, name="Ünï", weight=9, quotas=quotas, created_unix_ms=5)
    written = executor.write_now(identity.add_tenant, record)
    assert executor.read_now(identity.find_tenant, MAX_TENANT) == written
    changed = executor.write_now(identity.change_tenant, dataclasses.replace(written, disabled=True, quotas={}))
    assert executor.write_now(identity.find_tenant, MAX_TENANT, lock=True) == changed
    assert (changed.disabled, changed.revision) == (True, 2)
    assert executor.read_now(identity.find_tenant, 1) is None


@pytest.mark.usefixtures("six")
def test_requested_tenants_are_listed_by_number_page_by_page(executor):
    def listed(after, limit, among=None):
        return numbers(executor.read_now(identity.list_tenants, after, limit, among))

    assert listed(None, 100) == NUMBERS
    assert listed(2, 3) == NUMBERS[2:5]
    assert listed(8, 100) == NUMBERS[3:]
    assert listed(MAX_TENANT, 100) == []
    assert listed(None, 100, {10, 2, 3, MAX_TENANT}) == [2, 10, MAX_TENANT]
    assert listed(2, 1, {10, 2, MAX_TENANT}) == [10]
    assert listed(None, 100, set()) == []
    assert listed(None, 5, frozenset(range(2000)) | {MAX_TENANT}) == [0, 2, 7, 10, MAX_TENANT]


@pytest.mark.usefixtures("six")
def test_changed_tenants_are_listed_after_the_revision_before(executor):
    assert set(numbers(executor.read_now(identity.changed_tenants, 0))) == set(NUMBERS)
    assert set(numbers(executor.read_now(identity.changed_tenants, 4))) == {0, 2}
    assert executor.read_now(identity.changed_tenants, 6) == []
