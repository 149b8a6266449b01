"""Small PTX texts with a known signature."""

from __future__ import annotations

HEADER = ".version 7.0\n.target sm_70\n.address_size 64\n"

VECTOR_ADD = (
    HEADER
    + """
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<12>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd4, %rd1;
    cvta.to.global.u64 %rd5, %rd2;
    cvta.to.global.u64 %rd6, %rd3;
    mul.wide.u32 %rd7, %r5, 4;
    add.s64 %rd8, %rd4, %rd7;
    add.s64 %rd9, %rd5, %rd7;
    add.s64 %rd10, %rd6, %rd7;
    ld.global.f32 %f1, [%rd8];
    ld.global.f32 %f2, [%rd9];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd10], %f3;
DONE:
    ret;
}
"""
).encode()
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


def with_global(size_bytes: int) -> bytes:
    """Return a module that declares that much global memory beside its kernel ``nothing``."""
    return NOTHING.replace(b".visible", b".global .align 4 .b8 table[%d];\n.visible" % size_bytes, 1)


def padded(text: bytes, size_bytes: int) -> bytes:
    """Return the text with blanks at its end."""
    return text.ljust(size_bytes)
