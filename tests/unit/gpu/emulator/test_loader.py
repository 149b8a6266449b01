import numpy as np
import pytest

from fakes.emulation import HEAD, Emulation, kernel, store_result
from strategies.longest import nested, straight
from tensorwasm.errors import InvokeTimeout, MalformedPtx, TensorWasmError, UnsupportedPtx
from tensorwasm.gpu.emulator.program.program import MAX_TARGETS
from tensorwasm.gpu.emulator.steps.instructions import HANDLERS, LACKING
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, Deadline, LaunchConfig
from timing import cost_s, costs_less

DECLARATIONS = (
    ".reg .b16 %h<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .f64 %fd<9>; .reg .pred %p<9>;"
)


@pytest.mark.parametrize(
    ("instruction", "part"),
    [
        ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}]", "textures"),
        ("suld.b.1d.b32.trap %r1, [%rd1, {%r1}]", "surfaces"),
        ("wgmma.fence.sync.aligned", "asynchronous warpgroup products"),
        ("mapa.shared::cluster.u32 %r1, %r2, %r3", "clusters"),
        ("barrier.cluster.arrive", "clusters"),
        ("alloca.u64 %rd1, 16", "no stack of variable size"),
        ("stacksave.u64 %rd1", "no stack of variable size"),
        ("cp.async.bulk.commit_group", "bulk"),
        ("ld.shared::cluster.u32 %r1, [%r2]", ".shared::cluster"),
        ("ld.global.u24 %r1, [%rd1]", ".u24"),
        ("ld.global.v4.f64 {%fd1, %fd2, %fd3, %fd4, %fd5}, [%rd1]", "5 destinations"),
        ("frob.u32 %r1, %r2", "lacks this instruction"),
        ("mov.u32 %r1, %pm0", "special register %pm0"),
        ("fence.sideways", "fence.sideways"),
        ("mov.b128 %rd1, {%rd1, %rd2}", "128-bit"),
    ],
)
def test_unsupported_instructions_are_named_with_their_line(emulation, instruction, part):
    text = f"{HEAD.replace('sm_80', 'sm_90a')}.entry k()\n{{\n{DECLARATIONS}\n\n{instruction};\nret; }}"
    with pytest.raises(MalformedPtx) as caught:
        emulation.device.load(parse(text), NEVER)
    assert part in caught.value.message
    assert instruction.split()[0] in caught.value.message
    assert caught.value.line == 8


def test_no_opcode_is_both_known_and_lacking():
    assert not set(HANDLERS) & set(LACKING)


@pytest.mark.parametrize(
    "instruction",
    [
        "mov.u32 %r1, %rd1",
        "mov.u64 %rd1, %r1",
        "mov.pred %p1, %r1",
        "mov.u32 %r1, {%r1, %r2}",
        "mov.b64 {%r1, %r2, %r3}, %rd1",
        "mov.u32 5, %r1",
        "ld.global.u64 %r1, [%rd1]",
        "st.global.u64 [%rd1], %r1",
        "ld.global.u32 %r1, %rd1",
        "ld.global.u32 %r1, [%h1]",
        "st.const.u32 [%rd1], %r1",
        "ld.global.v2.u32 %r1, [%rd1]",
        "add.u32 %r1, %r2",
        "bar.sync",
        "bar.arrive 1",
        "cvta.to.shared.u64 %r1, %rd1",
        "isspacep.shared %r1, %rd1",
        "selp.b32 %r1, %r2, %r3, %r4",
        "add.f32 %f1, %f2, !%p1",
        "ld.param.u32 %r1, [p0+8]",
        "ld.param.v2.u32 {%r1, %r2}, [p0+-8]",
        "ld.param.u64 %rd1, [p0+4]",
        "nanosleep.u32",
        "ret %r1",
        "trap 1",
        "bar.warp.sync -1, 0",
    ],
)
def test_operands_that_do_not_fit_are_malformed(emulation, instruction):
    text = f"{HEAD}.entry k(.param .u64 p0)\n{{\n{DECLARATIONS}\n\n{instruction};\nret; }}"
    with pytest.raises(MalformedPtx) as caught:
        emulation.device.load(parse(text), NEVER)
    assert caught.value.line == 8


