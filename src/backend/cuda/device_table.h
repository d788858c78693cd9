/* What a device plugin gives to the program: a versioned table of C functions over opaque
 * addresses. No C++ type crosses this line, so that the plugin and the program may come from
 * different compilers.
 *
 * Work is queued on one stream in the order of the calls; only to_host and wait return after it is
 * done. Weights go up on a second stream. Every function that returns int gives 0 for success;
 * error() then says what went wrong, in one line, for the calling thread. */
#ifndef UNPACK_DEVICE_TABLE_H
#define UNPACK_DEVICE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#define UNPACK_DEVICE_TABLE_VERSION 3
#define UNPACK_DEVICE_TABLE_SYMBOL "unpack_device_table"

#ifdef __cplusplus
extern "C" {
#endif

/* C[m, n] = A[m, k] op(B) (+ C) in single precision, row-major, `batch` times with the strides
 * given. B is [k, n], or [n, k] where b_transposed. */
typedef struct {
  int b_transposed;
  int accumulate;
  int64_t m, n, k;
  const float* a;
  int64_t lda, stride_a;
  const float* b;
  int64_t ldb, stride_b;
  float* c;
  int64_t ldc, stride_c;
  int64_t batch;
} UnpackGemm;

typedef struct {
  char name[128]; /* "NVIDIA H200, cuBLAS 13.0" */
  uint64_t memory_free;
  uint64_t memory_total;
} UnpackDeviceInfo;

typedef struct {
  uint64_t peak; /* the most that was in use since the count was started again */
  uint64_t held; /* the most that was taken from the device */
} UnpackDeviceMemory;

typedef struct {
  int version;      /* UNPACK_DEVICE_TABLE_VERSION */
  int kernel_count; /* how many kernels launch() knows: both sides were built from the same list */
  const char* (*error)(void);
  int (*open)(int tf32, void** device);
  void (*close)(void* device);
  int (*info)(void* device, UnpackDeviceInfo* out);
  int (*out_of_memory)(void); /* whether the last failure of this thread was that */
  int (*memory_use)(void* device, int start_again, UnpackDeviceMemory* out);

  int (*allocate)(void* device, size_t bytes, void** out);
  void (*release)(void* device, void* memory); /* once the work queued so far has used it */
  int (*zero)(void* device, void* memory, size_t bytes);
  int (*to_device)(void* device, void* to, const void* from, size_t bytes);
  int (*to_host)(void* device, void* to, const void* from, size_t bytes);
  int (*copy)(void* device, void* to, const void* from, size_t bytes);
  int (*wait)(void* device);

  /* Weights: memory taken and filled beside the main stream, from any thread. join makes later work
   * wait for all of it. */
  int (*allocate_beside)(void* device, size_t bytes, void** out);
  int (*to_device_beside)(void* device, void* to, const void* from, size_t bytes);
  int (*join)(void* device);

  int (*gemm)(void* device, const UnpackGemm* call);
  /* Kernel `id` of kernel_list.h over `count` units; `parameters` is its plain struct of `bytes`
   * bytes. */
  int (*launch)(void* device, int id, const void* parameters, size_t bytes, int64_t count);
} UnpackDeviceTable;

typedef const UnpackDeviceTable* (*UnpackDeviceTableFunction)(void);

#ifdef __cplusplus
}
#endif
#endif
