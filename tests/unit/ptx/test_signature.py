import pytest
from hypothesis import given, settings

from strategies.ptx import CORPUS, modules
from tensorwasm.errors import InvalidKernel
from tensorwasm.ptx import parse, signature
from tensorwasm.values import KernelParam, KernelSignature

HEADER = ".version 9.0\n.target sm_90\n.address_size 64\n"
REGISTERS = ".reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<12>; .reg .f32 %f<9>; .reg .b16 %h<4>;"
LOAD = "ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q]; ld.param.u64 %rd3, [n];"


def pointers(kernel):
    return "".join("P" if param.pointer else "-" for param in kernel.params)


def aligns(kernel):
    return [param.access_align_bytes for param in kernel.params]


def kernel(body, before=""):
    """Return the signature of a kernel with three 64-bit parameters, loaded into %rd1 to %rd3."""
    params = "(.param .u64 p, .param .u64 q, .param .u64 n)"
    text = f"{HEADER}{before} .visible .entry k {params} {{ {REGISTERS} {LOAD} {body} ret; }}"
    return signature(parse(text), "k")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("", "---"),
        ("cvta.to.global.u64 %rd4, %rd1;", "P--"),
        ("cvta.to.shared.u64 %rd4, %rd1;", "P--"),
        ("cvta.global.u64 %rd4, %rd1;", "---"),
        ("mov.u64 %rd4, %rd1; mov.b64 %rd5, %rd4; cvta.to.global.u64 %rd6, %rd5;", "P--"),
        ("cvta.to.global.u64 %rd6, %rd5; mov.b64 %rd5, %rd4; mov.u64 %rd4, %rd1;", "P--"),
        ("ld.global.f32 %f1, [%rd1];", "P--"),
        ("ld.f32 %f1, [%rd1+8];", "P--"),
        ("st.global.f32 [%rd2], %f1;", "-P-"),
        ("st.f32 [%rd2], %f1;", "-P-"),
        ("atom.global.add.u32 %r1, [%rd1], 1; red.add.u32 [%rd2], 1;", "PP-"),
        ("ldu.global.u32 %r1, [%rd1]; prefetch.global.L2 [%rd2];", "PP-"),
        ("cp.async.ca.shared.global [%r1], [%rd1], 4;", "P--"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1}, [%rd1], 16;", "P--"),
        ("ld.shared.f32 %f1, [%rd1]; ld.const.f32 %f1, [%rd1]; ld.local.f32 %f1, [%rd1];", "---"),
        ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}];", "---"),
        ("mul.wide.u32 %rd4, %r1, 4; add.s64 %rd5, %rd1, %rd4; ld.global.f32 %f1, [%rd5];", "P--"),
        ("mul.wide.u32 %rd4, %r1, 4; add.s64 %rd5, %rd4, %rd1; ld.global.f32 %f1, [%rd5];", "P--"),
        ("shl.b64 %rd4, %rd3, 2; add.s64 %rd5, %rd1, %rd4; ld.global.f32 %f1, [%rd5];", "P--"),
        ("mad.lo.s64 %rd5, %rd3, 4, %rd1; ld.global.f32 %f1, [%rd5];", "P--"),
        ("mad.wide.s32 %rd5, %r1, 4, %rd1; ld.global.f32 %f1, [%rd5];", "P--"),
        ("sub.s64 %rd5, %rd1, %rd4; ld.global.f32 %f1, [%rd5];", "P--"),
        ("sub.s64 %rd5, %rd4, %rd1; ld.global.f32 %f1, [%rd5];", "---"),
        ("sub.s64 %rd5, %rd1, %rd2; shr.s64 %rd6, %rd5, 2;", "---"),
        ("cvt.u64.u64 %rd4, %rd1; ld.global.f32 %f1, [%rd4];", "P--"),
        ("cvt.u32.u64 %r1, %rd1; cvt.u64.u32 %rd4, %r1; ld.global.f32 %f1, [%rd4];", "---"),
        ("mov.b64 {%r1, %r2}, %rd1; mov.b64 %rd4, {%r1, %r2}; ld.global.f32 %f1, [%rd4];", "P--"),
        ("selp.b64 %rd4, %rd1, %rd2, %p1; ld.global.f32 %f1, [%rd4];", "PP-"),
        ("mov.u64 %rd4, %rd1; L: ld.f32 %f1, [%rd4]; add.s64 %rd4, %rd4, 4; bra L;", "P--"),
        ("mov.u64 %rd4, %rd1; L: ld.f32 %f1, [%rd4]; add.s64 %rd4, %rd4, %rd3; bra L;", "P--"),
        ("mov.u64 %rd4, %rd1; L: ld.f32 %f1, [%rd4]; mov.u64 %rd4, %rd2; bra L;", "PP-"),
        ("cvta.to.global.u64 %rd4, %rd1; add.s64 %rd5, %rd4, %rd3; ld.global.u8 %h1, [%rd5];", "P--"),
        ("add.s64 %rd5, %rd1, %rd3; ld.u8 %h1, [%rd5];", "---"),
        ("mul.lo.s64 %rd5, %rd1, 8; ld.global.u8 %h1, [%rd5];", "---"),
        ("mov.u64 %rd4, table; add.s64 %rd5, %rd4, %rd3; ld.global.u8 %h1, [%rd5];", "---"),
        ("{ .reg .b64 %rd<12>; mov.u64 %rd4, 0; ld.global.u8 %h1, [%rd4]; } mov.u64 %rd4, %rd1;", "---"),
        ("{ ld.global.u8 %h1, [%rd4]; } mov.u64 %rd4, %rd1;", "P--"),
        (
            "cvta.to.global.u64 %rd4; mov.u64; add.s64 %rd1; selp.b64; mad.lo.s64; ld.global.u64; cp.async.ca; ld;",
            "---",
        ),
    ],
)
def test_which_parameters_are_pointers(body, found):
    assert pointers(kernel(body, ".global .b8 table[8];")) == found


