"""What a tenant may hold of the device: said to the runtime, by a setting, by a request, in the accounts."""

import dataclasses

import pytest
from wasmtime import wat2wasm

from tensorwasm import Runtime, settings
from tensorwasm.errors import InvalidArgs
from tensorwasm.gpu.device.limits import GIB, MAX_PROCESS_DEVICE_BYTES
from tensorwasm.runtime import Grants, LocalExecutor, Request
from tensorwasm.values import MIB

SOON_S = 60
OVER = -6
GUEST = bytes(
    wat2wasm("""(module
  (import "wasi:cuda/host@0.2.0" "wasi_cuda_alloc" (func $alloc (param i32 i32) (result i64)))
  (memory (export "memory") 1)
  (func (export "take") (param i32) (result i64) (call $alloc (local.get 0) (i32.const 0))))""")
)


def take(runtime, size_bytes, **fields):
    outcome = runtime.load(GUEST).invoke("take", [size_bytes], grants={"cuda"}, **fields)
    return outcome.values[0], outcome.gpu.quota_refusals


def test_a_runtime_caps_its_tenant():
    with Runtime("emulator", gpu_bytes=4096) as runtime:
        assert take(runtime, 4096) == (1, 0)
        assert take(runtime, 4097) == (OVER, 1)
        (account,) = runtime.accounts.statistics()
        assert (account.max_bytes, account.device_bytes, account.refusals) == (4096, 0, 1)


def test_the_setting_is_the_cap_unless_an_argument_overrides_it(monkeypatch):
    changed = dataclasses.replace(settings.current(), gpu_quota_mib=1)
    monkeypatch.setattr(settings, "current", lambda: changed)
    with Runtime("emulator") as runtime:
        assert runtime.gpu_bytes == MIB
        assert take(runtime, MIB + 1) == (OVER, 1)
    with Runtime("emulator", gpu_bytes=2 * MIB) as runtime:
        assert take(runtime, MIB + 1) == (1, 0)


def test_a_guest_may_hold_as_much_as_the_setting_says(monkeypatch):
    with Runtime("emulator", isolation="guarded") as runtime, runtime.share().open_session() as session:
        assert session._core.window.size_bytes == 4 * GIB
    changed = dataclasses.replace(settings.current(), gpu_session_mib=8192)
    monkeypatch.setattr(settings, "current", lambda: changed)
    for gpu_bytes, window_bytes in ((None, 16 * GIB), (6 * GIB, 16 * GIB), (GIB, 4 * GIB)):
        with Runtime("emulator", isolation="guarded", gpu_bytes=gpu_bytes) as runtime:
            with runtime.share().open_session() as session:
                assert session._core.window.size_bytes == window_bytes
            assert take(runtime, 4096) == (1, 0)


def test_without_any_word_the_cap_is_the_processs():
    with Runtime("emulator") as runtime:
        assert runtime.gpu_bytes == MAX_PROCESS_DEVICE_BYTES


def test_tenants_are_registered_in_the_accounts():
    with Runtime("emulator", gpu_bytes=4096) as runtime:
        with pytest.raises(InvalidArgs, match="no tenant 'ann'"):
            take(runtime, 1, tenant="ann")
        runtime.accounts.register("ann", 8192)
        assert take(runtime, 8192, tenant="ann") == (1, 0)
        assert take(runtime, 8193, tenant="ann") == (OVER, 1)


@pytest.mark.parametrize("gpu_bytes", [-1, (1 << 63) + 1])
def test_a_cap_that_cannot_be_is_refused(gpu_bytes):
    with pytest.raises(InvalidArgs, match="gpu_bytes"):
        Runtime("emulator", gpu_bytes=gpu_bytes)


def test_a_request_brings_its_tenants_cap_or_takes_the_runtimes_and_refusals_are_counted():
    with Runtime("emulator", gpu_bytes=4096) as runtime:
        executor = LocalExecutor(runtime)
        grants = Grants(cuda=True)
        asked = [("ann", None, 4097), ("bob", 8192, 4097), ("bob", 8192, 8193)]
        outcomes = [
            executor.submit(
                Request(GUEST, "take", (size_bytes,), grants=grants, tenant=tenant, gpu_bytes=cap_bytes)
            ).result(SOON_S)
            for tenant, cap_bytes, size_bytes in asked
        ]
        assert [outcome.values for outcome in outcomes] == [(OVER,), (1,), (OVER,)]
        executor.close()
        assert executor.statistics().quota_refusals == 2
