// Blurs an image with a 5 x 5 convolution: weights in constant memory, pixels in device buffers and in shared memory.
#include "guest.h"

static const unsigned char ptx_80[] = {
#embed "convolution.sm_80.ptx"
};
static const unsigned char ptx_75[] = {
#embed "convolution.sm_75.ptx"
};
static const struct variant variants[] = {{ptx_80, sizeof ptx_80}, {ptx_75, sizeof ptx_75}};

static const float weights[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};

// The kernel's own order of operations, so the results are equal to the last bit. Outside the image is zero.
static float blur(const float *image, int width, int height, int x, int y)
{
    float sum = 0.0f;
    for (int dy = 0; dy < 5; dy++)
        for (int dx = 0; dx < 5; dx++) {
            int from_x = x + dx - 2, from_y = y + dy - 2;
            int inside = from_x >= 0 && from_x < width && from_y >= 0 && from_y < height;
            sum = fmaf(weights[dy] * weights[dx], inside ? image[from_y * width + from_x] : 0.0f, sum);
        }
    return sum;
}

// Blur an image of n columns and n / 2 + 1 rows. Returns how many pixels came out wrong, or a negative code.
__attribute__((export_name("run"))) int run(int n)
{
    REQUIRE_SIZE(n, 2048);
    int width = n, height = n / 2 + 1;
    size_t pixels = (size_t)width * height, bytes = pixels * sizeof(float);
    float *image = allocate(pixels, sizeof *image), *blurred = allocate(pixels, sizeof *blurred);
    float *expected = allocate(pixels, sizeof *expected);
    fill_floats(image, pixels, 10);

    static int64_t kernel;
    int64_t device_image, device_blurred;
    TRY(load_kernel(&kernel, "convolution", variants, 2));
    TRY(device_image = tw_alloc(bytes));
    TRY(device_blurred = tw_alloc(bytes));
    TRY(tw_write(device_image, image, bytes));
    tw_args args;
    tw_args_clear(&args);
    tw_arg_buffer(&args, device_image, 0);
    tw_arg_buffer(&args, device_blurred, 0);
    tw_arg_i32(&args, width);
    tw_arg_i32(&args, height);
    tw_dim3 grid = {blocks_for(width, 16), blocks_for(height, 16), 1}, block = {16, 16, 1};
    TRY(tw_launch(kernel, grid, block, 0, &args));
    TRY(tw_read(blurred, device_blurred, bytes));
    TRY(tw_free(device_image));
    TRY(tw_free(device_blurred));

    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            expected[y * width + x] = blur(image, width, height, x, y);
    struct verdict verdict = compare_floats(blurred, expected, pixels, 0.0);
    int mismatches = conclude(verdict, "convolution: %d x %d pixels", width, height);
    free(image), free(blurred), free(expected);
    return mismatches;
}

int main(int argc, char **argv)
{
    return run(problem_size(argc, argv, 100)) != 0;
}
