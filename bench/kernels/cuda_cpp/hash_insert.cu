// Insert keys into a table with linear probing and count them; *distinct is the number of slots taken.
// The table's size is a power of two; an empty slot is 0xffffffff.
extern "C" __global__ void hash_insert(const unsigned* __restrict__ keys, unsigned* table, unsigned* counts,
                                       unsigned* distinct, int n, unsigned mask)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned key = keys[i], slot = key * 2654435761u;
    slot ^= slot >> 15;
    for (slot &= mask;; slot = (slot + 1) & mask) {
        unsigned seen = atomicCAS(&table[slot], 0xffffffffu, key);
        if (seen == 0xffffffffu) atomicAdd(distinct, 1u);
        if (seen == 0xffffffffu || seen == key) break;
    }
    atomicAdd(&counts[slot], 1u);
}
