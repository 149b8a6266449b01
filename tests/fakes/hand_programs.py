"""Programs of loop nests written by hand, and what runs them on the host and on the emulator."""

from __future__ import annotations

import ctypes
import random
import struct

from oracles.nest import run_nest
from oracles.program import compute
from tensorwasm.gpu.device.arguments import BufferOffset, Scalar
from tensorwasm.gpu.session import Session
from tensorwasm.offload.codegen.arguments import storage_bytes
from tensorwasm.offload.codegen.host import LoadedProgram, compile_for_host
from tensorwasm.offload.codegen.host_pool import HostPool
from tensorwasm.offload.codegen.iterations import in_order, statements_of
from tensorwasm.offload.codegen.nvptx import compile_for_gpu, grid_of
from tensorwasm.offload.codegen.sizes import LoadedCodes, make_plan
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Carried,
    Cell,
    Constant,
    Input,
    Load,
    Loop,
    Nest,
    Operation,
    SetCell,
    Statement,
    Store,
)
from tensorwasm.offload.opcodes import ROWS
from tensorwasm.offload.program import Array, CellStorage, Execute, For, HostLoop, Kernel, NestProgram
from tensorwasm.values import NEVER, LaunchConfig

ARCHITECTURE = (8, 0)
STEPS = 50_000


def literal(value):
    """Return a constant of type i64."""
    return Constant("i64", value % (1 << 64))


def affine(constant=0, **terms):
    """Return an affine expression; ``c2=8`` is 8 times the counter 2."""
    return Affine(constant, tuple((int(name[1:]), factor) for name, factor in terms.items()))


def apply(opcode, *operands):
    """Return an operation of the type that its row says."""
    return Operation(ROWS[opcode].result if opcode in ROWS else operands[0].type, opcode, operands)


def double(value):
    """Return a constant of type f64."""
    return Constant("f64", double_bits(value))


