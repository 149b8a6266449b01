// softmax(Q * K^T * scale) * V with an online softmax: heads of 64 columns, a block for 64 queries of one head,
// a query a thread, keys and values in tiles of 32 in shared memory.
#define DIM 64
#define TILE 32
#define QUERIES 64

extern "C" __global__ void __launch_bounds__(QUERIES)
attention(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
          float* __restrict__ out, int length, float scale)
{
    __shared__ float4 keys[TILE][DIM / 4];
    __shared__ float4 values[TILE][DIM / 4];
    size_t head = (size_t)blockIdx.y * length * DIM;
    int query = blockIdx.x * QUERIES + threadIdx.x;
    float4 mine[DIM / 4], sum[DIM / 4];
    const float4* row = reinterpret_cast<const float4*>(q + head + (size_t)query * DIM);
#pragma unroll
    for (int i = 0; i < DIM / 4; ++i) {
        mine[i] = row[i];
        sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    float largest = -INFINITY, total = 0.0f;
    for (int first = 0; first < length; first += TILE) {
        const float4* from_k = reinterpret_cast<const float4*>(k + head + (size_t)first * DIM);
        const float4* from_v = reinterpret_cast<const float4*>(v + head + (size_t)first * DIM);
        __syncthreads();
        for (int i = threadIdx.x; i < TILE * DIM / 4; i += QUERIES) {
            keys[i / (DIM / 4)][i % (DIM / 4)] = from_k[i];
            values[i / (DIM / 4)][i % (DIM / 4)] = from_v[i];
        }
        __syncthreads();
        for (int j = 0; j < TILE; ++j) {
            float score = 0.0f;
#pragma unroll
            for (int i = 0; i < DIM / 4; ++i) {
                float4 key = keys[j][i];
                score += mine[i].x * key.x + mine[i].y * key.y + mine[i].z * key.z + mine[i].w * key.w;
            }
            score *= scale;
            float above = fmaxf(largest, score);
            float keep = __expf(largest - above), weight = __expf(score - above);
            largest = above;
            total = total * keep + weight;
#pragma unroll
            for (int i = 0; i < DIM / 4; ++i) {
                float4 value = values[j][i];
                sum[i].x = sum[i].x * keep + weight * value.x;
                sum[i].y = sum[i].y * keep + weight * value.y;
                sum[i].z = sum[i].z * keep + weight * value.z;
                sum[i].w = sum[i].w * keep + weight * value.w;
            }
        }
    }
    float4* result = reinterpret_cast<float4*>(out + head + (size_t)query * DIM);
#pragma unroll
    for (int i = 0; i < DIM / 4; ++i)
        result[i] = make_float4(sum[i].x / total, sum[i].y / total, sum[i].z / total, sum[i].w / total);
}
