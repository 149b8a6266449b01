"""Instructions that several lanes execute together, and copies and barriers that outlive their instruction.

- `compile_warp_op`: the tensor-core family (``mma``, ``wmma``, ``ldmatrix``, ``stmatrix``, ``movmatrix``).
- `compile_lane_op`: ``cp.async`` and ``mbarrier``.
"""
