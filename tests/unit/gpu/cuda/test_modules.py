import ctypes
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.driver import FakeDriver, Handle
from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.cuda.assembler import Assembler, find_assembler
from tensorwasm.gpu.cuda.driver.calls import Driver
from tensorwasm.gpu.cuda.driver.versions import isa_version
from tensorwasm.gpu.cuda.modules import CudaKernel, PtxCompiler
from tensorwasm.gpu.cuda.opening import open_with
from tensorwasm.gpu.device.admission import CompiledKernel
from tensorwasm.gpu.resources.guarded_compiler import LocalCompiler, digest
from tensorwasm.gpu.resources.kernel_cache import KernelCache
from tensorwasm.ptx import extract, parse
from tensorwasm.values import NEVER, KernelParam, KernelSignature

TEXT = ".version {}.{}\n.target sm_80\n.address_size 64\n.visible .entry k() {{ ret; }}\n"
ISAS = [(7, 0), (8, 0), (8, 4), (8, 5), (8, 8), (9, 0)]


@pytest.fixture
def assembled(monkeypatch):
    """What ptxas was given."""
    texts = []

    def assemble(self, text, architecture, deadline):
        texts.append(text)
        return b"cubin"

    monkeypatch.setattr(Assembler, "assemble", assemble)
    return texts


def module(isa):
    return parse(TEXT.format(*isa))


