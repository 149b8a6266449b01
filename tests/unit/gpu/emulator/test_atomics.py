import struct
import threading

import ml_dtypes
import numpy as np
import pytest

from fakes.emulation import HEAD, kernel, store_result
from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER

CELL = ".global .align 8 .b32 cell[8]; .shared .align 8 .b32 tile[8];"


def test_old_values_come_in_lane_order(emulation):
    text = kernel("atom.global.add.u32 %r1, [cell], %r0;" + store_result(), before=CELL)
    assert emulation.run(text, 64, block=(64, 1, 1)).tolist() == [t * (t - 1) // 2 for t in range(64)]


def test_lanes_that_meet_at_several_cells_of_shared_memory(emulation):
    text = kernel(
        """
        mov.u32 %r2, tile; setp.lt.u32 %p0, %r0, 8; mad.lo.u32 %r3, %r0, 4, %r2; @%p0 st.shared.b32 [%r3], 100;
        bar.sync 0; and.b32 %r3, %r0, 7; mad.lo.u32 %r3, %r3, 4, %r2; atom.shared.inc.u32 %r1, [%r3], 103;
        """
        + store_result(),
        before=CELL,
    )
    assert emulation.run(text, 64, block=(64, 1, 1)).tolist() == [(100 + t // 8) % 104 for t in range(64)]


def test_an_atomic_through_a_generic_address_reaches_every_space(emulation):
    text = kernel(
        """
        st.shared.b32 [tile], 7; bar.sync 0; mov.u64 %rd0, tile; cvta.shared.u64 %rd0, %rd0; mov.u64 %rd1, cell;
        and.b32 %r2, %r0, 1; setp.eq.u32 %p0, %r2, 0; selp.b64 %rd2, %rd0, %rd1, %p0;
        atom.add.u32 %r1, [%rd2], 10;
        """
        + store_result(),
        before=CELL,
    )
    assert emulation.run(text, 32).tolist() == [(0 if t % 2 else 7) + t // 2 * 10 for t in range(32)]


def test_single_precision_sums_flush_in_global_memory_only(emulation):
    tiny = struct.unpack("<I", struct.pack("<f", 1e-39))[0]
    body = f"mov.b32 %f1, {tiny}; {{}} mov.b32 %r1, %f2;"
    plain = kernel(body.format("atom.global.add.f32 %f2, [cell], %f1;") + store_result(), before=CELL)
    assert emulation.run(plain, 3, block=(3, 1, 1)).tolist() == [0, 0, 0]
    shared = body.format("st.shared.b32 [tile], 0; bar.sync 0; atom.shared.add.f32 %f2, [tile], %f1;")
    found = emulation.run(kernel(shared + store_result(), before=CELL), 3, block=(3, 1, 1))
    assert found.tolist() == [0, tiny, 2 * tiny]


@pytest.mark.parametrize(("kind", "element"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
@pytest.mark.parametrize("operation", ["add", "min", "max"])
def test_pairs_of_halves(emulation, kind, element, operation):
    pairs = np.array([[1.5, -2.0], [0.25, 3.0], [-7.0, 0.5], [2.0, 2.0]]).astype(element)
    bits = pairs.view(np.uint32).reshape(-1)
    text = kernel(
        f"ld.param.u64 %rd1, [p1]; mad.wide.u32 %rd1, %r0, 4, %rd1; ld.global.b32 %r2, [%rd1];"
        f"atom.global.{operation}.noftz.{kind}x2 %r1, [cell], %r2;" + store_result(),
        params=2,
        before=CELL,
    )
    found = emulation.run(text, 4, emulation.buffer(bits), block=(4, 1, 1))
    combine = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation]
    value, expected = np.zeros(2, element), []
    for pair in pairs:
        expected.append(value)
        value = combine(value, pair).astype(element)
    assert found.view(element).reshape(-1, 2).tolist() == np.array(expected).tolist()


def test_vectors_of_floats_and_a_dropped_result(emulation):
    text = (
        kernel(
            """
        mov.u64 %rd0, cell; cvt.rn.f32.u32 %f1, %r0; mov.f32 %f2, 0f3F800000;
        red.global.add.v2.f32 [%rd0], {%f1, %f2}; atom.global.add.f32 _, [%rd0+8], %f2;
        bar.sync 0; ld.global.f32 %f3, [%rd0]; ld.global.f32 %f4, [%rd0+4]; ld.global.f32 %f5, [%rd0+8];
        add.f32 %f3, %f3, %f4; add.f32 %f3, %f3, %f5; cvt.rzi.u32.f32 %r1, %f3;
        """
            + store_result(),
            before=CELL,
        )
        .replace("sm_80", "sm_90")
        .replace("8.0", "8.1")
    )
    assert emulation.run(text, 32)[0] == sum(range(32)) + 64


def test_sixteen_bit_compare_and_swap(emulation):
    text = kernel(
        """
        mov.u16 %h0, 0; mov.u16 %h1, 9; atom.global.cas.b16 %h2, [cell], %h0, %h1; cvt.u32.u16 %r1, %h2;
        """
        + store_result(),
        before=CELL,
    )
    assert emulation.run(text, 4, block=(4, 1, 1)).tolist() == [0, 9, 9, 9]


@pytest.mark.parametrize(
    ("instruction", "error"),
    [
        ("atom.global.mul.u32 %r1, [cell], 1", UnsupportedPtx),
        ("atom.global.add.b32 %r1, [cell], 1", UnsupportedPtx),
        ("atom.global.add.f16 %h1, [cell], %h1", UnsupportedPtx),
        ("atom.const.add.u32 %r1, [cell], 1", UnsupportedPtx),
        ("atom.shared::cluster.add.u32 %r1, [cell], 1", UnsupportedPtx),
        ("atom.global.cas.b32 %r1, [cell], 1", MalformedPtx),
        ("atom.global.add.u32 %r1, %r2, 1", MalformedPtx),
        ("red.global.add.u32 %r1, [cell], 1", MalformedPtx),
        ("atom.global.add.u64 %r1, [cell], 1", MalformedPtx),
        ("atom.global.exch.b128 %rd1, [cell], %rd1", UnsupportedPtx),
    ],
)
def test_forms_that_do_not_exist_are_refused_with_their_place(emulation, instruction, error):
    text = f"{HEAD}{CELL}\n.entry k() {{ .reg .b16 %h<4>; .reg .b32 %r<4>; .reg .b64 %rd<4>;\n{instruction};\nret; }}"
    with pytest.raises(error) as caught:
        emulation.device.load(parse(text), NEVER)
    assert caught.value.line == 6
    assert instruction.split()[0] in caught.value.message


def test_two_threads_of_the_host_update_one_counter(emulation):
    counter = emulation.buffer([0])
    text = kernel("ld.param.u64 %rd0, [p0]; red.global.add.u32 [%rd0], 1;")
    workers = [
        threading.Thread(
            target=emulation.launch, args=(text, counter), kwargs={"grid": (400, 1, 1), "block": (256, 1, 1)}
        )
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert emulation.read(counter).tolist() == [4 * 400 * 256]


def test_a_result_that_only_the_caller_uses_is_kept(emulation):
    function = ".func (.reg .b32 %o) f() { atom.global.add.u32 %o, [cell], 1; ret; }"
    text = kernel("call (%r1), f;" + store_result(), before=CELL + function)
    assert emulation.run(text, 32).tolist() == list(range(32))


@pytest.mark.parametrize(
    ("operation", "kind", "expected"),
    [
        ("add", "u32", 2016),
        ("min", "s32", 0),
        ("max", "u32", 63),
        ("xor", "b32", 0),
        ("or", "b32", 63),
        ("add", "u64", 2016),
    ],
)
def test_results_that_are_not_read(emulation, operation, kind, expected):
    wide = kind == "u64"
    target, source = ("%rd7", "%rd6") if wide else ("%r7", "%r0")
    text = kernel(
        f"cvt.u64.u32 %rd6, %r0; atom.global.{operation}.{kind} {target}, [cell], {source}; bar.sync 0;"
        "ld.global.b32 %r1, [cell];" + store_result(),
        before=CELL,
    )
    assert emulation.run(text, 64, block=(64, 1, 1)).tolist() == [expected] * 64


def test_sums_near_the_smallest_number_flush_on_the_way(emulation):
    # 1.5 * 2**-126 - 2**-126 is subnormal and counts as 0 before 2**-126 is added.
    text = kernel(
        """
        mov.b32 %f1, 0x00C00000; mov.b32 %f2, 0x80800000; mov.b32 %f3, 0x00800000;
        setp.eq.u32 %p0, %r0, 1; selp.f32 %f1, %f2, %f1, %p0; setp.eq.u32 %p0, %r0, 2; selp.f32 %f1, %f3, %f1, %p0;
        red.global.add.f32 [cell], %f1; bar.sync 0; ld.global.b32 %r1, [cell];
        """
        + store_result(),
        before=CELL,
    )
    assert emulation.run(text, 3, block=(3, 1, 1)).tolist() == [0x00800000] * 3
