"""Kernels that tests of the GPU share."""

POLL = """
.version 6.3
.target sm_70
.address_size 64
.visible .entry poll(.param .u64 flag)
{
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [flag];
AGAIN:
  ld.volatile.global.u32 %r1, [%rd1];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra AGAIN;
  ret;
}
"""
"""Runs until the word at ``flag`` is not 0."""

COUNT = """
.version 6.3
.target sm_70
.address_size 64
.visible .entry count(.param .u64 p)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p];
  ld.global.u32 %r1, [%rd1];
  add.u32 %r1, %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
"""
"""Adds 1 to the word at ``p``; one thread."""

SMID = """
.version 6.3
.target sm_70
.address_size 64
.visible .entry smid(.param .u64 p)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %ctaid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd1, %rd2;
  mov.u32 %r2, %smid;
  st.global.u32 [%rd3], %r2;
  ret;
}
"""
"""Writes, for each block, the multiprocessor that it ran on."""
