// Draws the Mandelbrot set, computed by a kernel whose threads leave their loops at different times.
#include "guest.h"

static const unsigned char ptx_80[] = {
#embed "mandelbrot.sm_80.ptx"
};
static const unsigned char ptx_75[] = {
#embed "mandelbrot.sm_75.ptx"
};
static const struct variant variants[] = {{ptx_80, sizeof ptx_80}, {ptx_75, sizeof ptx_75}};

#define LIMIT 200

// The kernel's own arithmetic, rounded at every step, so that every count is equal.
static uint32_t iterate(int x, int y, int width, int height)
{
    float c_re = -2.25f + 3.0f * ((float)x + 0.5f) / (float)width;
    float c_im = -1.25f + 2.5f * ((float)y + 0.5f) / (float)height;
    float re = 0.0f, im = 0.0f;
    uint32_t count = 0;
    while (count < LIMIT && re * re + im * im <= 4.0f) {
        float next = re * re - im * im + c_re;
        im = 2.0f * re * im + c_im;
        re = next;
        count++;
    }
    return count;
}

static void draw(const uint32_t *counts, int width, int height)
{
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            uint32_t count = counts[y * width + x];
            putchar(count == LIMIT ? '@' : " .:-=+*#%"[count < 9 ? count : 8]);
        }
        putchar('\n');
    }
}

// Compute n columns by n / 2 rows. Returns how many points came out wrong, or a negative code.
__attribute__((export_name("run"))) int run(int n)
{
    REQUIRE_SIZE(n, 2048);
    int width = n, height = (n + 1) / 2;
    size_t points = (size_t)width * height;
    uint32_t *counts = allocate(points, sizeof *counts);

    static int64_t kernel;
    TRY(load_kernel(&kernel, "mandelbrot", variants, 2));
    tw_args args;
    tw_args_clear(&args);
    tw_arg_ptr(&args, counts, points * sizeof *counts);
    tw_arg_u32(&args, width);
    tw_arg_u32(&args, height);
    tw_arg_u32(&args, LIMIT);
    tw_dim3 grid = {blocks_for(width, 16), blocks_for(height, 8), 1}, block = {16, 8, 1};
    TRY(tw_launch(kernel, grid, block, 0, &args));
    TRY(wasi_cuda_sync());

    if (width <= 120)
        draw(counts, width, height);
    struct verdict verdict = {0, 0.0};
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            double error = fabs((double)counts[y * width + x] - (double)iterate(x, y, width, height));
            verdict.mismatches += error != 0.0;
            verdict.max_error = fmax(verdict.max_error, error);
        }
    int mismatches = conclude(verdict, "mandelbrot: %d x %d points", width, height);
    free(counts);
    return mismatches;
}

int main(int argc, char **argv)
{
    return run(problem_size(argc, argv, 78)) != 0;
}
