"""An empty cache is filled by other processes, once, and never at the cost of the code."""

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from tensorwasm import settings
from tensorwasm.guest.native import compiled, loading

pytestmark = pytest.mark.skipif(not loading.may_have_fibers(), reason="NO FIBERS: they need Linux and Numba")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the cache, which is empty."""
    changed = dataclasses.replace(settings.current(), cache=str(tmp_path))
    monkeypatch.setattr(settings, "current", lambda: changed)
    return compiled.open_cache()


@pytest.fixture
def parts(monkeypatch):
    """The parts that were begun, by processes that run `parts.text`."""

    class Parts(list):
        text = "pass"

        def start(self, part):
            self.append(part)
            return subprocess.Popen([sys.executable, "-c", self.text])

    started = Parts()
    monkeypatch.setattr(loading, "_start_part", started.start)
    return started


def test_of_several_that_begin_at_once_one_compiles(folder, parts):
    together = threading.Barrier(4)

    def fill():
        together.wait(60)
        loading._fill_cache()

    threads = [threading.Thread(target=fill) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert parts == [*range(loading.PARTS)]
    assert (folder / "full").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [("raise SystemExit(3)", "exit code 3"), (f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})", "exit code -9")],
)
def test_a_part_that_fails_is_said_and_made_in_this_process(folder, parts, caplog, text, said):
    parts.text = text
    with caplog.at_level(logging.WARNING):
        loading._fill_cache()
    assert said in caplog.text
    assert "in this process" in caplog.text
    assert not (folder / "full").exists(), "the next start tries again"


def test_where_no_process_can_compile_this_one_does(folder, parts, caplog):
    (folder / "filling").mkdir()  # no file can be opened there, whoever this user is
    with caplog.at_level(logging.WARNING):
        loading._fill_cache()
    assert "in this process" in caplog.text
    assert parts == []


FULL = """
import resource, sys
from pathlib import Path
from tensorwasm.guest.native import compiled

resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
assert compiled.compile_function(compiled.SOURCES["yield"].function, Path(sys.argv[1])).address
print([each.strerror for each in compiled.not_kept])
"""


def test_code_that_cannot_be_kept_is_used(folder):
    made = subprocess.run([sys.executable, "-c", FULL, str(folder)], capture_output=True, check=True, text=True)
    assert made.stdout.strip() == "['File too large']"


LIMITS = """
import json, os, resource, sys, types
from tensorwasm.guest.native import loading

fake = types.ModuleType("tensorwasm.guest.native.compiled")
fake.SOURCES, fake.not_kept, fake.compile_sources = {}, [OSError("full")] * int(sys.argv[1]), lambda _: None
sys.modules[fake.__name__] = fake
import tensorwasm.guest.native
tensorwasm.guest.native.compiled = fake
try:
    loading.compile_part(1, os.getppid())
finally:
    limits = [resource.getrlimit(each) for each in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE)]
    print(json.dumps([os.nice(0), limits]))
"""


def test_what_compiles_steps_back_and_is_limited():
    before = os.nice(0)
    made = subprocess.run([sys.executable, "-c", LIMITS, "0"], capture_output=True, check=True)
    nice, ((memory_bytes, _), (cpu_s, _), (core_bytes, _)) = json.loads(made.stdout)
    assert nice == min(before + loading.NICE, 19)
    assert (0 < memory_bytes <= 4 << 30, 0 < cpu_s <= 600, core_bytes) == (True, True, 0)


def test_what_cannot_keep_its_code_fails():
    made = subprocess.run([sys.executable, "-c", LIMITS, "1"], capture_output=True, check=False)
    assert made.returncode
    assert b"OSError: full" in made.stderr
