"""Hostile kernels: attacks on whoever runs untrusted PTX, each made of an integer alone, and a list of single attacks.

`generate` mixes attacks; `DELIBERATE` has every one of them alone.
"""

from __future__ import annotations

import random

from strategies.hostile.accesses import IMMEDIATES, SPACES, access_template, atomics, loads, stores, types
from strategies.hostile.kernel import MAKERS, ODDITIES, OWN_BYTES, PARAMETERS, Form, Hostile, Kernel, read_forms

__all__ = ["DELIBERATE", "FAMILIES", "FORMS", "OWN_BYTES", "PARAMETERS", "Hostile", "generate"]

_WEIGHTS = {
    "wild": 4,
    "shared": 3,
    "local": 2,
    "generic": 3,
    "constant": 2,
    "unwritten": 2,
    "control": 2,
    "sync": 1,
    "refused": 0,
    "spelling": 2,
    "turns": 2,
}
"""How often each family is mixed with others. Of a kernel that is refused by name nothing else is seen."""
FAMILIES = {family: tuple(read_forms(family).values()) for family in _WEIGHTS}
FORMS = {form.full_name: form for forms in FAMILIES.values() for form in forms}
"""Every attack, by ``family/form``."""
_APART = {"refused", "invalid"}


def generate(seed: int) -> Hostile:
    """Return the kernel of a seed: one to three snippets, each of a family, some in a branch, a loop or a block.

    As many seeds in a row as there are `FORMS`, from a multiple of that number on, begin with each form once.
    """
    rng = random.Random(seed)
    kernel = Kernel(rng)
    used = [_first(seed)]
    _embed(kernel, used[0])
    if not used[0].words & _APART:
        for family in rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=rng.choice((0, 0, 1, 1, 2))):
            form = rng.choice([form for form in FAMILIES[family] if form not in used and not form.words & _APART])
            used.append(form)
            _embed(kernel, form)
    return kernel.finish(seed, used)


def _first(seed: int) -> Form:
    """Return the form that a seed begins with: a permutation of all of them, another for every round."""
    turn, place = divmod(seed, len(FORMS))
    order = list(FORMS.values())
    random.Random(turn).shuffle(order)
    return order[place]


def _embed(kernel: Kernel, form: Form) -> None:
    """Write an attack as it is, or inside a branch that half of the threads take, a short loop, or a block."""
    rng = kernel.rng
    where = "as it is"
    if form.family != "sync" and "open" not in form.template and rng.random() < 0.45:
        where = rng.choice(("branch", "loop", "block"))
    if ".reg" in form.template:  # its names must not meet those of another snippet
        where = "block"
    label = f"around_{kernel.number()}"
    match where:
        case "branch":
            kernel.lines.append(f"@{rng.choice(('', '!'))}%odd bra {label};")
            kernel.add(form)
            kernel.lines.append(f"{label}:")
        case "loop":
            count, again = kernel.register("r"), kernel.register("p")
            kernel.lines += [f"mov.u32 {count}, 0;", f"{label}:"]
            kernel.add(form)
            kernel.lines += [f"add.u32 {count}, {count}, 1;", f"setp.lt.u32 {again}, {count}, 3;"]
            kernel.lines.append(f"@{again} bra {label};")
        case "block":
            kernel.lines.append("{")
            kernel.add(form)
            kernel.lines.append("}")
        case _:
            kernel.add(form)


# -------------------------------------------------------------------------------------------------- single attacks


def _deliberate(name: str, variant: int | None = None) -> Kernel:
    """Return an empty kernel for a single attack: two blocks of two warps, unless the attack says otherwise."""
    return Kernel(random.Random(name), variant, grid=(2, 1, 1), block=(64, 1, 1))


def _alone() -> dict[str, Hostile]:
    """Return one kernel a form and alternative; a variant takes its number's alternative everywhere."""
    made: dict[str, Hostile] = {}
    for name, form in FORMS.items():
        number, most = 0, 1
        while number < most:
            kernel = _deliberate(f"{name} {number}", number)
            kernel.add(form)
            most = kernel.most
            made[f"{name}/{number}"] = kernel.finish(number, [form])
            number += 1
    return made


def _from_each_maker() -> dict[str, Hostile]:
    """Return one kernel an address or offset: it reads and writes there."""
    made = {}
    for letter, base in (("A", "global"), ("O", "shared"), ("S", "local")):
        register = "$r9" if letter == "O" else "$d9"
        for name, maker in MAKERS[letter].items():
            text = f"ld.{base}.u32 $r8, [{register}];\nst.{base}.u32 [{register}], %seed;\nleak $r8"
            form = Form("address", f"{letter}-{name}", f"{maker.template.replace('$T0', register)}\n{text}")
            kernel = _deliberate(form.full_name)
            kernel.add(form)
            made[form.full_name] = kernel.finish(0, [form])
    return made


def _with_each_access(space: str) -> dict[str, Hostile]:
    """Return a kernel a mnemonic, and one a type: each accesses a random address."""
    base = "[%seed]" if space in {"shared", "cta"} else "[%far]"
    asked = [f"{mnemonic}.u32" for mnemonic in loads(space)]
    asked += [f"ld{SPACES[space]}.{kind}" for kind in types()]
    if space != "const":
        asked += [f"{mnemonic}.b32" for mnemonic in stores(space)]
        asked += [f"st{SPACES[space]}.{kind}" for kind in types()]
    if space not in {"const", "local"}:
        asked += atomics(space)
    forms = {mnemonic: access_template(mnemonic) for mnemonic in asked}
    forms |= {name: form.template for name, form in ODDITIES.items() if name.partition("-")[0] == space}
    made = {}
    for name, template in forms.items():
        form = Form("access", f"{space}-{name}", template)
        kernel = _deliberate(form.full_name)
        kernel.add_access(space, base, template)
        made[form.full_name] = kernel.finish(0, [form])
    return made


def _with_each_immediate() -> dict[str, Hostile]:
    """Return a kernel an immediate offset, with accesses to his buffer, to shared and to local memory."""
    template = """ld.global.u8 $r1, [%own{0}];
st.global.v4.u32 [%own{0}], {{$r1, $r1, $r1, $r1}};
atom.global.add.u64 $d1, [%own{0}], 1;
.shared .align 16 .b8 $v1[64];
st.shared.u32 [$v1{0}], $r1;
.local .align 16 .b8 $v2[64];
st.local.u64 [$v2{0}], $d1;
leak $d1"""
    made = {}
    for immediate in dict.fromkeys(IMMEDIATES):
        form = Form("immediate", immediate or "none", template.format(immediate))
        kernel = _deliberate(form.full_name)
        kernel.add(form)
        made[form.full_name] = kernel.finish(0, [form])
    return made


DELIBERATE = _alone() | _with_each_immediate() | _from_each_maker()
"""Kernels of a single attack each: ``family/form/variant``, ``address/...``, ``immediate/...``, ``access/...``."""
for _space in SPACES:
    DELIBERATE |= _with_each_access(_space)