@pytest.mark.parametrize("body", [";".join(["@%p1 bra out"] * 3000) + "; out:", "{" * 30 + "}" * 30])
def test_many_branches_and_deep_blocks_load(emulation, body):
    emulation.device.load(parse(f"{HEAD}.entry k() {{ {DECLARATIONS} {body} ret; }}"), NEVER)


def test_variables_with_initial_values(emulation):
    before = """
        .global .align 4 .b8 bytes[8] = {1, 2, 255};
        .global .u16 halves[4] = {65535, 2};
        .global .f32 singles[2] = {0f3FC00000, 2.5};
        .const .f64 double = 0.1;
        .const .s32 negative = -5;
        .global .u64 address = halves;
        .global .u64 beyond = generic(halves)+2;
        .global .u64 constant = negative;
    """
    body = """
        ld.global.u32 %r2, [bytes]; ld.global.u16 %h1, [halves+2]; cvt.u32.u16 %r3, %h1;
        ld.global.f32 %f1, [singles]; ld.global.f32 %f2, [singles+4]; add.f32 %f1, %f1, %f2; cvt.rzi.u32.f32 %r4, %f1;
        ld.const.f64 %fd1, [double]; mul.f64 %fd1, %fd1, 0d4059000000000000; cvt.rni.u32.f64 %r5, %fd1;
        ld.const.s32 %r6, [negative]; ld.global.u64 %rd1, [address]; ld.global.u16 %h2, [%rd1]; cvt.u32.u16 %r7, %h2;
        ld.global.u64 %rd2, [beyond]; ld.u16 %h3, [%rd2]; cvt.u32.u16 %r8, %h3;
        ld.global.u64 %rd3, [constant]; ld.s32 %r9, [%rd3];
        ld.param.u64 %rd4, [p0]; st.global.v4.b32 [%rd4], {%r2, %r3, %r4, %r5};
        st.global.v4.b32 [%rd4+16], {%r6, %r7, %r8, %r9};
    """
    found = emulation.run(kernel(body, before=before), 8, block=(1, 1, 1))
    assert found.view(np.int32).tolist() == [0xFF0201, 2, 4, 10, -5, 65535, 2, -5]


def test_shared_variables_are_placed_for_each_kernel(emulation):
    # Together the kernels' variables would not fit; each kernel alone does.
    parts = [f".entry k{n}() {{ .shared .b32 big[{40 << 10}]; st.shared.b32 [big], 1; ret; }}" for n in range(4)]
    loaded = emulation.device.load(parse(HEAD + "\n".join(parts)), NEVER)
    for n in range(4):
        emulation.device.launch(
            loaded, f"k{n}", LaunchConfig((1, 1, 1), (1, 1, 1)), [], [], emulation.stream, Deadline.after(5)
        )
    emulation.device.synchronize(emulation.stream, Deadline.after(5))


def test_dynamic_shared_memory_follows_static_and_all_its_names_are_one(emulation):
    text = kernel(
        """
        mov.u32 %r1, one; mov.u32 %r2, two; mov.u32 %r3, fixed; setp.ne.u32 %p0, %r1, %r2; @%p0 trap;
        st.shared.u32 [%r1+96], 5; ld.shared.u32 %r4, [two+96]; st.shared.u32 [fixed+8], 6;
        mov.u32 %r5, %dynamic_smem_size; mad.lo.u32 %r4, %r4, 1000, %r5; and.b32 %r1, %r1, 15; add.u32 %r1, %r1, %r4;
        """
        + store_result(),
        before=".extern .shared .align 16 .b8 one[]; .extern .shared .b32 two[]; .shared .b32 fixed[3];",
    )
    assert emulation.run(text, 1, block=(1, 1, 1), shared_bytes=100).tolist() == [5100]
    assert "outside the 112 bytes" in emulation.fault(text, emulation.buffer([0]), shared_bytes=96)


