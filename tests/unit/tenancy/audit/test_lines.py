"""Lines are made ahead of the disk by one thread and written by another, and a new file begins with its own."""

import json
from itertools import pairwise

from tensorwasm.tenancy.audit.chain import GENESIS, ChainHead, read_link
from tensorwasm.tenancy.audit.lines import LineQueue
from tensorwasm.tenancy.audit.records import Notice


def _body(number):
    return b'{"number":%d}' % number


def _filled(count):
    queue = LineQueue()
    queue.entries.extend(map(_body, range(count)))
    return queue


def _said(queue):
    return [json.loads(line) for chunk in queue.made() for line in chunk.text.splitlines()]


def test_lines_count_once_they_are_written():
    queue = _filled(5)
    queue.make(3, wait=False)
    queue.make(3, wait=True)
    assert (len(queue), queue.records, queue.head) == (5, 0, ChainHead())
    first, second = queue.made()
    queue.wrote([first])
    assert (len(queue), queue.records, queue.head.seq) == (2, 3, 3)
    queue.wrote([second])
    assert (len(queue), queue.records, queue.made()) == (0, 5, [])
    assert queue.head == ChainHead(5, read_link(second.text.splitlines()[-1]).hash)


def test_a_thread_that_may_not_wait_leaves_the_entries_to_the_one_that_makes_lines():
    queue = _filled(1)
    with queue._making:
        queue.make(1, wait=False)
    assert (len(queue.entries), queue.made()) == (1, [])


def test_what_was_made_and_not_written_comes_behind_the_lines_that_begin_a_file():
    queue = _filled(4)
    queue.entries.insert(2, Notice(1, "dropped", 7))
    queue.make(2, wait=False)
    queue.wrote(queue.made())
    queue.make(2, wait=False)
    queue.begin(queue.head, [Notice(2, "opened"), Notice(2, "torn", 9)])
    queue.make(100, wait=False)
    said = _said(queue)
    assert [each.get("number", each.get("notice")) for each in said] == ["opened", "torn", "dropped", 2, 3]
    assert [each["seq"] for each in said] == [3, 4, 5, 6, 7]
    assert said[0]["prev"] == queue.head.hash != GENESIS
    assert all(after["prev"] == before["hash"] for before, after in pairwise(said))
    queue.wrote(queue.made())
    assert queue.records == 4