@pytest.mark.parametrize(
    ("body", "align"),
    [
        ("ld.global.u8 %h1, [%rd1];", 1),
        ("ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];", 16),
        ("ld.global.v2.b16 {%h1, %h2}, [%rd1]; ld.global.u8 %h1, [%rd1];", 4),
        ("st.v2.b64 [%rd1], {%rd4, %rd5};", 16),
        ("atom.global.cas.b64 %rd4, [%rd1], 0, 1;", 8),
        ("atom.global.add.noftz.bf16x2 %r1, [%rd1], %r2;", 4),
        ("red.global.add.noftz.bf16 [%rd1], %h1;", 2),
        ("ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd1];", 32),
        ("cp.async.ca.shared.global [%r1], [%rd1], 8;", 8),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;", 16),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 512, [%r2];", 16),
        ("wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd1], {%f1}, 16;", 16),
        ("prefetch.global.L2 [%rd1];", 1),
        ("discard.global.L2 [%rd1], 128;", 128),
        ("cvta.to.global.u64 %rd4, %rd1; add.s64 %rd5, %rd4, %rd3; ld.global.f64 %rd6, [%rd5];", 8),
    ],
)
def test_the_widest_access_through_a_pointer(body, align):
    found = kernel(body)
    assert found.params[0].pointer
    assert found.params[0].access_align_bytes == align
    assert all(param.access_align_bytes == 1 for param in found.params if not param.pointer)


CALLEES = """
.func callee_slot (.param .b64 a)
{
    .reg .b64 %x<4>; .reg .f32 %y; ld.param.u64 %x1, [a]; ld.v2.f32 {%y, _}, [%x1]; ret;
}
.func callee_register (.reg .u64 a) { .reg .f32 %y; ld.global.f32 %y, [a]; ret; }
.func (.param .b64 r) identity (.param .b64 a) { .reg .b64 %x; ld.param.b64 %x, [a]; st.param.b64 [r+0], %x; ret; }
.func outer (.param .b64 a)
{
    .reg .b64 %x; ld.param.b64 %x, [a];
    { .param .b64 in; st.param.b64 [in+0], %x; call callee_slot, (in); }
    ret;
}
.func second_of (.param .align 8 .b8 s[16])
{
    .reg .b64 %x, %y; ld.param.v2.b64 {%x, %y}, [s]; st.global.u8 [%y], 0; ret;
}
.func recursive (.reg .u64 a) { call recursive, (a); st.global.u8 [a], 0; ret; }
.func only_declared (.param .b64 a);
.func alias_name (.param .b64 a);
.alias alias_name, callee_slot;
"""