@given(st.sampled_from(ISAS), st.sampled_from([None, (12, 0), (12, 4), (12, 9), (13, 0), (14, 0)]), st.booleans())
@pytest.mark.rule("10-compiler")
def test_the_driver_gets_ptx_only_where_it_may_compile(isa, release, jit):
    driver = Driver(FakeDriver())
    device = open_with(driver, 0)
    assembler = None if release is None else Assembler("ptxas", release)
    compiler = PtxCompiler(driver, device.info, (13, 0), assembler, jit)
    suits = assembler is not None and assembler.suits((9, 0), isa, (13, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Assembler, "assemble", lambda *_: b"cubin")
        if suits:
            assert compiler.compile(module(isa), NEVER) == b"cubin"
        elif jit:
            assert compiler.compile(module(isa), NEVER).startswith(b".version")
        else:
            with pytest.raises(UnsupportedPtx, match="ptxas does not take the module"):
                compiler.compile(module(isa), NEVER)
    device.close()


@pytest.mark.rule("10-compiler")
def test_a_device_whose_driver_is_not_to_compile_loads_what_ptxas_made_and_refuses_the_rest(assembled):
    fake = FakeDriver()
    device = open_with(Driver(fake), 0, lambda _: Assembler("ptxas", (12, 4)), jit=False)
    loaded = device.load(module((8, 4)), NEVER)
    with pytest.raises(UnsupportedPtx, match=r"8\.5"):
        device.load(module((8, 5)), NEVER)
    device.unload(loaded)
    device.close()
    assert len(assembled) == 1
    assert fake.images == [b"cubin"]


def test_a_crash_of_ptxas_does_not_bring_the_driver_into_it(monkeypatch):
    def crash(*_):
        raise MalformedPtx("ptxas crashed on the module (signal 11)")

    monkeypatch.setattr(Assembler, "assemble", crash)
    fake = FakeDriver()
    device = open_with(Driver(fake), 0, lambda _: Assembler("ptxas", (12, 9)))
    with pytest.raises(MalformedPtx, match="crashed"):
        device.load(module((8, 0)), NEVER)
    device.close()
    assert fake.images == []


def test_a_kernel_that_prints_is_refused_by_name_and_no_other_of_its_text(assembled):
    device = open_with(Driver(FakeDriver()), 0, lambda _: Assembler("ptxas", (13, 0)), jit=False)
    text = (Path(__file__).parents[3] / "golden" / "ptx" / "printing.sm_75.ptx").read_text("ascii")
    whole = parse(text)
    with pytest.raises(UnsupportedPtx, match="vprintf: on a GPU the output of kernels goes to the process") as caught:
        device.load(extract(whole, "hello"), NEVER)
    assert "vprintf" in text.splitlines()[caught.value.line]
    device.load(extract(whole, "quiet"), NEVER)
    assert [".entry quiet" in one for one in assembled] == [True]
    assert "vprintf" not in assembled[0]
    device.close()


def test_a_kernel_that_ptxas_does_not_take_is_not_measured(monkeypatch):
    seen = []
    monkeypatch.setattr(Assembler, "compile_kernel", lambda *given: seen.append(given[1:3]))
    driver = Driver(FakeDriver())
    device = open_with(driver, 0, lambda _: Assembler("ptxas", (12, 4)))
    assert device.assemble(module((8, 5)), NEVER) is None
    device.assemble(module((8, 4)), NEVER)
    assert [(text.split()[1], architecture) for text, architecture in seen] == [("8.4", "sm_90")]
    with pytest.raises(UnsupportedPtx, match="ptxas does not take"):
        device._compiler.ptxas.compile_kernel(module((8, 5)), NEVER)
    device.close()


def guarded_text(isa, release, text=TEXT):
    """Return what ptxas of a release is given of a guarded kernel of an ISA."""
    texts = []
    device = open_with(Driver(FakeDriver()), 0, lambda _: Assembler("ptxas", release), jit=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Assembler, "compile_kernel", lambda *given: texts.append(given[1]) or CompiledKernel(b"cubin", 8, 0, 0)
        )
        given = text.format(*isa).encode()
        KernelCache(device, guarded=True, compiler=LocalCompiler(device, None)).draft(
            ("ann", digest(given), "k", (9, 0), "narrow"), given, NEVER
        )
    device.close()
    (printed,) = texts
    return printed


RELEASES = st.sampled_from([(12, 0), (12, 4), (12, 6), (12, 9), (13, 0)])


@given(st.tuples(st.integers(7, 9), st.integers(0, 9)), RELEASES)
@pytest.mark.rule("10-compiler")
def test_a_guarded_text_is_never_of_a_newer_isa_than_its_ptxas(isa, release):
    newest = min(isa_version(release), isa_version((13, 0)))
    assert parse(guarded_text(isa, release)).version == min(isa, newest)


def test_a_guarded_kernel_of_a_newer_isa_is_compiled_unless_it_needs_it():
    assembler = find_assembler("", os.environ)
    if assembler is None:
        pytest.skip("NO PTXAS: it is not installed")
    assert assembler.compile_kernel(guarded_text((9, 5), (12, 4)), "sm_90", NEVER).image
    newer = TEXT.replace("{{ ret; }}", "{{ .reg .b32 %a<3>; cvt.rn.satfinite.e4m3x2.f16x2 %h, %a1; ret; }}")
    newer = newer.replace("{{ .reg", "{{ .reg .b16 %h; .reg").replace("sm_80", "sm_89")
    assert assembler.compile_kernel(guarded_text((9, 5), (12, 4), newer), "sm_90", NEVER).image
    with pytest.raises(MalformedPtx, match=r"requires PTX ISA \.version 8\.1 or later"):
        assembler.compile_kernel(guarded_text((9, 5), (12, 0), newer), "sm_90", NEVER)


# -------------------------------------------------------------------------------------------- arguments


def kernel(sizes: list[int]) -> CudaKernel:
    fake = FakeDriver()
    fake.stack().append(Handle("context", 1))
    params = tuple(KernelParam(f"p{at}", size, 1) for at, size in enumerate(sizes))
    return CudaKernel(Driver(fake), Handle("function", 2), KernelSignature("k", params))


@given(st.lists(st.binary(min_size=1, max_size=70), max_size=128))
def test_every_pointer_points_at_its_value_aligned_and_apart(args):
    address, _memory = kernel([len(arg) for arg in args]).pack(args)
    pointers = (ctypes.c_uint64 * len(args)).from_address(address)
    assert [ctypes.string_at(pointer, len(arg)) for pointer, arg in zip(pointers, args, strict=True)] == args
    assert all(pointer % 8 == address % 8 for pointer in pointers)
    ends = [pointer + len(arg) for pointer, arg in zip(pointers, args, strict=True)]
    assert all(end <= begin for end, begin in zip(ends, list(pointers)[1:], strict=False))


def test_two_launches_never_share_memory():
    function = kernel([8])
    one, two = function.pack([b"11111111"]), function.pack([b"22222222"])
    values = [ctypes.string_at(ctypes.c_uint64.from_address(address).value, 8) for address, _ in (one, two)]
    assert values == [b"11111111", b"22222222"]
