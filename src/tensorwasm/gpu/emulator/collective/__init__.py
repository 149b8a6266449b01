"""Instructions that several lanes execute together, and copies and barriers that outlive their instruction.

- `compile_warp_op`: the tensor-core family (``mma``, ``wmma``, ``ldmatrix``, ``stmatrix``, ``movmatrix``).
- `compile_lane_op`: ``cp.async`` and ``mbarrier``.
- `forms`: every supported mnemonic.
"""

from tensorwasm.gpu.emulator.collective.catalog import compile_lane_op, compile_warp_op, forms

__all__ = ["compile_lane_op", "compile_warp_op", "forms"]