def double_bits(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def program(body, steps, arrays, cells=(), results=None, wraps=None):
    """Return a program whose accesses lie in the array that their pointer and offset begin in.

    Args:
        body: the nest's.
        steps: the program's.
        arrays: (first, size in bytes) of each.
        cells: storage of cells.
        results: of the nest.
        wraps: of accesses, where it is not 0.
    """
    array_of = {}
    for statement in statements(body):
        for effect in statement.effects:
            if not isinstance(effect, SetCell):
                at = effect.pointer.constant + effect.offset + (wraps or {}).get(effect, 0)
                array_of[effect] = max(number for number, (first, _) in enumerate(arrays) if first <= at)
    stored = {array_of[access] for access in array_of if isinstance(access, Store)}
    listed = tuple(
        Array(
            number,
            first,
            size,
            min([16, *(a.size_bytes for a in array_of if array_of[a] == number)]),
            True,
            number in stored,
        )
        for number, (first, size) in enumerate(arrays)
    )
    every = {access: (wraps or {}).get(access, 0) for access in array_of}
    return NestProgram(Nest(tuple(body), results or {}), tuple(steps), listed, tuple(cells), array_of, every)


def statements(body):
    for part in body:
        if isinstance(part, Statement):
            yield part
        else:
            yield from statements(part.body)


def gemm(n, unrolled=2):
    """C = beta C + alpha A B over three n by n matrices of f64 from address 0; alpha and beta are locals 3 and 4."""
    row, wide, a, b, c = 8 * n, 8 * unrolled, 0, 8 * n * n, 16 * n * n
    alpha, beta = Input("f64", 3), Input("f64", 4)
    scale, add = [], []
    for offset in range(0, wide, 8):
        old = Load("f64.load", affine(c, c0=row, c1=wide), offset)
        scale += [old, Store("f64.store", affine(c, c0=row, c1=wide), offset, apply("f64.mul", old, beta))]
    left = Load("f64.load", affine(a, c0=row, c2=8), 0)
    scaled = apply("f64.mul", alpha, left)
    add.append(left)
    for offset in range(0, wide, 8):
        right, old = (
            Load("f64.load", pointer, offset) for pointer in (affine(b, c2=row, c3=wide), affine(c, c0=row, c3=wide))
        )
        total = apply("f64.add", old, apply("f64.mul", scaled, right))
        add += [right, old, Store("f64.store", affine(c, c0=row, c3=wide), offset, total)]
    first, second = Statement(0, ALWAYS, tuple(scale)), Statement(1, ALWAYS, tuple(add))
    columns = n // unrolled
    inner = Loop(2, affine(n), (Loop(3, affine(columns), (second,)),))
    nest = Loop(0, affine(n), (Loop(1, affine(columns), (first,)), inner))
    sums = For("k", 0, n - 1, 1, (Execute(1, ("i", "k", "j")),))
    grid = For("j", 0, columns - 1, 1, (Execute(0, ("i", "j")), sums), parallel=True)
    steps = [Kernel(0, (For("i", 0, n - 1, 1, (grid,), parallel=True),))]
    return program([nest], steps, [(8 * n * n * number, 8 * n * n) for number in range(3)])


def jacobi(n, turns, unrolled=2):
    """Average the neighbours of two n by n matrices of f64 in turn."""
    row, wide, whole, columns = 8 * n, 8 * unrolled, 8 * n * n, (n - 2) // unrolled
    loops, kernels = [], []
    for number, (source, target) in enumerate(((0, whole), (whole, 0))):
        effects = []
        terms = {f"c{2 * number + 1}": row, f"c{2 * number + 2}": wide}
        for copy in range(unrolled):
            at = row + 8 + 8 * copy
            loads = [Load("f64.load", affine(source, **terms), at + apart) for apart in (0, -8, 8, row, -row)]
            total = loads[0]
            for load in loads[1:]:
                total = apply("f64.add", total, load)
            effects += [*loads, Store("f64.store", affine(target, **terms), at, apply("f64.mul", double(0.2), total))]
        inner = Loop(2 * number + 2, affine(columns), (Statement(number, ALWAYS, tuple(effects)),))
        loops.append(Loop(2 * number + 1, affine(n - 2), (inner,)))
        grid = For("j", 0, columns - 1, 1, (Execute(number, ("t", "i", "j")),), parallel=True)
        kernels.append(Kernel(number, (For("i", 0, n - 3, 1, (grid,), parallel=True),)))
    nest = Loop(0, affine(turns), tuple(loops))
    return program([nest], [HostLoop("t", 0, turns - 1, tuple(kernels))], [(0, whole), (whole, whole)])


def elementwise(opcode, count):
    """Apply an instruction to ``count`` operands, 8 bytes apart in arrays of their own, and store into the last one."""
    kinds = ROWS[opcode].operands
    loads = [Load(f"{kind}.load", affine(8 * count * number, c0=8), 0) for number, kind in enumerate(kinds)]
    result = apply(opcode, *loads)
    store = Store(f"{result.type}.store", affine(8 * count * len(loads), c0=8), 0, result)
    nest = Loop(0, affine(count), (Statement(0, ALWAYS, (*loads, store)),))
    steps = [Kernel(0, (For("i", 0, count - 1, 1, (Execute(0, ("i",)),), parallel=True),))]
    return program([nest], steps, [(8 * count * number, 8 * count) for number in range(len(kinds) + 1)])


def doubles(count, seed=0):
    draw = random.Random(seed)
    return bytearray(struct.pack(f"<{count}d", *(draw.uniform(-2, 2) for _ in range(count))))


def expected(made, memory, inputs=None):
    """Return the memory after the nest, run in order, and its results."""
    memory = bytearray(memory)
    results, _ = run_nest(made.nest, inputs or {}, memory, STEPS)
    return memory, results


def inputs_of(nest, seed):
    """Return bits for the inputs of a nest."""
    draw = random.Random(seed)
    effects = [effect for statement, _ in statements_of(nest.body) for effect in statement.effects]
    roots = [*(effect.value for effect in effects if not isinstance(effect, Load)), *nest.results.values()]
    kinds = {value.local: value.type for value in in_order(roots) if isinstance(value, Input)}
    ones = {"f32": 0x3F9D70A4, "f64": 0x3FF3AE147AE147AE}
    return {local: ones.get(kind, draw.getrandbits(32)) for local, kind in kinds.items()}


def total_program(count, *, parallel=1):
    """Sums of ``count`` doubles into a cell, which is the result; or into private cells, whose sums are stored."""
    load = Load("f64.load", affine(0, c0=8 * count, c1=8) if parallel > 1 else affine(0, c0=8), 0)
    cell = Cell(0, "f64", (0,) if parallel > 1 else ())
    first = Statement(0, ALWAYS, (SetCell(cell, double(0.5)),))
    add = Statement(1, ALWAYS, (load, SetCell(cell, apply("f64.add", Carried(cell), load))))
    if parallel == 1:
        body = [first, Loop(0, affine(count), (add,))]
        steps = [Kernel(0, (Execute(0, ()), For("k", 0, count - 1, 1, (Execute(1, ("k",)),))))]
        storage = CellStorage(cell, (), 1, private=False)
        return program(
            body, steps, [(0, 8 * count)], [storage], {7: apply("f64.neg", Carried(cell)), 8: Constant("i32", 5)}
        )
    put = Statement(2, ALWAYS, (Store("f64.store", affine(8 * count * parallel, c0=8), 0, Carried(cell)),))
    body = [Loop(0, affine(parallel), (first, Loop(1, affine(count), (add,)), put))]
    inner = (Execute(0, ("i",)), For("k", 0, count - 1, 1, (Execute(1, ("i", "k")),)), Execute(2, ("i",)))
    steps = [Kernel(0, (For("i", 0, parallel - 1, 1, inner, parallel=True),))]
    storage = CellStorage(cell, (0,), 1, private=True)
    return program(body, steps, [(0, 8 * count * parallel), (8 * count * parallel, 8 * parallel)], [storage])


def copying(count, opcode="f64", value=lambda load: load):
    load = Load(f"{opcode}.load", affine(0, c0=8), 0)
    store = Store(f"{opcode}.store", affine(8 * count, c0=8), 0, value(load))
    body = [Loop(0, affine(count), (Statement(0, ALWAYS, (load, store)),))]
    grid = For("i", 0, count - 1, 1, (Execute(0, ("i",)),), parallel=True)
    return program(body, [Kernel(0, (grid,))], [(0, 8 * count), (8 * count, 8 * count)])


def ready_on_host(made, codes=None):
    """Return a program with machine code, which is new or one of loaded codes."""
    codes = codes or LoadedCodes(LoadedProgram)
    return codes.ready(make_plan(made, compile_for_host, codes.known()))


def run_on_host(made, memory, inputs=None, threads=2, codes=None):
    """Run a program on a bytearray; return how it ended."""
    anchor = (ctypes.c_char * len(memory)).from_buffer(memory)
    with HostPool(threads) as pool:
        return pool.run(ready_on_host(made, codes), ctypes.addressof(anchor), inputs or {}, NEVER)


def run_on_gpu(device, made, memory, inputs=None, *, guarded=False):
    """Run a program's PTX on a bytearray; return the results, or None if a NaN showed."""
    with Session(device, guarded=guarded) as session:
        plan = make_plan(made, lambda program: compile_for_gpu(program, ARCHITECTURE), (), vectors=True)
        return GpuRun(session, plan, memory).run(memory, inputs or {})


class GpuRun:
    """One run of a program's PTX, of which arrays and cells are buffers of their own."""

    def __init__(self, session, plan, memory):
        self.kernels, self.buffers, self.plan, self.code = session.kernels, session.buffers, plan, plan.code
        code, arguments = plan.code, plan.program.arguments
        self.arrays = [self.buffer(memory[each.first : each.first + each.size_bytes]) for each in arguments.arrays]
        self.cells = [self.buffer(bytes(storage_bytes(storage))) for storage in arguments.cells]
        self.flag, self.results = self.buffer(bytes(4)), self.buffer(bytes(8 * len(arguments.results)))
        names = [kernel.entry for kernel in code.kernels.values()] + [code.results] * (code.results is not None)
        self.loaded = {name: self.kernels.load(code.ptx.encode(), name, NEVER) for name in names}

    def run(self, memory, inputs):
        arrays = zip(self.plan.program.arguments.arrays, self.arrays, strict=True)
        self.common = [BufferOffset(handle, array.origin) for array, handle in arrays]
        self.common += [BufferOffset(handle, 0) for handle in self.cells]
        for local, kind in self.plan.program.arguments.inputs:
            self.common.append(Scalar(inputs[local].to_bytes(8, "little")[: 4 if kind.endswith("32") else 8]))
        self.walk(self.plan.program.steps, self.plan.program.sizes)
        if self.code.results is not None:
            self.launch(self.code.results, LaunchConfig((1, 1, 1), (1, 1, 1)), BufferOffset(self.results, 0))
        for array, handle in zip(self.plan.program.arguments.arrays, self.arrays, strict=True):
            memory[array.first : array.first + array.size_bytes] = self.read(handle, array.size_bytes)
        if self.read(self.flag, 4) != bytes(4):
            return None
        locals_ = [local for local, _ in self.plan.program.arguments.results]
        return dict(self.plan.program.known) | dict(
            zip(locals_, struct.unpack(f"<{len(locals_)}Q", self.read(self.results, 8 * len(locals_))), strict=True)
        )

    def walk(self, steps, variables):
        for step in steps:
            if isinstance(step, HostLoop):
                for value in range(compute(step.first, variables), compute(step.last, variables) + 1):
                    self.walk(step.body, {**variables, step.variable: value})
                continue
            kernel = self.code.kernels[step.number]
            config = grid_of(kernel, variables)
            if config is not None:
                more = [Scalar(struct.pack("<q", variables[name])) for name in kernel.variables]
                self.launch(kernel.entry, config, *more)

    def launch(self, entry, config, *more):
        arguments = [*self.common, *more, BufferOffset(self.flag, 0)]
        self.kernels.launch(self.loaded[entry], config, lambda: arguments, None, NEVER)

    def buffer(self, data):
        handle = self.buffers.allocate(max(1, len(data)))
        self.buffers.write(handle, bytes(data), NEVER)
        return handle

    def read(self, handle, size_bytes):
        into = bytearray(size_bytes)
        self.buffers.read(handle, memoryview(into), NEVER)
        return into
