"""Random functions of C with a loop that reduces to locals and places in memory, beside loads and stores.

A function ``f0``, ``f1``, ... has a parameter ``n`` and returns a double. What its pointers point to overlaps at
random, which its compiler does not know.
"""

from __future__ import annotations

import random

TRIPS = (1500, 3000)
"""Fewest and most iterations."""

_HEAD = """#include "loops.h"
#define SIZE 8192
int A[SIZE], B[SIZE], P[SIZE];
float X[SIZE], Y[SIZE], Q[SIZE];
void EXPORT(init)(void) {
  unsigned s = 1;
  for (int i = 0; i < SIZE; i++) {
    s = s * 1664525u + 1013904223u;
    A[i] = (int)s;
    B[i] = (int)(s >> 20) - 2000;
    X[i] = (float)((int)s >> 16);
    Y[i] = -1.0f - (s >> 24);
    P[i] = i * 7 - 20;
    Q[i] = i - 8;
  }
  X[1201] = Y[640] = -0.0f; X[777] = Y[1300] = 0.0f;
}
"""
_ARRAYS = {"int": "ABP", "float": "XYQ"}


class _Reduction:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.names = {"int": ["a", "b"], "float": ["x", "y"]}
        self.locals = {"s": "int", "t": "int", "m": "float"}

    def place(self, type_: str, *, stored: bool = False) -> str:
        subscripts = (
            ["i", "i", "i + 1", "n - i", "i + 5", "2"] if stored else ["i", "i", "i", "i + 1", "n - i", "2 * i"]
        )
        return f"{self.draw.choice(self.names[type_])}[{self.draw.choice(subscripts)}]"

    def term(self, type_: str) -> str:
        choice = self.draw.random()
        if choice < 0.6:
            return self.place(type_)
        if type_ == "float":
            return f"-{self.place(type_)}"
        return self.draw.choice([f"{self.place(type_)} * 3", f"({self.place(type_)} ^ i)", "i", "(e & 255)", "e"])

    def reduced(self) -> str:
        """Return a statement that reduces."""
        target, type_ = self.draw.choice(
            [("s", "int"), ("t", "int"), ("m", "float"), ("*p", "int"), ("p[1]", "int"), ("*q", "float")]
        )
        term = self.term(type_)
        if type_ == "int" and self.draw.random() < 0.7:
            return f"{target} {self.draw.choice(['+', '+', '-', '^', '|', '&', '*'])}= {term};"
        return f"if ({term} {self.draw.choice('<>')} {target}) {target} = {term};"

    def effect(self) -> str:
        """Return a statement that reduces, stores, or chooses."""
        choice = self.draw.random()
        if choice < 0.55:
            return self.reduced()
        if choice < 0.7:
            test = self.draw.choice(["i & 1", "e > 0", "b[i] & 2", "i > 700"])
            return f"if ({test}) {{ {self.reduced()} {self.reduced() if self.draw.random() < 0.5 else ''} }}"
        if choice < 0.78:
            return f"for (int j = 0; j < {self.draw.randint(2, 5)}; j++) s += b[i + j] * j;"
        type_ = self.draw.choice(["int", "int", "float"])
        return f"{self.place(type_, stored=True)} = {self.draw.choice(['i', self.term(type_), 'e & 63'])};"

    def text(self, number: int) -> str:
        """Return the function, and that which it calls."""
        body = " ".join(self.effect() for _ in range(self.draw.randint(1, 4)))
        aims = []
        for type_, arrays in _ARRAYS.items():
            for own in arrays:
                aim = self.draw.choice(arrays) if self.draw.random() < 0.12 else own
                aims.append(f"{type_} *volatile {own.lower()} = {aim} + {self.draw.choice([0, 0, 1, 3])};")
        return f"""static __attribute__((noinline)) double of{number}(
    int *a, int *b, int *p, float *x, float *y, float *q, int n) {{
  int s = 1, t = -1;
  float m = x[0];
  for (int i = 0; i < n; i++) {{ int e = a[i]; {body} }}
  return s * 0.5 + t + m;
}}
double EXPORT(f{number})(int n) {{
  {" ".join(aims)}
  return of{number}(a, b, p, x, y, q, n);
}}
"""


def reductions(seed: int, count: int) -> tuple[str, list[int]]:
    """Return the source of some functions, and how many iterations each is to run."""
    draw = random.Random(seed)
    texts = [_Reduction(draw).text(number) for number in range(count)]
    return _HEAD + "".join(texts), [draw.randint(*TRIPS) for _ in texts]