def test_scopes_have_registers_and_labels_of_their_own(emulation):
    text = kernel(
        """
        .reg .u32 %x; mov.u32 %x, 1;
        { .reg .u32 %x; mov.u32 %x, 50; { .reg .u32 %x; mov.u32 %x, 7; bra skip; mov.u32 %x, 8;
            skip: add.u32 %r1, %x, 0; }
          bra skip; add.u32 %r1, %r1, 1000; skip: add.u32 %r1, %r1, %x; }
        add.u32 %r1, %r1, %x;
        """
        + store_result()
    )
    assert emulation.run(text, 2, block=(2, 1, 1)).tolist() == [58, 58]


def test_vector_registers(emulation):
    text = kernel(
        """
        .reg .v4 .u32 %v; .reg .v2 .u32 %w; ld.param.u64 %rd1, [p1]; ld.global.v4.u32 %v, [%rd1];
        mov.u32 %w.x, %v.w; mov.u32 %w.y, %v.z; mov.b64 %rd2, {%w.x, %w.y}; mov.b64 {%r2, %r3}, %rd2;
        mad.lo.u32 %r1, %r2, 100, %r3;
        """
        + store_result(),
        params=2,
    )
    assert emulation.run(text, 1, emulation.buffer([1, 2, 3, 4]), block=(1, 1, 1)).tolist() == [403]


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("mov.b32 %r1, 0f3F800000;", 0x3F800000),
        ("mov.f32 %f1, 0d3FF8000000000000; mov.b32 %r1, %f1;", 0x3FC00000),
        ("mov.f32 %f1, 3; mov.b32 %r1, %f1;", 0x40400000),
        ("mov.b32 %r1, -1;", 0xFFFFFFFF),
        ("mov.u16 %h1, 70000; cvt.u32.u16 %r1, %h1;", 4464),
        ("mov.b32 {%h1, %h2}, 0x12345678; cvt.u32.u16 %r1, %h2;", 0x1234),
        ("mov.u16 %h1, %tid.y; cvt.u32.u16 %r1, %h1;", 0),
        ("mov.u32 %r1, WARP_SZ;", 32),
        ("mov.pred %p1, 1; selp.u32 %r1, 4, 5, %p1;", 4),
        ("mov.b64 {_, %r1}, 0x1234567800000000;", 0x12345678),
        ("mov.b64 %rd1, 0d3FF8000000000000; mov.b64 {%r2, %r1}, %rd1;", 0x3FF80000),
    ],
)
def test_moves_of_constants(emulation, instruction, expected):
    text = kernel(instruction + store_result())
    assert emulation.run(text, 1, block=(1, 1, 1)).tolist() == [expected]


@pytest.mark.parametrize("variable", [".global .texref t;", ".global .samplerref s;"])
def test_opaque_variables_load_unless_used(emulation, variable):
    emulation.device.load(parse(HEAD + variable + ".entry k() { ret; }"), NEVER)


@pytest.mark.rule("13-memory")
def test_a_variable_beyond_the_budget_is_refused_at_load():
    emulation = Emulation(memory_bytes=1 << 20)
    with pytest.raises(UnsupportedPtx):
        emulation.device.load(parse(HEAD + ".global .b8 big[1048577]; .entry k() { ret; }"), NEVER)
    assert emulation.device.statistics().modules == 0


def test_32_bit_modules_are_refused(emulation):
    with pytest.raises(TensorWasmError):
        emulation.device.load(parse(HEAD.replace("64", "32") + ".entry k() { ret; }"), NEVER)


