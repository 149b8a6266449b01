// Cooperative groups: tiles, coalesced and labelled groups, reductions and scans.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

extern "C" __global__ void tile_sums(const int* __restrict__ in, int* __restrict__ out, int n)
{
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<16>(block);
    int i = block.group_index().x * block.size() + block.thread_rank();
    int value = i < n ? in[i] : 0;
    int total = cg::reduce(tile, value, cg::plus<int>());
    int before = cg::exclusive_scan(tile, value);
    if (i < n) out[i] = total - before + tile.meta_group_rank();
}

extern "C" __global__ void append_positive(const float* __restrict__ in, float* out, int* count, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || !(in[i] > 0.0f)) return;
    auto group = cg::coalesced_threads();
    int first = 0;
    if (group.thread_rank() == 0) first = atomicAdd(count, group.size());
    out[group.shfl(first, 0) + group.thread_rank()] = in[i];
}

extern "C" __global__ void count_labels(const unsigned char* __restrict__ labels, unsigned* bins, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    auto group = cg::labeled_partition(cg::coalesced_threads(), labels[i]);
    if (group.thread_rank() == 0) atomicAdd(&bins[labels[i]], group.size());
}
