"""Guarded kernels that take too much of the device they share are refused before they are loaded."""

from __future__ import annotations

import pytest

from fakes.emulation import kernel, store_result
from tensorwasm.errors import KernelTooLarge, UnsupportedPtx
from tensorwasm.gpu.device import limits
from tensorwasm.gpu.device.admission import LIMITS, CompiledKernel, admit
from tensorwasm.gpu.emulator.device import EmulatorDevice
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.resources import kernel_store
from tensorwasm.gpu.resources.guarded_compiler import LocalCompiler
from tensorwasm.gpu.shared_device import SharedDevice
from tensorwasm.ptx import guarded, parse, render
from tensorwasm.values import MIB, NEVER

MOST = [most for _, most in LIMITS]
TEXT = kernel(store_result()).encode()


def compiled(registers, local_bytes, shared_bytes, image_bytes):
    return CompiledKernel(bytes(image_bytes), registers, local_bytes, shared_bytes)


def beyond(at):
    return [most + (at == index) for index, most in enumerate(MOST)]


def test_a_kernel_at_every_limit_is_admitted():
    admit(compiled(*MOST))


@pytest.mark.parametrize("at", range(len(LIMITS)))
def test_a_kernel_beyond_a_limit_is_refused_with_amount_limit_and_remedy(at):
    with pytest.raises(KernelTooLarge) as caught:
        admit(compiled(*beyond(at)))
    what, most = LIMITS[at]
    assert f"takes {most + 1} {what}" in caught.value.message
    assert f"at most {most}" in caught.value.message
    assert "isolation='process'" in caught.value.message
    assert (caught.value.kind, caught.value.http_status) == ("kernel_too_large", 400)
    assert isinstance(caught.value, UnsupportedPtx)


def test_what_the_guard_lays_out_itself_is_admitted():
    assert limits.MAX_GUARDED_LOCAL_BYTES > guarded.MAX_LOCAL_BYTES
    assert limits.MAX_GUARDED_SHARED_BYTES == guarded.MAX_STATIC_SHARED_BYTES


class CompilingDevice(EmulatorDevice):
    """An emulator with a compiler that says what it is told to."""

    assembler = "a compiler 1.0"
    taken = (8, 0, 0)

    def assemble(self, module, deadline):
        return CompiledKernel(render(module, deadline).encode(), *self.taken)

    def load_image(self, image, signature):
        return self.load(parse(image.decode()), NEVER)


class Store(dict):
    """A store in memory."""

    put = dict.__setitem__


def test_a_kernel_that_is_refused_is_neither_loaded_nor_kept_and_the_next_one_runs():
    accounts, store, device = Accounts(MemoryLedger()), Store(), CompilingDevice()
    accounts.register("ann", 64 * MIB, 64 * MIB)
    with (
        SharedDevice(device, accounts, Gate(4), guarded=True, compiler=LocalCompiler(device, store)) as shared,
        shared.open_session("ann") as session,
    ):
        device.taken = (8, limits.MAX_GUARDED_LOCAL_BYTES + 1, 0)
        for _ in range(2):
            with pytest.raises(KernelTooLarge, match="local memory"):
                session.kernels.load(TEXT, "k", NEVER)
        assert (device.statistics().modules, len(store)) == (0, 0)
        device.taken = (8, limits.MAX_GUARDED_LOCAL_BYTES, 0)
        session.kernels.load(TEXT, "k", NEVER)
        assert (device.statistics().modules, len(store)) == (1, 1)
    device.close()


def test_a_kernel_that_was_kept_under_other_limits_is_not_used(monkeypatch):
    key, info = ("ann", b"digest", "k", (9, 0)), EmulatorDevice().info
    before = kernel_store.name_of(key, info, "ptxas 13.0")
    assert before == kernel_store.name_of(key, info, "ptxas 13.0")
    monkeypatch.setattr(kernel_store, "LIMITS", LIMITS[:-1])
    assert before != kernel_store.name_of(key, info, "ptxas 13.0")
