"""What a call writes beyond its limits is said, and standard input over its limit is refused."""

from __future__ import annotations

import pytest
from wasmtime import wat2wasm

from tensorwasm import Limits, Runtime
from tensorwasm.errors import InvalidArgs, StdinTooLarge
from tensorwasm.guest.sandbox.wasi_io import INHERIT
from tensorwasm.runtime import LocalExecutor, Request

GUEST = bytes(
    wat2wasm("""(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\\08\\00\\00\\00\\06\\00\\00\\00sixsix")
  (func (export "say") (param $fd i32) (param $times i32) (result i32)
    (local $code i32)
    (loop $more
      (local.set $code (call $write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 16)))
      (local.set $times (i32.sub (local.get $times) (i32.const 1)))
      (br_if $more (i32.and (i32.gt_s (local.get $times) (i32.const 0)) (i32.eqz (local.get $code)))))
    (local.get $code)))""")
)
SMALL = Limits(output_bytes=15, stdin_bytes=4)
WAYS = ["invoke", "submit", "executor", "live"]


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator", limits=SMALL) as made:
        yield made


@pytest.fixture
def call(runtime):
    """Return a function: one of the ways, an export's arguments and options to what comes of the call."""
    executor = LocalExecutor(runtime)
    function = runtime.load(GUEST)

    def make(way, args, stdin=b"", **options):
        if way == "invoke":
            return function.invoke("say", args, stdin=stdin, **options)
        if way == "submit":
            return function.submit("say", args, stdin=stdin, **options).result()
        if way == "executor":
            return executor.submit(Request(GUEST, "say", args, stdin=stdin, limits=SMALL, **options)).result()
        with function.open(stdin=stdin, **options) as live:
            return live.call("say", args)

    yield make
    executor.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("descriptor", "name"), [(1, "stdout"), (2, "stderr")])
def test_output_over_the_limit_is_said_to_be_cut(call, way, descriptor, name):
    whole = call(way, (descriptor, 2))
    assert (getattr(whole, name), whole.truncated, whole.values) == (b"sixsix" * 2, (), (0,))
    cut = call(way, (descriptor, 3))
    assert (getattr(cut, name), cut.truncated) == (b"sixsixsixsixsix", (name,))
    assert cut.values != (0,)  # the guest is told too


def test_truncation_for_a_sink_is_in_the_outcome_too(call):
    taken = []
    assert call("invoke", (1, 3), stdout=taken.append).truncated == ("stdout",)
    assert b"".join(taken) == b"sixsixsixsixsix"


@pytest.mark.parametrize("way", WAYS)
def test_input_over_the_limit_is_refused_and_nothing_of_it_is_run(call, way):
    assert call(way, (1, 1), stdin=b"four").values == (0,)
    with pytest.raises(StdinTooLarge, match="standard input has 5 bytes; the limit is 4"):
        call(way, (1, 1), stdin=b"five!")


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_submitted_calls_cannot_use_the_process_s_own_streams(call, stream):
    with pytest.raises(InvalidArgs, match="process's own streams"):
        call("submit", (1, 1), **{stream: INHERIT})
