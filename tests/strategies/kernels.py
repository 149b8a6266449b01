"""Small PTX texts with a known signature."""

from __future__ import annotations

from pathlib import Path

HEADER = ".version 7.0\n.target sm_70\n.address_size 64\n"

VECTOR_ADD = (Path(__file__).resolve().parents[2] / "examples/vector_add/vector_add.sm_75.ptx").read_bytes()
"""``vector_add(const float *a, const float *b, float *c, unsigned n)``."""

FILL = (
    HEADER
    + """
.visible .entry fill(.param .u64 to, .param .u32 value)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [value];
    cvta.to.global.u64 %rd2, %rd1;
    st.global.u32 [%rd2], %r1;
    ret;
}
"""
).encode()
"""``fill(unsigned *to, unsigned value)``: one thread stores the value."""

NOTHING = (HEADER + ".visible .entry nothing()\n{\n    ret;\n}\n").encode()
"""``nothing()``."""

BY_VALUE = (HEADER + ".visible .entry by_value(.param .align 8 .b8 s[16])\n{\n    ret;\n}\n").encode()
"""``by_value(struct s)``."""

FOREVER = (HEADER + ".visible .entry forever()\n{\nAGAIN:\n    bra AGAIN;\n}\n").encode()
"""``forever()`` never ends."""

AFFINE = (
    HEADER
    + """
.visible .entry affine(.param .u64 at, .param .u32 factor, .param .u32 term)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [at];
    ld.param.u32 %r1, [factor];
    ld.param.u32 %r2, [term];
    cvta.to.global.u64 %rd2, %rd1;
    ld.global.u32 %r3, [%rd2];
    mad.lo.u32 %r4, %r3, %r1, %r2;
    st.global.u32 [%rd2], %r4;
    ret;
}
"""
).encode()
"""``affine(unsigned *at, unsigned factor, unsigned term)``: ``*at = *at * factor + term``, which tells any order."""

NAP = (
    HEADER
    + """
.visible .entry nap(.param .u64 ns)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [ns];
    mov.u64 %rd2, %globaltimer;
AGAIN:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra AGAIN;
    ret;
}
"""
).encode()
"""``nap(unsigned long long ns)``: lets that much time pass."""

ASTRAY = (
    HEADER
    + """
.visible .entry astray(.param .u64 at)
{
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [at];
    cvta.to.global.u64 %rd2, %rd1;
    st.global.u32 [%rd2+1073741824], 7;
    ret;
}
"""
).encode()
"""``astray(unsigned *at)`` writes a GiB past what it is given."""


LOOKUP = (
    HEADER
    + """
.global .align 4 .u32 table[4] = {11, 22, 33, 44};
.visible .entry lookup(.param .u64 to, .param .u32 index)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [index];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u64 %rd3, table;
    mad.wide.u32 %rd4, %r1, 4, %rd3;
    ld.global.u32 %r2, [%rd4];
    st.global.u32 [%rd2], %r2;
    ret;
}
"""
).encode()
"""``lookup(unsigned *to, unsigned index)``: ``*to = table[index]``, from global memory that nothing writes."""

COUNT = (
    HEADER
    + """
.global .align 4 .u32 counter;
.visible .entry count(.param .u64 to)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [to];
    cvta.to.global.u64 %rd2, %rd1;
    ld.global.u32 %r1, [counter];
    add.u32 %r2, %r1, 1;
    st.global.u32 [counter], %r2;
    st.global.u32 [%rd2], %r2;
    ret;
}
"""
).encode()
"""``count(unsigned *to)``: ``*to`` is how often it has run since the module was loaded."""


def with_global(size_bytes: int) -> bytes:
    """Return a module whose kernel ``nothing`` looks at a variable of that size in global memory."""
    return with_variable(b"global", size_bytes)


def with_variable(space: bytes, size_bytes: int) -> bytes:
    """Return a module whose kernel ``nothing`` looks at a variable of that size in a state space."""
    declared = NOTHING.replace(b".visible", b".%s .align 4 .b8 table[%d];\n.visible" % (space, size_bytes), 1)
    return declared.replace(b"ret;", b".reg .b8 %%x; ld.%s.u8 %%x, [table]; ret;" % space)


def padded(text: bytes, size_bytes: int) -> bytes:
    """Return the text with blanks at its end."""
    return text.ljust(size_bytes)
