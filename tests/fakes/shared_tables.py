"""Shared tables as several processes see them, in one process."""

import itertools
import os
from contextlib import contextmanager

from tensorwasm.tenancy.shared_table import WAYS, SharedTable, create_table


@contextmanager
def tables(rows):
    """Each row's view of one table, as its process would have it; with the descriptor."""
    descriptor = create_table(rows)
    views = [SharedTable(descriptor, rows, row) for row in range(rows)]
    try:
        yield descriptor, views
    finally:
        for view in views:
            view.close()
        os.close(descriptor)


def full_set(view, records):
    """Numbers whose reprs have their records in one set, as many as it has room for, and one more."""
    sets = {}
    for number in itertools.count():
        numbers = sets.setdefault(view.hash(repr(number).encode()) % records._sets, [])
        numbers.append(number)
        if len(numbers) > WAYS:
            return numbers
    raise AssertionError
