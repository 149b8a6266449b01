"""`SharedTable`: memory that all serving processes share, in which quotas and rate limits are added up over them.

The supervisor makes it (`create_table`), and every process inherits its descriptor and has a row of it. A row consists
of aligned words of 64 bits, which its process alone writes and all read, so that a word is never half written and no
process waits for another to use the table. Only what adds a key, or drops an old one for it, is exclusive: under a file
lock, which ends with its process. `clear_row` takes back what a process held that has died.

Only the standard library is imported, because the supervisor imports this.

::

    words of the file        number of rows, last incarnation, 16 bytes of secret; from TOTALS on a word for each row
    for each `SharedRecords` hash of each record's key, WAYS together; then the records themselves
    words of a record        HEAD for all rows; the incarnation that each row's words belong to;
                             for each column a word of each row; the record's own incarnation

A record whose key was replaced has another incarnation. A reader takes the words of a record in ascending order: rows'
incarnations, values, the record's. If the last one is what it expects, so were the values, because a process changes
the incarnation of its words only after that of the record.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MAX_ROWS: Final = 448
"""Most processes of a table."""

AMOUNTS: Final = 8
"""Columns of an account that `clear_row` clears: what its process holds, and what it has used and not yet reported."""

COUNTERS: Final = 5
"""Columns of an account after these, which stay."""

BUCKET_COLUMNS: Final = "qd"
ACCOUNT_COLUMNS: Final = "q" * (AMOUNTS + COUNTERS)

HEAD: Final = 3
"""Words at the start of a record that are the same for all rows, written by what adds the record."""

WAYS: Final = 32
"""Records that one key may have its place among."""

BUCKET_SETS: Final = 1 << 11
ACCOUNT_SETS: Final = 1 << 9

_WORD: Final = 8
_TOTALS: Final = 64  # words before those of the rows' totals
_HEADER_WORDS: Final = _TOTALS + MAX_ROWS  # a page
_ROWS, _INCARNATIONS, _SECRET = 0, 1, 2


def create_table(rows: int) -> int:
    """Return the descriptor of a new table, a file without a name that only takes memory where it is used.

    Args:
        rows: number of processes that use it at a time, from 1 to `MAX_ROWS`.
    """
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"a shared table has from 1 to {MAX_ROWS} rows, not {rows}")
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tensor-wasm-table")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, _WORD * _end_word(rows))
        os.pwrite(descriptor, struct.pack("qq", rows, 0) + os.urandom(2 * _WORD), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def clear_row(descriptor: int, row: int) -> None:
    """Clear what the process of a row held, which has died. What only ever grows stays, as the next process expects."""
    rows = struct.unpack("q", os.pread(descriptor, _WORD, 0))[0]
    table = SharedTable(descriptor, rows, row)
    try:
        table.publish_total(0)
        for record in table.accounts.used():
            table.accounts.clear(record, AMOUNTS)
    finally:
        table.close()


def _end_word(rows: int) -> int:
    return _HEADER_WORDS + sum(
        sets * WAYS * (1 + _record_words(columns, rows))
        for sets, columns in ((BUCKET_SETS, BUCKET_COLUMNS), (ACCOUNT_SETS, ACCOUNT_COLUMNS))
    )


def _record_words(columns: str, rows: int) -> int:
    return HEAD + (1 + len(columns)) * rows + 1


class SharedTable:
    """The table as one process sees it, which writes its own row.

    Args:
        descriptor: from `create_table`, perhaps inherited; it must stay open.
        rows: the number that the table was made with.
        row: of this process.

    Attributes:
        buckets: records of rate limits.
        accounts: records of what tenants hold and use.
    """

    def __init__(self, descriptor: int, rows: int, row: int) -> None:
        if not 0 <= row < rows:
            raise ValueError(f"a table of {rows} rows has no row {row}")
        self.rows = rows
        self.row = row
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._mapping = mmap.mmap(descriptor, _WORD * _end_word(rows))
        self.memory = memoryview(self._mapping)
        self.words = self.memory.cast("q")
        self.floats = self.memory.cast("d")
        if self.words[_ROWS] != rows:
            raise ValueError(f"the shared table has {self.words[_ROWS]} rows, not {rows}")
        self._secret = bytes(self.memory[_SECRET * _WORD : (_SECRET + 2) * _WORD])
        self._totals = struct.Struct(f"{rows}q")
        self.buckets = SharedRecords(self, _HEADER_WORDS, BUCKET_SETS, BUCKET_COLUMNS)
        self.accounts = SharedRecords(self, self.buckets.end_word, ACCOUNT_SETS, ACCOUNT_COLUMNS)

    def close(self) -> None:
        """Unmap the table; its descriptor stays open."""
        for view in (self.words, self.floats, self.memory):
            view.release()
        self._mapping.close()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep all other threads and processes from adding records; for microseconds, since an event loop waits."""
        with self._lock:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1)

    def publish_total(self, amount: int) -> None:
        """Write the row's total: the memory that all tenants hold in this process."""
        self.words[_TOTALS + self.row] = amount

    def others_total(self) -> int:
        """Return the sum of all other rows' totals."""
        totals: tuple[int, ...] = self._totals.unpack_from(self.memory, _TOTALS * _WORD)
        return sum(totals) - totals[self.row]

    def hash(self, key: bytes) -> int:
        """Return a key's hash, which nobody without the table's secret can choose; never 0."""
        digest = hashlib.blake2b(key, digest_size=_WORD, key=self._secret).digest()
        return int.from_bytes(digest, "little", signed=True) or 1

    def next_incarnation(self) -> int:
        """Return a number that was never returned before; only inside `exclusive`."""
        self.words[_INCARNATIONS] += 1
        return self.words[_INCARNATIONS]


