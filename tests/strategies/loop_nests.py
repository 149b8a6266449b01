"""Random functions of C that are nests of loops over a few arrays, with subscripts that overlap in many ways.

A function ``f0``, ``f1``, ... has the parameters of `PARAMETERS` and returns a double. Its pointers point into the
middle of arrays that are larger than any subscript, and two of them to one array, a number of elements apart.
"""

from __future__ import annotations

import random

PARAMETERS = "int n, int m, int shift, double s"
ARRAYS = {"X": "double", "Y": "double", "F": "float", "W": "int", "H": "short", "U": "unsigned char", "L": "long long"}

_HEAD = """#include "loops.h"
#define MIDDLE 1600
%s
__attribute__((noinline)) double other(double a) { return a * 0.5 + 1; }
void EXPORT(init)(void) { for (int i = 0; i < 2 * MIDDLE; i++) { %s } }
"""
_INTEGERS = ("W", "H", "U", "L", "V")
DECLINED = {
    "CALL": "y[i] = other(x[i]);",
    "DATA_DEPENDENT": "y[u[i] & 7] += 1;",
    "INSTRUCTION": "h[i] = __builtin_wasm_memory_grow(0, 0);",
    "OUT_OF_BOUNDS": "y[i] = *(double *)((unsigned)x + 800000 * m + 8 * i);",
    "NOT_AFFINE": "__builtin_memmove(y + 3 * i, y + 3 * i + 1, 8 * m);",
    "WRAPS": "y[i] = x[(i - 1) * 20000];",
    "CONTROL_FLOW": "if (i > 2) { y[i] = 1; goto out; } x[i] = 2; if (i == m) { c = i; goto out; }",
    "TOO_LARGE": f"{'for (int j = 0; j <= n / 8; j++) ' * 9} y[i] += x[i] * s;",
    "SEQUENTIAL": "y[i] += y[i - 1] * s;",
    "NOT_A_NUMBER": "y[i] = (x[i] - x[i]) / (i - i);",
}
"""Bodies of a loop by why it is declined, most of them at every level of optimisation."""
_POINTERS = "".join(f"  {type_} *{name.lower()} = {name} + MIDDLE;\n" for name, type_ in ARRAYS.items())
_POINTERS += "  double *z = X + MIDDLE + shift; int *v = W + MIDDLE + shift;\n"


