"""Products of matrices in registers (mma), and the tiles that feed them (ldmatrix, stmatrix, movmatrix).

How tensor cores order and round the additions inside one product is not documented. Most cases use numbers whose sums
are exact in any order; one uses any numbers and allows for it.

Source: PTX ISA 9.7.14.5.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from oracles import tensor
from strategies import matrices
from strategies.lanes import LaneKernel, module, random_bits
from tensorwasm.gpu.emulator.collective import forms

WARP = 32
MMA = [name for name in forms() if name.startswith("mma.")]


def requirements(mnemonic: str) -> tuple[int, str]:
    """Return the least target and PTX version of a product."""
    form = tensor.read_form(mnemonic)
    shape = (form.m, form.n, form.k)
    if form.a in {"e4m3", "e5m2"}:
        return 89, "8.7" if form.d == "f16" or form.k == 16 else "8.4"
    if form.a == "f64" and form.m == 16:
        return 90, "8.0"
    if form.quad:
        return 70, "8.0"
    turing = {"f16": {(16, 8, 8)}, "s8": {(8, 8, 16)}, "u8": {(8, 8, 16)}, "s4": {(8, 8, 32)}, "u4": {(8, 8, 32)}}
    if shape in turing.get(form.a, ()) or (form.a == "b1" and shape == (8, 8, 128) and form.rule == "xor"):
        return 75, "8.0"
    return 80, "8.0"


def counts_of(form: tensor.Form) -> tuple[int, int, int, int]:
    """Return the registers of D, A, B and C in a lane."""
    return (
        tensor.registers_per_lane(form.m, form.n, form.d, form),
        tensor.registers_per_lane(form.m, form.k, form.a, form),
        tensor.registers_per_lane(form.k, form.n, form.b, form),
        tensor.registers_per_lane(form.m, form.n, form.c, form),
    )


def identifier(mnemonic: str) -> str:
    return mnemonic.replace(".", "_").replace(":", "_")


def vector(letter: str, first: int, count: int) -> str:
    return "{" + ", ".join(f"%{letter}{first + i}" for i in range(count)) + "}"


def product_kernel(mnemonic: str) -> LaneKernel:
    form = tensor.read_form(mnemonic)
    d, a, b, c = counts_of(form)
    register = {"f64": "b64", "f32": "f32"}
    sources = (*[register.get(form.a, "b32")] * (a + b), *[register.get(form.c, "b32")] * c)
    results = (register.get(form.d, "b32"),) * d
    operands = [vector("d", 0, d), vector("a", 0, a), vector("a", a, b), vector("a", a + b, c)]
    return LaneKernel(identifier(mnemonic), sources, results, f"{mnemonic} {', '.join(operands)};")


@functools.cache
def product_module(needs: tuple[int, str]) -> str:
    """Return one module with every product of the same requirements: few modules are quick to load."""
    kernels = [product_kernel(mnemonic) for mnemonic in MMA if requirements(mnemonic) == needs]
    return module(kernels, f"sm_{needs[0]}", needs[1])


def draw(random, form: tensor.Form, element) -> list[list[int]]:
    """Return the source registers of every lane."""
    lanes = []
    for _ in range(WARP):
        lane = []
        for count, type_ in zip(counts_of(form)[1:], (form.a, form.b, form.c), strict=True):
            per = max(32 // tensor.BITS[type_], 1)
            lane += matrices.pack([element(random, type_) for _ in range(count * per)], type_)
        lanes.append(lane)
    return lanes


def multiply(launcher, mnemonic: str, lanes: list[list[int]]):
    """Run a product; yield per tile the matrices A, B, C and D of element bits."""
    needs, form = requirements(mnemonic), tensor.read_form(mnemonic)
    launcher.require(*needs)
    kernel = product_kernel(mnemonic)
    types = kernel.sources
    columns = [np.array([lane[i] for lane in lanes], "u8" if "64" in t else "u4") for i, t in enumerate(types)]
    got = launcher.run_lanes(kernel, columns, lanes=WARP, text=product_module(needs))
    results = [[int(column[lane]) for column in got] for lane in range(WARP)]
    _, a, b, _ = counts_of(form)
    part = [(0, a), (a, a + b), (a + b, None)]
    inputs = [[lane[slice(*span)] for lane in lanes] for span in part]
    shapes = [(form.m, form.k), (form.k, form.n), (form.m, form.n)]
    places = [tensor.place_a, tensor.place_b, None]
    gathered = []
    for registers, type_, shape, place in zip(inputs, (form.a, form.b, form.c), shapes, places, strict=True):
        where = functools.partial(place, form) if place else functools.partial(tensor.place_c, form, type_)
        gathered.append(tensor.gather(registers, type_, shape, where, form))
    where = functools.partial(tensor.place_c, form, form.d)
    gathered.append(tensor.gather(results, form.d, shapes[2], where, form))
    return zip(*gathered, strict=True)


def values(matrix, type_: str):
    return [[tensor.decode(bits, type_) for bits in row] for row in matrix]


def finish(form: tensor.Form, total):
    if form.d == "s32":
        return tensor.saturate(total) if "satfinite" in form.flags else tensor.wrap(total)
    return float(total)


@pytest.mark.parametrize("mnemonic", MMA)
def test_every_product_of_numbers_whose_sums_are_exact(launcher, mnemonic):
    form = tensor.read_form(mnemonic)
    lanes = draw(np.random.default_rng(len(mnemonic)), form, matrices.draw_exact)
    for a, b, c, d in multiply(launcher, mnemonic, lanes):
        rule = "sum" if form.rule == "fma" else form.rule
        product = tensor.multiply(values(a, form.a), values(b, form.b), values(c, form.c), rule)
        assert values(d, form.d) == [[finish(form, total) for total in row] for row in product]


ROUNDING = [name for name in MMA if tensor.read_form(name).a in {"f16", "bf16", "tf32", "f64"}]


@pytest.mark.parametrize("mnemonic", ROUNDING)
def test_products_that_round_stay_within_what_additions_can_lose(launcher, mnemonic):
    form = tensor.read_form(mnemonic)
    lanes = draw(np.random.default_rng(len(mnemonic) + 1), form, matrices.draw_rounding)
    precision = {"f64": 52, "f32": 23, "f16": 10}[form.d]
    for a, b, c, d in multiply(launcher, mnemonic, lanes):
        sources = values(a, form.a), values(b, form.b), values(c, form.c)
        exact, scale = tensor.multiply(*sources), tensor.magnitude(*sources)
        got = values(d, form.d)
        for i in range(form.m):
            for j in range(form.n):
                # Every addition may drop bits below the largest term; so may the last rounding.
                allowed = float(scale[i][j]) * (form.k + 2) / 2**precision
                assert abs(float(got[i][j] - exact[i][j])) <= allowed


# ------------------------------------------------------------------------------------------------ tiles

TILES = f".shared .align 16 .b8 tiles[{4 * 8 * 16}];"


def fill_tiles(random) -> tuple[np.ndarray, np.ndarray]:
    """Return four 8 x 8 tiles of b16, and the words that 32 lanes of 16 bytes each store to make them."""
    tiles = random_bits(random, "b16", 4 * 64).reshape(4, 8, 8)
    return tiles, tiles.reshape(32, 8).view(np.uint32)


STORE_ROWS = """
        mov.u64 %rd0, tiles;
        mad.wide.u32 %rd1, %lane, 16, %rd0;
        st.shared.v4.b32 [%rd1], {%a0, %a1, %a2, %a3};
        bar.sync 0;