@pytest.mark.parametrize(
    ("body", "found", "align"),
    [
        ("{ .param .b64 in; st.param.b64 [in+0], %rd1; call callee_slot, (in); }", "P--", 8),
        ("{ .param .b64 in; st.param.b64 [in+0], %rd1; call alias_name, (in); }", "P--", 8),
        ("{ .param .b64 in; st.param.b64 [in+0], %rd2; call outer, (in); }", "-P-", 8),
        ("call callee_register, (%rd1);", "P--", 4),
        ("call recursive, (%rd1);", "P--", 1),
        ("{ .param .b64 in; st.param.b64 [in+0], %rd1; call only_declared, (in); }", "---", 1),
        (
            """{ .param .b64 in; .param .b64 out; st.param.b64 [in], %rd1; call (out), identity, (in);
            ld.param.b64 %rd4, [out]; } ld.global.u16 %h1, [%rd4];""",
            "P--",
            2,
        ),
        (
            "{ .param .align 8 .b8 in[16]; st.param.v2.b64 [in+0], {%rd1, %rd2}; call second_of, (in); }",
            "-P-",
            1,
        ),
        (
            """mov.u64 %rd5, callee_slot; T: .calltargets callee_slot, outer;
            { .param .b64 in; st.param.b64 [in], %rd1; call %rd5, (in), T; }""",
            "P--",
            8,
        ),
        (
            """{ .param .b64 in; st.param.b64 [in], %rd1; call only_declared, (in); }
            { .param .b64 in; st.param.b64 [in], %rd2; call callee_slot, (in); }""",
            "-P-",
            8,
        ),
    ],
)
def test_pointers_are_followed_into_functions(body, found, align):
    got = kernel(body, CALLEES)
    assert pointers(got) == found
    assert max(aligns(got)) == align


def test_declared_pointers_and_sizes():
    text = (
        f"{HEADER} .entry k (.param .u64 .ptr .global .align 16 a, .param .u64 .ptr b, .param .u32 c, .param .f64 d,"
        " .param .align 8 .b8 e[24], .param .b8 f[3], .param .u8 g, .param .align 16 .u64 .ptr .const h) { ret; }"
    )
    assert signature(parse(text), "k") == KernelSignature(
        "k",
        (
            KernelParam("a", 8, 8, True, True, 16),
            KernelParam("b", 8, 8, True, True, 1),
            KernelParam("c", 4, 4),
            KernelParam("d", 8, 8),
            KernelParam("e", 24, 8, False),
            KernelParam("f", 3, 1, False),
            KernelParam("g", 1, 1),
            KernelParam("h", 8, 16, True, True, 1),
        ),
    )


@pytest.mark.parametrize(
    ("directives", "most", "required"),
    [
        ("", 1024, None),
        (".maxntid 256", 256, None),
        (".maxntid 16, 16, 2", 512, None),
        (".maxntid 4096", 1024, None),
        (".reqntid 128, 1, 1", 128, (128, 1, 1)),
        (".maxntid 256 .maxntid 64", 64, None),  # of several the last counts, as for ptxas 13.0
        (".maxntid 64 .maxntid 256", 256, None),
        (".reqntid 64 .reqntid 32", 32, (32, 1, 1)),
        (".reqntid 32, 4", 128, (32, 4, 1)),
        (".maxnreg 32 .minnctapersm 2", 1024, None),
    ],
)
def test_the_largest_block_of_a_kernel(directives, most, required):
    got = signature(parse(f"{HEADER} .entry k () {directives} {{ ret; }}"), "k")
    assert (got.max_threads, got.required_block) == (most, required)


def test_shared_memory_of_the_entry_and_what_it_calls():
    text = f"""{HEADER}
    .extern .shared .align 16 .b8 dynamic[];
    .shared .b8 odd[5];
    .shared .align 16 .f32 used[4];
    .shared .f64 unused[100];
    .shared .f64 by_value[1];
    .global .u64 holder = by_value;
    .func callee () {{ .reg .b32 r; {{ .shared .b16 inner[3]; mov.u32 r, inner; }} ret; }}
    .func stranger () {{ .shared .b8 more[1000]; ret; }}
    .entry k ()
    {{
        .reg .b32 r; .reg .b64 rd; .shared .f64 mine[2];
        mov.u32 r, odd; ld.shared.f32 r, [used+4]; mov.u32 r, dynamic; mov.u64 rd, holder; call callee; ret;
    }}
    .entry other () {{ ret; }}
    """
    module = parse(text)
    # In source order: odd 0-5, used 16-32, by_value 32-40, inner 40-46, mine 48-64.
    assert signature(module, "k").static_shared_bytes == 64
    assert signature(module, "other").static_shared_bytes == 0