class _Function:
    def __init__(self, draw: random.Random, number: int) -> None:
        self.draw, self.number = draw, number
        self.counters: list[str] = []
        self.targets = draw.choice(["xyfwhl", "x", "xw", "yz", "f", "u", "hl", "xxyfwhulvz"])
        """Arrays that are written."""
        self.tidy = draw.random() < 0.75
        """Whether each iteration writes elements of its own, mostly to arrays that none reads."""
        self.scalars = {"t": "double", "c": "int"}
        self.loops = 0

    # ------------------------------------------------------------------------------------------------------ expressions

    def affine(self) -> str:
        """Return a subscript; it is far from the ends of the arrays."""
        terms = []
        for counter in self.draw.sample(self.counters, self.draw.randint(0, min(2, len(self.counters)))):
            factor = self.draw.choice([1, 1, 1, 1, 2, 3, -1, 8, 9])
            terms.append(counter if factor == 1 else f"{factor} * {counter}")
        terms += [self.draw.choice(["n", "m", "shift"])] if self.draw.random() < 0.12 else []
        terms += [str(self.draw.randint(-2, 3))]
        return " + ".join(terms)

    def own(self) -> str:
        """Return a subscript that is another one in each iteration."""
        strides = zip((1, 11, 110), reversed(self.counters), strict=False)
        terms = [f"{stride} * {counter}" for stride, counter in strides]
        return " + ".join([*terms, str(self.draw.choice([0, 0, 0, 1]))])

    def element(self, names: str = "xxxyyyfzwhulv") -> str:
        others = [name for name in names if name not in self.targets]
        if self.tidy and others and self.draw.random() < 0.85:
            return f"{self.draw.choice(others)}[{self.affine()}]"
        return f"{self.draw.choice(names)}[{self.own() if self.tidy else self.affine()}]"

    def real(self) -> str:
        leaves = ["s", "t", "1.5", "0.25", "n", *self.counters]
        return self.element() if self.draw.random() < 0.65 else self.draw.choice(leaves)

    def whole(self) -> str:
        kind = self.draw.random()
        if kind < 0.5:
            return self.element("wwhuv")
        return self.draw.choice(["c", "n", "m", "3", "-7", "0x55", *self.counters])

    def expression(self, *, integer: bool, depth: int = 2) -> str:
        if depth == 0 or self.draw.random() < 0.2:
            return self.whole() if integer else self.real()
        a = self.expression(integer=integer, depth=depth - 1)
        b = self.expression(integer=integer, depth=depth - 1)
        kind = self.draw.random()
        if kind < 0.1:
            return f"({self.condition()} ? {a} : {b})"
        if kind < 0.15:
            return f"({a} < {b} ? {a} : {b})"
        if integer:
            if kind < 0.3:
                return f"({a} {self.draw.choice(['>>', '<<'])} {self.draw.randint(1, 5)})"
            return f"(int)((unsigned){a} {self.draw.choice('+-*&|^')} (unsigned){b})"
        return f"({a} {self.draw.choice('++--**/')} {b})"

    def condition(self) -> str:
        kind = self.draw.random()
        if self.counters and kind < 0.75:
            first, *_ = self.draw.sample(self.counters, 1)
            other = self.draw.choice([*self.counters, "n", "m", "2", "3", "m - 1", "shift"])
            if kind < 0.2:
                return f"({first} & 1)"
            return f"({first} {self.draw.choice(['<', '<=', '>', '==', '!='])} {other})"
        return f"({self.element()} {self.draw.choice('<>')} {self.real()})"

    # ------------------------------------------------------------------------------------------------------- statements

    def statement(self) -> list[str]:
        kind = self.draw.random()
        if kind < 0.15:
            return [f"t {self.draw.choice(['=', '+=', '*='])} {self.expression(integer=False)};"]
        if kind < 0.22:
            return [f"c = {self.expression(integer=True)};"]
        if kind < 0.32:
            other = ["} else {", *self.statement()] if self.draw.random() < 0.4 else []
            return [f"if {self.condition()} {{", *self.statement(), *other, "}"]
        if kind < 0.4:
            return self.turning()
        name = self.draw.choice(self.targets)
        integer = name.upper() in _INTEGERS
        subscript = self.own() if self.tidy else self.affine()
        operator = self.draw.choice(["=", "=", "=", "+=", "-="])
        return [f"{name}[{subscript}] {operator} {self.expression(integer=integer)};"]

    def turning(self) -> list[str]:
        """Return a loop that data ends, after at most some turns, and that changes scalars only."""
        name = f"q{self.loops}"
        self.loops += 1
        self.counters.append(name)
        most = self.draw.choice(["n", "m", "6", "n - 1", *self.counters[:-1]])
        test = f"({self.element()} {self.draw.choice('<>')} {self.real()})"
        change = [f"t = {self.expression(integer=False)};", f"c += {self.expression(integer=True, depth=1)};"]
        body = [*self.draw.sample(change, self.draw.randint(0, 2)), f"if {self.condition()} break;"]
        lines = body[: self.draw.randint(0, 3)]
        if self.draw.random() < 0.25 and len(self.counters) < 4:
            lines += self.turning()
        self.counters.pop()
        way = self.draw.random()
        if way < 0.5:
            head, last = f"while ({name} < {most} && {test}) {{", f"{name}++; }}"
        elif way < 0.8:
            head, last = "do {", f"}} while (++{name} < {most} && {test});"
        else:
            head, last = f"for (; {name} < {most}; {name}++) {{ if {test} {{ c = {name}; break; }}", "}"
        return [f"{{ int {name} = 0;", head, *lines, last, f"c ^= {name}; }}"]

    def in_place(self) -> list[str]:
        """Return loops that update a square or triangular matrix from one row and column of it."""
        name, integer = self.draw.choice([("x", False), ("f", False), ("w", True), ("u", True)])
        self.loops += 3
        k, i, j = (f"i{self.loops - number}" for number in (3, 2, 1))
        pivot = self.draw.choice([k, k, k, f"{k} / 2", f"n - 1 - {k}", f"{k} + 1"])
        first, last = self.draw.choice([("0", "n"), ("0", "n"), (f"{k} + 1", "n"), ("0", k), (k, "n")])
        inner = self.draw.choice([(first, last), ("0", "n"), ("0", f"{i} + 1"), (i, "n")])
        read = [f"{name}[11 * {i} + {pivot}]", f"{name}[11 * {pivot} + {j}]", f"{name}[12 * {pivot}]", "3"]
        a, b = self.draw.sample(read, 2)
        cell = f"{name}[11 * {i} + {j}]"
        if integer:
            change = self.draw.choice([f"{cell} = {cell} < {a} + {b} ? {cell} : {a} + {b};", f"{cell} |= {a} & {b};"])
        else:
            change = self.draw.choice([f"{cell} -= {a} * {b};", f"{cell} = {cell} * 0.5 + {a};"])
        if self.draw.random() < 0.2:
            change = f"if ({a} > 0) {change}"
        return [
            f"for (int {k} = 0; {k} < n; {k}++)",
            f"  for (int {i} = {first}; {i} < {last}; {i}++)",
            f"    for (int {j} = {inner[0]}; {j} < {inner[1]}; {j}++) {change}",
        ]

    def loop(self, depth: int) -> list[str]:
        head = self.head()
        self.counters.append(f"i{self.loops - 1}")
        body = []
        for _ in range(self.draw.choice([1, 1, 2, 3])):
            if depth > 1 and self.draw.random() < 0.6:
                if self.draw.random() < 0.3:
                    body.append("t = 0;")
                body += self.loop(depth - 1)
            else:
                body += self.statement()
        if self.draw.random() < 0.04:
            body.append(f"if {self.condition()} {self.draw.choice(['break', 'continue'])};")
        self.counters.pop()
        return [head, *body, "}"]

    def head(self) -> str:
        name = f"i{self.loops}"
        self.loops += 1
        outer = self.draw.choice(self.counters) if self.counters else "1"
        first = self.draw.choice(["0", "0", "0", "1", "2", outer])
        lasts = ["n", "n", "n", "m", "m", "n - 1", "5", "8", f"{outer} + 1", f"{outer} + 3", f"n - {outer}"]
        last = self.draw.choice(lasts)
        kind = self.draw.random()
        if kind < 0.75:
            return f"for (int {name} = {first}; {name} < {last}; {name}++) {{"
        if kind < 0.85:
            return f"for (int {name} = {last}; {name} > {first}; {name}--) {{"
        if kind < 0.95:
            return f"for (int {name} = {first}; {name} < {last}; {name} += {self.draw.choice([2, 3, 'm'])}) {{"
        return f"for (unsigned {name} = n; {name} != 0; {name}--) {{"

    def declined(self) -> list[str]:
        """Return a loop that is declined; it may trap, so it is a function's last one."""
        return ["for (int i = 0; i < n; i++) {", self.draw.choice([*DECLINED.values()]), "}", "out:;"]

    def text(self) -> str:
        lines = self.in_place() if self.draw.random() < 0.12 else []
        for _ in range(self.draw.choice([1, 1, 2]) - bool(lines)):
            lines += self.loop(self.draw.choice([1, 2, 2, 3]))
        lines += self.declined() if self.draw.random() < 0.1 else []
        return function_of(self.number, lines)


