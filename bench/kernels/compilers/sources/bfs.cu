// One level of a breadth-first search: votes, matches and warp-aggregated appends to the next frontier.
extern "C" __global__ void bfs(const int* __restrict__ starts, const int* __restrict__ edges,
                               const int* __restrict__ frontier, int size, int* distances, int* next, int* next_size,
                               int level)
{
    int lane = threadIdx.x % 32;
    for (int base = blockIdx.x * blockDim.x + threadIdx.x - lane; base < size; base += gridDim.x * blockDim.x) {
        int node = base + lane < size ? frontier[base + lane] : -1;
        int at = node >= 0 ? starts[node] : 0, end = node >= 0 ? starts[node + 1] : 0;
        while (__any_sync(0xffffffffu, at < end)) {
            int target = at < end ? edges[at++] : -1;
            unsigned same = __match_any_sync(0xffffffffu, target);
            bool first = lane == __ffs(same) - 1;
            bool fresh = target >= 0 && first && atomicCAS(&distances[target], -1, level) == -1;
            unsigned found = __ballot_sync(0xffffffffu, fresh);
            int slot = 0;
            if (lane == 0 && found) slot = atomicAdd(next_size, __popc(found));
            slot = __shfl_sync(0xffffffffu, slot, 0);
            if (fresh) next[slot + __popc(found & ((1u << lane) - 1))] = target;
            __syncwarp();
        }
    }
}
