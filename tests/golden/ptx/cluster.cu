// What came with sm_90: clusters, barriers in memory, kernel-wide constants.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_exchange(int* out) {
    __shared__ int mine;
    cg::cluster_group cluster = cg::this_cluster();
    mine = cluster.block_rank();
    cluster.sync();
    out[blockIdx.x] = *cluster.map_shared_rank(&mine, cluster.block_rank() ^ 1);
    cluster.sync();
}

struct Big { int values[64]; };
extern "C" __global__ void constant_grid(const __grid_constant__ Big big, int* out) { out[threadIdx.x] = big.values[threadIdx.x]; }

extern "C" __global__ void memory_barrier(int* out) {
    __shared__ unsigned long long bar;
    unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(blockDim.x));
    __syncthreads();
    asm volatile("{\n.reg .b64 state;\n.reg .pred done;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n"
                 "again:\nmbarrier.try_wait.shared::cta.b64 done, [%0], state;\n@!done bra again;\n}" ::"r"(at) : "memory");
    out[threadIdx.x] = 1;
}