"""


def fragment(tile: np.ndarray) -> np.ndarray:
    """Return what each lane holds of a tile: two neighbours of row ``lane / 4``."""
    return np.ascontiguousarray(tile.reshape(32, 2)).view(np.uint32).ravel()


@pytest.mark.parametrize("space", ["shared", "generic"])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(launcher, count, trans, space):
    launcher.require(75)
    tiles, words = fill_tiles(np.random.default_rng(count))
    suffix, convert = (".shared", "") if space == "shared" else ("", "cvta.shared.u64 %rd1, %rd1;")
    # Lane i gives the address of row i % 8 of tile i / 8; here the tiles are taken in reverse.
    body = f"""
        {STORE_ROWS}
        shr.u32 %r0, %lane, 3;
        sub.u32 %r0, 3, %r0;
        and.b32 %r1, %lane, 7;
        mad.lo.u32 %r0, %r0, 8, %r1;
        mad.wide.u32 %rd1, %r0, 16, %rd0;
        {convert}
        ldmatrix.sync.aligned.m8n8.x{count}{trans}{suffix}.b16 {vector("d", 0, count)}, [%rd1];
    """
    kernel = LaneKernel("loading", ("b32",) * 4, ("b32",) * count, body, TILES)
    got = launcher.run_lanes(kernel, list(words.T), lanes=WARP, text=module([kernel], "sm_75"))
    chosen = [tile.T if trans else tile for tile in tiles[::-1][:count]]
    assert_array_equal(got, [fragment(tile) for tile in chosen])


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(launcher, count, trans):
    launcher.require(90)
    tiles, words = fill_tiles(np.random.default_rng(count))
    fragments = [fragment(tile.T if trans else tile) for tile in tiles]
    body = f"""
        {STORE_ROWS}
        stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%rd1], {vector("a", 4, count)};
        bar.sync 0;
        ld.shared.v4.b32 {vector("d", 0, 4)}, [%rd1];
    """
    # The memory starts with other tiles, of which the store replaces the first ones.
    before = words ^ np.uint32(0xFFFFFFFF)
    kernel = LaneKernel("storing", ("b32",) * 8, ("b32",) * 4, body, TILES)
    got = launcher.run_lanes(kernel, [*before.T, *fragments], lanes=WARP, text=module([kernel], "sm_90"))
    expected = np.concatenate([words[: 8 * count], before[8 * count :]])
    assert_array_equal(np.array(got).T, expected)


def test_movmatrix_transposes(launcher):
    launcher.require(75)
    tiles, _ = fill_tiles(np.random.default_rng(9))
    kernel = LaneKernel("turning", ("b32",), ("b32",), "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %a0;")
    (got,) = launcher.run_lanes(kernel, [fragment(tiles[0])], lanes=WARP, text=module([kernel], "sm_75"))
    assert_array_equal(got, fragment(tiles[0].T))
