// Samples of a texture and of a surface.
extern "C" __global__ void sample(cudaTextureObject_t texture, cudaSurfaceObject_t surface, float* out, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float value = tex2D<float>(texture, x + 0.5f, y + 0.5f);
    surf2Dwrite(value, surface, x * 4, y);
    out[y * width + x] = value;
}
