"""What finalisers leave to do is done on a thread that holds no lock, whatever fails and wherever they run."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest

from neighbours import until
from tensorwasm.finalizing import finalize_later, prepare_finalizing


@pytest.fixture(autouse=True)
def prepared():
    prepare_finalizing()


def test_it_is_done_while_the_finalisers_thread_holds_a_lock_that_it_takes():
    lock, done = threading.Lock(), []

    class Held:
        def __init__(self):
            self.itself = self  # only the collector finds it

        def __del__(self):
            finalize_later(end)

    def end():
        with lock:
            done.append(threading.get_ident())

    held = Held()
    with lock:
        del held
        gc.collect()
        assert not done
    until(lambda: done)
    assert done[0] != threading.get_ident()


def test_one_that_fails_is_logged_and_the_others_are_done(caplog):
    done = []

    def fail():
        raise RuntimeError("as a device may")

    finalize_later(fail)
    finalize_later(lambda: done.append(1))
    until(lambda: done)
    assert "as a device may" in caplog.text


def test_nothing_is_kept_afterwards():
    class Kept:
        pass

    kept, gone = Kept(), threading.Event()
    weakref.finalize(kept, gone.set)
    finalize_later(kept.__repr__)
    del kept
    assert gone.wait(30)


def test_a_hundred_threads_prepare_one_thread():
    threads = [threading.Thread(target=prepare_finalizing) for _ in range(100)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sum(each.name == "tensorwasm-finalizing" for each in threading.enumerate()) == 1


NO_THREAD = """
import threading
from tensorwasm.finalizing import finalize_later, prepare_finalizing
def fail(self):
    raise RuntimeError("can't start new thread")
start, threading.Thread.start = threading.Thread.start, fail
prepare_finalizing()
finalize_later(lambda: print("done", flush=True))
threading.Thread.start = start
prepare_finalizing()
"""


def test_where_no_thread_can_be_started_it_is_done_as_soon_as_one_can():
    found = subprocess.run([sys.executable, "-c", NO_THREAD], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "done\n"


AT_EXIT = """
import sys, threading, time
from tensorwasm.finalizing import finalize_later, prepare_finalizing
prepare_finalizing()
finalize_later(lambda: time.sleep(0.2))
finalize_later(lambda: print("done", flush=True))
"""


def test_the_interpreters_end_waits_for_what_is_left():
    found = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "done\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_a_thread_of_its_own():
    source = (
        "import os, sys\n"
        "from tensorwasm.finalizing import finalize_later, prepare_finalizing\n"
        "prepare_finalizing()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    prepare_finalizing()\n"
        "    finalize_later(lambda: print('child', flush=True))\n"
        "    sys.exit()\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "child\n"
