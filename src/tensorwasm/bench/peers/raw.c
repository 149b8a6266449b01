/* The floor under every figure of dispatch and memory: tight loops over the CUDA driver API, no sandbox and no Python.
 *
 * Compiled on the spot into a shared library and called in the process that is measured, on the same context, so that
 * both take turns on one machine in one state. Driver entry points come in as a table; nothing of CUDA is needed to build.
 *   gcc -O2 -shared -fPIC -o raw.so raw.c
 * Every function returns nanoseconds for the whole loop, or a negative CUresult.
 */
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*stream_fn)(void *);
typedef int (*copy_fn)(uint64_t, const void *, size_t, void *);
typedef int (*back_fn)(void *, uint64_t, size_t, void *);

typedef struct {
  launch_fn launch;
  stream_fn synchronize;
  copy_fn host_to_device;
  back_fn device_to_host;
} Driver;

typedef struct {
  void *function;
  unsigned grid, block;
  void *stream;
  void **arguments;
} Launch;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int start(const Driver *driver, const Launch *what) {
  return driver->launch(what->function, what->grid, 1, 1, what->block, 1, 1, 0, what->stream, what->arguments, NULL);
}

/* Launches only; the stream is drained outside the measured time. */
int64_t raw_submit(const Driver *driver, const Launch *what, int count) {
  int64_t begin = now();
  for (int i = 0; i < count; i++) {
    int code = start(driver, what);
    if (code) return -code;
  }
  int64_t end = now();
  int code = driver->synchronize(what->stream);
  return code ? -code : end - begin;
}

/* Launches, and one wait for all of them. */
int64_t raw_complete(const Driver *driver, const Launch *what, int count) {
  int64_t begin = now();
  for (int i = 0; i < count; i++) {
    int code = start(driver, what);
    if (code) return -code;
  }
  int code = driver->synchronize(what->stream);
  return code ? -code : now() - begin;
}

/* A wait after every launch. */
int64_t raw_launch_sync(const Driver *driver, const Launch *what, int count) {
  int64_t begin = now();
  for (int i = 0; i < count; i++) {
    int code = start(driver, what);
    if (!code) code = driver->synchronize(what->stream);
    if (code) return -code;
  }
  return now() - begin;
}

/* Copies of one range, each waited for. */
int64_t raw_copy_in(const Driver *driver, uint64_t device, const void *host, size_t bytes, void *stream, int count) {
  int64_t begin = now();
  for (int i = 0; i < count; i++) {
    int code = driver->host_to_device(device, host, bytes, stream);
    if (!code) code = driver->synchronize(stream);
    if (code) return -code;
  }
  return now() - begin;
}

int64_t raw_copy_out(const Driver *driver, void *host, uint64_t device, size_t bytes, void *stream, int count) {
  int64_t begin = now();
  for (int i = 0; i < count; i++) {
    int code = driver->device_to_host(host, device, bytes, stream);
    if (!code) code = driver->synchronize(stream);
    if (code) return -code;
  }
  return now() - begin;
}
