// A structure by value as a parameter, an array of structures, and a random generator of each thread's own.
struct Box {
    float3 low, high;
    int periodic;
};

struct Particle {
    float3 position, velocity;
    unsigned seed;
};

__device__ float uniform(unsigned& state)
{
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state * 2.3283064e-10f;
}

__device__ void bound(float& at, float& speed, float low, float high, int periodic)
{
    if (at >= low && at < high) return;
    if (periodic) {
        at += at < low ? high - low : low - high;
    } else {
        at = fminf(fmaxf(at, low), high);
        speed = -speed;
    }
}

extern "C" __global__ void move(Particle* particles, const Box box, float step, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Particle p = particles[i];
    float noise = uniform(p.seed) - 0.5f;
    p.velocity.x += noise;
    p.position = make_float3(p.position.x + p.velocity.x * step, p.position.y + p.velocity.y * step,
                             p.position.z + p.velocity.z * step);
    bound(p.position.x, p.velocity.x, box.low.x, box.high.x, box.periodic);
    bound(p.position.y, p.velocity.y, box.low.y, box.high.y, box.periodic);
    bound(p.position.z, p.velocity.z, box.low.z, box.high.z, box.periodic);
    particles[i] = p;
}
