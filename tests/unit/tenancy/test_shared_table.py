"""The table that all serving processes share: keys, incarnations and rows, and what a dead process leaves."""

import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.shared_tables import full_set, tables
from tensorwasm.tenancy.quotas import QUOTAS
from tensorwasm.tenancy.shared_table import AMOUNTS, COUNTERS, MAX_ROWS, SharedTable, clear_row, create_table


def encoded(number):
    return repr(number).encode()


def stays(_record, _incarnation):
    return math.inf


def opened(view, key, lacks=stays):
    """The record of a key and its incarnation, joined by a view's row."""
    with view.exclusive():
        record = view.accounts.find(key, lacks)
        if record is None:
            return None
        incarnation = view.accounts.join(record)
        if not incarnation:
            incarnation = view.accounts.begin(record)
            view.accounts.publish(record, incarnation)
        return record, incarnation


def test_columns_are_as_many_as_quotas():
    assert len(QUOTAS) == AMOUNTS


@pytest.mark.parametrize("rows", [0, -1, MAX_ROWS + 1])
def test_a_table_has_a_possible_number_of_rows(rows):
    with pytest.raises(ValueError, match="rows"):
        create_table(rows)


def test_a_table_takes_little_memory_until_it_is_used():
    with tables(MAX_ROWS) as (descriptor, _):
        assert os.fstat(descriptor).st_blocks * 512 < 1 << 20


def test_a_view_is_of_a_row_that_the_table_has():
    with tables(2) as (descriptor, _):
        with pytest.raises(ValueError, match="no row 2"):
            SharedTable(descriptor, 2, 2)
        with pytest.raises(ValueError, match="has 2 rows"):
            SharedTable(descriptor, 1, 0)


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=8)), max_size=60))
def test_all_rows_find_one_record_for_a_key(asks):
    with tables(3) as (_, views):
        records = {}
        for row, key in asks:
            found = opened(views[row], key)
            assert records.setdefault(key, found) == found
        assert len(set(records.values())) == len(records)
        assert sorted(record for record, _ in records.values()) == list(views[0].accounts.used())


def test_a_full_set_drops_what_may_be_dropped_and_else_has_no_room():
    with tables(2) as (_, views):
        *keys, last = map(encoded, full_set(views[0], views[0].accounts))
        records = [opened(views[0], key) for key in keys]
        assert opened(views[1], last) is None
        victim, incarnation = records[7]
        replaced = opened(views[1], last, lambda record, _: 0.5 if record == victim else 1.0)
        assert replaced[0] == victim
        assert replaced[1] > incarnation
        assert opened(views[0], keys[8]) == records[8]
        assert opened(views[0], keys[7]) is None


def test_a_record_that_came_into_use_while_it_was_judged_stays():
    with tables(1) as (_, views):
        *keys, last = map(encoded, full_set(views[0], views[0].accounts))
        records = [opened(views[0], key) for key in keys]
        looks = []

        def lacks(record, _):
            looks.append(record)
            return 0.0 if looks.count(record) == 1 else math.inf

        assert opened(views[0], last, lacks) is None
        assert [opened(views[0], key) for key in keys] == records


def test_what_a_process_left_half_added_begins_anew():
    with tables(2) as (_, views):
        with views[0].exclusive():
            record = views[0].accounts.find(b"key", stays)
            views[0].accounts.begin(record)  # and dies before it publishes it
        assert opened(views[1], b"key")[0] == record


def test_words_of_an_earlier_incarnation_are_cleared_by_their_own_process():
    with tables(2) as (_, views):
        *keys, last = map(encoded, full_set(views[0], views[0].accounts))
        for key in keys:
            opened(views[0], key)
        record, _ = opened(views[1], keys[0])
        word = record + views[1].accounts.column(0) + 1
        views[1].words[word] = 5
        assert opened(views[0], last, lambda other, _: 0.0 if other == record else math.inf)[0] == record
        assert views[0].words[word] == 5  # nobody writes another's words
        _, incarnation = opened(views[1], last)
        assert views[0].words[word] == 0
        assert views[0].words[record + views[0].accounts.column(-1) + 1] == incarnation


def test_a_cleared_row_holds_nothing_and_keeps_its_counters():
    with tables(2) as (descriptor, views):
        accounts = views[0].accounts
        record, incarnation = opened(views[1], b"tenant")
        opened(views[0], b"tenant")
        for view in views:
            view.publish_total(9)
            for number in range(AMOUNTS + COUNTERS):
                view.words[record + accounts.column(number) + view.row] = 7
        clear_row(descriptor, 1)
        assert views[0].others_total() == 0
        assert views[1].others_total() == 9
        for number in range(AMOUNTS + COUNTERS):
            column = record + accounts.column(number)
            assert list(views[0].words[column : column + 2]) == [7, 0 if number < AMOUNTS else 7]
        assert opened(views[1], b"tenant") == (record, incarnation)
        assert views[1].words[record + accounts.column(AMOUNTS) + 1] == 7


def test_a_cleared_row_of_a_rate_limit_stays():
    with tables(1) as (descriptor, views):
        buckets = views[0].buckets
        with views[0].exclusive():
            record = buckets.find(b"key", stays)
            buckets.publish(record, buckets.begin(record))
        views[0].words[record + buckets.column(0)] = 3
        clear_row(descriptor, 0)
        assert views[0].words[record + buckets.column(0)] == 3