def _calls_through_prototypes(functions):
    bodies = "".join(f".func f{index}() {{ ret; }}" for index in range(functions))
    call = "p: .callprototype _ (); mov.u64 %rd1, f0;" + "call %rd1, (), p;" * functions
    return f"{HEAD}{bodies}.entry k() {{ .reg .b64 %rd<2>; {call} ret; }}"


def _calls_through_targets(functions):
    bodies = "".join(f".func f{index}() {{ ret; }}" for index in range(functions))
    listed = ", ".join(f"f{index}" for index in range(functions))
    call = f"t: .calltargets {listed}; mov.u64 %rd1, f0;" + "call %rd1, (), t;" * functions
    return f"{HEAD}{bodies}.entry k() {{ .reg .b64 %rd<2>; {call} ret; }}"


def _branches_through_tables(labels):
    listed = ", ".join(f"L{index}" for index in range(labels))
    places = "".join(f"L{index}:" for index in range(labels))
    body = f"mov.u32 %r1, 0; t: .branchtargets {listed};" + "brx.idx %r1, t;" * labels + places
    return f"{HEAD}.entry k() {{ .reg .b32 %r<2>; {body} ret; }}"


@pytest.mark.parametrize("hostile", [_calls_through_prototypes, _calls_through_targets, _branches_through_tables])
def test_the_work_of_many_indirect_branches_and_calls_is_bounded(emulation, hostile):
    emulation.device.load(parse(hostile(100)), NEVER)
    with pytest.raises(UnsupportedPtx, match=f"more than {MAX_TARGETS} targets"):
        emulation.device.load(parse(hostile(1100)), NEVER)


def test_a_long_chain_of_calls_loads_about_as_fast_as_functions_that_call_nothing(emulation):
    functions = range(1, 10_000)

    def loading(body):
        bodies = "".join(f".func f{index}() {{ {body(index)} }}" for index in functions)
        module = parse(f"{HEAD}.func f0() {{ ret; }}{bodies}.entry k() {{ call f{functions[-1]}; }}")
        return lambda: emulation.device.load(module, NEVER)

    plain_s = cost_s(loading(lambda _: "bar.sync 0;"))
    assert costs_less(3 * plain_s, loading(lambda index: f"call f{index - 1};"))


@pytest.mark.parametrize("text", [straight, nested])
@pytest.mark.rule("13-reading")
def test_a_deadline_ends_a_load_and_leaves_nothing(emulation, text):
    module = parse(text(2 << 20).replace(".entry", ".global .u32 x = 1; .entry", 1))
    before = emulation.device.statistics()

    def load() -> None:
        with pytest.raises(InvokeTimeout, match="the deadline passed while the PTX was made ready to run"):
            emulation.device.load(module, Deadline.after(0.5))

    assert costs_less(2.5, load)
    assert emulation.device.statistics() == before


@pytest.mark.rule("13-reading")
def test_wherever_a_deadline_ends_a_load_nothing_stays(emulation, monkeypatch):
    module = parse(HEAD + ".global .u32 x[3] = { 1, 2, 3 }; .func f() { L: bra L; } .entry k() { call f; ret; }")
    before, looks = emulation.device.statistics(), []
    for passes_at in range(1000):
        looks.clear()
        monkeypatch.setattr(Deadline, "expired", lambda _self, at=passes_at: looks.append(1) or len(looks) > at)
        try:
            emulation.device.unload(emulation.device.load(module, NEVER))
            break
        except InvokeTimeout:
            assert emulation.device.statistics() == before
    assert passes_at > 5
    assert emulation.device.statistics() == before


def test_many_parameters_are_loaded_many_times_in_proportion(emulation):
    params = ", ".join(f".param .u64 p{index}" for index in range(4000))
    loads = "".join(f"ld.param.u64 %rd1, [p{index}];" for index in range(4000))
    module = parse(f"{HEAD}.entry k({params}) {{ .reg .b64 %rd<2>; {loads} ret; }}")
    assert costs_less(3, lambda: emulation.device.load(module, NEVER))