class SharedRecords:
    """Records of one kind by key, each with some columns of a word for each row. A record is named by its first word.

    All methods but `used` and `clear` are for the inside of `SharedTable.exclusive`; its user reads and writes values
    in the table's views, at the words that `column` tells.

    Args:
        first_word: of the table's words, where these begin.
        sets: of `WAYS` records.
        columns: format of each column: q or d.
    """

    def __init__(self, table: SharedTable, first_word: int, sets: int, columns: str) -> None:
        self._table = table
        self._sets = sets
        self._columns = columns
        self._hashes = first_word
        self._set = struct.Struct(f"{WAYS}q")
        self._size = _record_words(columns, table.rows)
        self._records = first_word + sets * WAYS
        self.end_word = self._records + sets * WAYS * self._size

    def column(self, number: int) -> int:
        """Return where a column of all rows begins in a record; -1 is that of the rows' incarnations."""
        return HEAD + (number + 1) * self._table.rows

    @property
    def incarnation(self) -> int:
        """Where a record's own incarnation is in it, behind all columns."""
        return self._size - 1

    def find(self, key: bytes, lacks: Callable[[int, int], float]) -> int | None:
        """Return a key's record, or one that is added for it and has the incarnation 0 until `begin`.

        Args:
            key: of the record.
            lacks: tells of another record and its incarnation how much would be lost with it: 0.0 for nothing, infinity
                if it must stay. If there is no room, the one of its set that lacks least is dropped.

        Returns:
            None if there is no room, and no record may be dropped.
        """
        table = self._table
        hashed = table.hash(key)
        first = hashed % self._sets * WAYS
        hashes = self._set.unpack_from(table.memory, (self._hashes + first) * _WORD)
        for wanted in (hashed, 0):
            if wanted in hashes:
                place = first + hashes.index(wanted)
                break
        else:
            dropped = self._drop(first, lacks)
            if dropped is None:
                return None
            place = dropped
        table.words[self._hashes + place] = hashed
        return self._records + place * self._size

    def begin(self, record: int) -> int:
        """Begin a new incarnation of a record, with zeros in this row, and return it; not used until `publish`."""
        self._table.words[record + self.incarnation] = 0
        incarnation = self._table.next_incarnation()
        self._enter(record, incarnation)
        return incarnation

    def publish(self, record: int, incarnation: int) -> None:
        """Let all processes see a new incarnation."""
        self._table.words[record + self.incarnation] = incarnation

    def join(self, record: int) -> int:
        """Make this row's words part of a record's incarnation, unless they are, and return that; 0 if it has none."""
        words = self._table.words
        incarnation = words[record + self.incarnation]
        if incarnation and words[record + HEAD + self._table.row] != incarnation:
            self._enter(record, incarnation)
        return incarnation

    def used(self) -> Iterator[int]:
        """Iterate over all records that have a key."""
        for first in range(0, self._sets * WAYS, WAYS):
            hashes = self._set.unpack_from(self._table.memory, (self._hashes + first) * _WORD)
            for way, hashed in enumerate(hashes):
                if hashed:
                    yield self._records + (first + way) * self._size

    def clear(self, record: int, columns: int) -> None:
        """Set the first columns of this row to zero; 0.0 is the same word."""
        words, row = self._table.words, self._table.row
        for number in range(columns):
            words[record + self.column(number) + row] = 0

    def _enter(self, record: int, incarnation: int) -> None:
        self.clear(record, len(self._columns))
        self._table.words[record + HEAD + self._table.row] = incarnation

    def _drop(self, first: int, lacks: Callable[[int, int], float]) -> int | None:
        """Drop a record of a set, and return its place; it is judged again once no process can find it any more."""
        words = self._table.words
        costs = []
        for place in range(first, first + WAYS):
            record = self._records + place * self._size
            incarnation = words[record + self.incarnation]
            if not incarnation:  # left half added
                return place
            cost = lacks(record, incarnation)
            costs.append((cost, place, record, incarnation))
            if not cost:
                break
        for cost, place, record, incarnation in sorted(costs):
            if cost == math.inf:
                break
            words[record + self.incarnation] = 0
            if lacks(record, incarnation) <= cost:
                return place
            words[record + self.incarnation] = incarnation
        return None
