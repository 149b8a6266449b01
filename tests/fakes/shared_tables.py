"""Shared tables as several processes see them, in one process."""

import itertools
import os
import threading
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


class Stepping:
    """Runs functions on threads of which one runs at a time, up to its next access to shared memory."""

    def __init__(self):
        self._stopped = threading.Semaphore(0)
        self._local = threading.local()
        self._errors = []

    def start(self, functions):
        self._turns = [threading.Semaphore(0) for _ in functions]
        self._ended = [False] * len(functions)
        self._threads = [threading.Thread(target=self._run, args=each) for each in enumerate(functions)]
        for thread in self._threads:
            thread.start()

    def _run(self, number, function):
        self._local.number = number
        self._turns[number].acquire()
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self._errors.append(error)
        self._ended[number] = True
        self._stopped.release()

    def step(self):
        """An access comes: let others run before it."""
        number = getattr(self._local, "number", None)
        if number is not None:
            self._stopped.release()
            self._turns[number].acquire()

    def resume(self, number):
        if not self._ended[number]:
            self._turns[number].release()
            self._stopped.acquire()

    def finish(self):
        """Run all to their ends, in turn, and raise what one raised."""
        while not all(self._ended):
            for number in range(len(self._threads)):
                self.resume(number)
        for thread in self._threads:
            thread.join()
        for error in self._errors:
            raise error


class SteppedWords:
    """A view of shared memory that lets others run before each write."""

    def __init__(self, view, step):
        self._view = view
        self._step = step

    def __getitem__(self, place):
        return self._view[place]

    def __setitem__(self, place, value):
        self._step()
        self._view[place] = value

    def release(self):
        self._view.release()


class SteppedLock:
    """A lock of all processes: the others run on while one waits for it."""

    def __init__(self, step):
        self._step = step
        self._held = False

    def __enter__(self):
        self._step()
        while self._held:
            self._step()
        self._held = True

    def __exit__(self, *error):
        self._held = False