def test_an_unknown_entry_is_refused_with_the_names_of_known_ones():
    names = ", ".join(repr(f"kernel_{index}") for index in range(10))
    entries = "".join(f".entry kernel_{index} () {{ ret; }}" for index in range(25))
    module = parse(f"{HEADER} {entries} .entry declared (); .func function () {{ ret; }}")
    for name in ("nobody", "declared", "function"):
        with pytest.raises(InvalidKernel, match=f"no kernel '{name}'; the module has {names} and 15 more$"):
            signature(module, name)
    with pytest.raises(InvalidKernel, match="the module has none"):
        signature(parse(HEADER), "k")
    with pytest.raises(InvalidKernel) as caught:
        signature(parse(f"{HEADER} .entry {'k' * 60_000} () {{ ret; }}"), "n" * 60_000)
    assert len(caught.value.message) < 200


# ------------------------------------------------------------------------------------ what compilers really emit

COMPILED = {
    ("vector_add.sm_80.ptx", "vector_add"): ("PPP-", [4, 4, 4, 1], 0),
    ("vector_add.sm_80.ptx", "vector_add4"): ("PPP-", [16, 16, 16, 1], 0),
    ("vector_add.sm_80.ptx", "byte_offset"): ("P-P", [1, 1, 1], 0),
    ("vector_add.sm_80.ptx", "ping_pong"): ("PP-", [8, 8, 1], 0),
    ("reduce.sm_75.ptx", "reduce"): ("PP-", [4, 4, 1], 128),
    ("reduce.sm_75.ptx", "histogram"): ("PP-", [1, 4, 1], 1024),
    ("reduce.sm_75.ptx", "dispatch"): ("P-P", [4, 1, 8], 512),
    ("reduce.sm_75.ptx", "compare_exchange"): ("P-", [8, 1], 0),
    ("functions.sm_80.ptx", "by_value"): ("--", [1, 1], 0),
    ("functions.sm_80.ptx", "indirect"): ("PP-", [4, 4, 1], 0),
    ("functions.sm_80.ptx", "local_array"): ("PP", [8, 4], 0),
    ("tensor.sm_80.ptx", "wmma_tile"): ("PPP", [16, 16, 16], 0),
    ("tensor.sm_80.ptx", "mma_inline"): ("PPP", [4, 4, 16], 0),
    ("tensor.sm_80.ptx", "staged"): ("PP", [16, 16], 2048),
    ("tensor.sm_80.ptx", "packed"): ("P", [8], 0),
    ("cluster.sm_90.ptx", "constant_grid"): ("-P", [1, 4], 0),
    ("cluster.sm_90.ptx", "cluster_exchange"): ("P", [4], 4),
    ("triton_matmul.ptx", "matmul_kernel"): ("PPP-P", [16, 16, 16, 1, 1], 0),
}


@pytest.mark.parametrize(("name", "entry"), COMPILED)
def test_signatures_of_compiled_kernels(name, entry):
    got = signature(parse(CORPUS[name]), entry)
    assert (pointers(got), aligns(got), got.static_shared_bytes) == COMPILED[name, entry]


def test_the_pointers_of_a_numba_array_are_its_data_alone():
    module = parse(CORPUS["numba_axpy.ptx"])
    (entry,) = (function.name for function in module.functions() if function.entry)
    assert pointers(signature(module, entry)) == "----P---"


def test_launch_bounds_of_compiled_kernels():
    assert signature(parse(CORPUS["reduce.sm_75.ptx"]), "reduce").max_threads == 256
    assert signature(parse(CORPUS["triton_matmul.ptx"]), "matmul_kernel").required_block == (128, 1, 1)


@settings(max_examples=30)
@given(modules())
def test_any_module_has_signatures(module):
    for function in module.functions():
        if function.entry and function.body is not None:
            got = signature(module, function.name)
            assert [param.name for param in got.params] == [param.name for param in function.params]


def test_tracing_time_is_proportional_to_chains_of_copies():
    copies = "".join(f"mov.u64 %q{index}, %q{index + 1};" for index in range(20_000))
    params = ", ".join(f".param .u64 p{index}" for index in range(500))
    loads = "".join(f"ld.param.u64 %q{20_000 - index * 30}, [p{index}];" for index in range(500))
    body = f".reg .b64 %q<20001>; .reg .f32 f; {copies} {loads} ld.global.f32 f, [%q0];"
    got = signature(parse(f"{HEADER} .entry k ({params}) {{ {body} ret; }}"), "k")
    assert all(param.pointer for param in got.params)
