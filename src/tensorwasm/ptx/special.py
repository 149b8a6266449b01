"""Special registers.

Source: PTX ISA 10 (Special Registers).
"""

from __future__ import annotations

from typing import Final

VECTOR_SPECIALS: Final = frozenset(
    {
        "%tid",
        "%ntid",
        "%ctaid",
        "%nctaid",
        "%clusterid",
        "%nclusterid",
        "%cluster_ctaid",
        "%cluster_nctaid",
    }
)
"""Special registers with components x, y, z and w."""

SPECIALS: Final = VECTOR_SPECIALS | {
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%is_explicit_cluster",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%clock",
    "%clock_hi",
    "%clock64",
    *(f"%pm{index}" for index in range(8)),
    *(f"%pm{index}_64" for index in range(8)),
    *(f"%envreg{index}" for index in range(32)),
    "%globaltimer",
    "%globaltimer_lo",
    "%globaltimer_hi",
    "%reserved_smem_offset_begin",
    "%reserved_smem_offset_end",
    "%reserved_smem_offset_cap",
    "%reserved_smem_offset_0",
    "%reserved_smem_offset_1",
    "%total_smem_size",
    "%aggr_smem_size",
    "%dynamic_smem_size",
    "%current_graph_exec",
}
"""Every special register; programs declare none of these names."""
