"""The judge of what tests of workers leave behind, judged itself."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from oracles.leftovers import Before

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it looks through /proc")

SOON_S = 60


class Piece:
    """A thread, a child and a socket pair, or a pipe."""

    def __init__(self, kind):
        self.stop = threading.Event()
        self.thread = self.child = None
        self.ends = ()
        if kind == "threads":
            self.thread = threading.Thread(target=self.stop.wait, name="tensorwasm-left", daemon=True)
            self.thread.start()
        elif kind == "children":
            self.child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        else:
            self.ends = os.pipe()

    def end(self):
        self.stop.set()
        if self.thread is not None:
            self.thread.join(SOON_S)
        if self.child is not None:
            with self.child:
                self.child.kill()
        for end in self.ends:
            os.close(end)


@pytest.mark.parametrize("kind", ["threads", "children", "descriptors"])
def test_a_removed_entry_is_no_leftover_and_its_replacement_is_one(kind):
    earlier = Piece(kind)
    before = Before()
    assert before.new(0.0) == {}
    earlier.end()
    assert before.new(0.0) == {}
    later = Piece(kind)
    try:
        assert kind in before.new(0.0)
    finally:
        later.end()
    assert before.new(SOON_S) == {}


def test_a_thread_that_is_about_to_end_is_waited_for():
    before = Before()
    piece = Piece("threads")
    threading.Timer(0.01, piece.stop.set).start()
    assert before.new(SOON_S) == {}