def function_of(number: int, lines: list[str]) -> str:
    """Return the text of a function with some lines of code."""
    body = "\n".join(f"  {line}" for line in lines)
    return (
        f"double EXPORT(f{number})({PARAMETERS}) {{\n{_POINTERS}  double t = s; int c = n;\n"
        f"{body}\n  return t + c;\n}}\n"
    )


def head() -> str:
    """Return what comes before the functions of a source: the arrays, and ``init``."""
    arrays = "\n".join(f"{type_} {name}[2 * MIDDLE];" for name, type_ in ARRAYS.items())
    filled = " ".join(
        f"{name}[i] = ({type_})(sample(i, {salt}) * {1 if type_ in ('double', 'float') else 300} - {salt});"
        for salt, (name, type_) in enumerate(ARRAYS.items())
    )
    return _HEAD % (arrays, filled)


def functions(seed: int, count: int) -> list[str]:
    """Return the texts of some functions, the same for the same seed."""
    draw = random.Random(seed)
    return [_Function(draw, number).text() for number in range(count)]


def arguments(seed: int) -> tuple[int, int, int, float]:
    """Return arguments for a function: mostly of some trips, seldom none."""
    draw = random.Random(seed)
    return draw.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), draw.choice([1, 2, 3, 4, 5, 7]), draw.randint(-3, 9), 1.25
