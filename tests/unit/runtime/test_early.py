"""While compiled code is being loaded, submitted invocations run on threads; afterwards on fibers."""

import asyncio
import threading
from pathlib import Path

import pytest

from tensorwasm.guest.native import loading
from tensorwasm.runtime import Runtime

pytestmark = pytest.mark.skipif(not loading.may_have_fibers(), reason="NO FIBERS: they need Linux and Numba")
ADD = (Path(__file__).parents[3] / "bench/guests/add.wasm").read_bytes()


def test_calls_do_not_wait_for_compiled_code_and_use_it_once_loaded(monkeypatch):
    compiling, compiled = threading.Event(), threading.Event()

    def fill():
        compiling.set()
        assert compiled.wait(60)

    monkeypatch.setattr(loading, "_fill_cache", fill)
    work = threading.Thread(target=loading.begin_loading())
    with Runtime("emulator") as runtime:
        assert loading.is_loading()  # from here on, before any thread has begun
        work.start()
        try:
            assert compiling.wait(60)
            function = runtime.load(ADD)
            assert function.submit("add", (1, 2)).result(60).values == (3,)
            assert function.invoke("add", (2, 2)).values == (4,)
            assert asyncio.run(function.invoke_async("add", (3, 2))).values == (5,)
            assert not function.dispatch.plans
            assert runtime.fibers.statistics().polls == 0
        finally:
            compiled.set()
            work.join(120)
        assert not loading.is_loading()
        assert function.submit("add", (4, 2)).result(60).values == (6,)
        assert function.invoke("add", (5, 2)).values == (7,)
        assert function.dispatch.plans
        assert runtime.fibers.statistics().polls == 1
