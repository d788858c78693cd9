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

#define UNPACK_DEVICE_TABLE_VERSION 7
#define UNPACK_DEVICE_TABLE_SYMBOL "unpack_device_table"

#ifdef __cplusplus
extern "C" {
#endif

/* What the factors of a product are. C is in single precision, and sums are taken in it. */
typedef enum {
  UNPACK_FACTORS_SINGLE = 0, /* single precision, or TF32 where the device was opened with it */
  UNPACK_FACTORS_BF16 = 1,   /* two bytes each */
  UNPACK_FACTORS_TF32 = 2,   /* single precision whose last 13 bits may be dropped */
  UNPACK_FACTORS_HALVES = 3  /* float16, two bytes each */
} UnpackFactors;

/* C[m, n] = op(A) op(B) (+ C), row-major, `batch` times with the strides given, in elements. A is
 * [m, k] and B [k, n], or the other way round where they are transposed. */
enum { UNPACK_B_TRANSPOSED = 1, UNPACK_A_TRANSPOSED = 2 };
typedef struct {
  int transposed;
  int accumulate;
  int64_t m, n, k;
  const void* a;
  int64_t lda, stride_a;
  const void* b;
  int64_t ldb, stride_b;
  float* c;
  int64_t ldc, stride_c;
  int64_t batch;
} UnpackGemm;

/* Sums over the writers of sizes of scores. Every writer has a column at every position (its own
 * key where keys are scored, its own query otherwise), and rows are what the columns meet: queries
 * of later positions, or keys of earlier ones. Both factors may be taken with 22 bits. For every
 * head and pair s <= q that the window leaves, at q (q + 1) / 2 + s of a head's `pairs`: sum =
 * scale / dev(position of the columns) times the sum of |score|, or of |score| mass, and then most
 * = the largest |score| bound. */
typedef struct {
  int keys;          /* columns are keys */
  const float* rows; /* [length, row_heads, e] */
  int64_t row_heads;
  float* columns;        /* [count, visible, groups where keys are scored, else heads, e]; what is
                          * there afterwards is not said */
  const float* row_unit; /* powers of two that bring rows and columns into the range of halves */
  const float* column_unit;
  int64_t first, count; /* positions of the columns */
  int64_t visible, heads, own_groups, e, length, pairs, window;
  const float* dev; /* [length] */
  float scale;
  const float* mass; /* [length, reach_writers]; null: sizes alone are added up */
  const float* bound;
  int64_t reach_writers;
  float* sum;
  float* most;
} UnpackPairSums;

/* C[m, n] = A[m, k] W for a few rows and weights of two bytes as they are stored, [k, n], or [n, k]
 * where transposed, both sizes whole multiples of 8; in single precision. Times `factor` and the
 * scale of k, or of n. */
enum { UNPACK_FEW_ROWS_PARTS = 16 };
typedef struct {
  int transposed, bf16; /* else float16 */
  int64_t m, n, k;
  const float* a;
  const void* weights;
  const float* scale; /* [k], or [n] where scale_output; null: none */
  int scale_output;
  float factor;
  float* c;
  float* work; /* UNPACK_FEW_ROWS_PARTS times 16 n numbers */
} UnpackFewRows;

typedef struct {
  char name[128];       /* "NVIDIA H200, cuBLAS 13.0" */
  uint64_t memory_free; /* what this program holds and does not use is free */
  uint64_t memory_total;
  int64_t tensor_work; /* multiplications from which on tensor cores are worth a launch of theirs */
  int64_t tile_bytes;  /* of scores that exist at a time */
  int64_t few_rows;    /* up to which it has few_rows(), and these are faster; 0: not at all */
} UnpackDeviceInfo;

typedef struct {
  uint64_t peak; /* the most that was in use since the count was started again */
  uint64_t held; /* the most that was taken from the device */
} UnpackDeviceMemory;

typedef void (*UnpackFill)(const void* context, void* part, size_t offset, size_t n);

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

  /* Weights: memory taken and filled beside the main stream, from any thread. What goes up is
   * asked for in parts: fill(context, part, offset, n) writes n bytes from `offset` on to `part`,
   * for several parts at once and not after the call has returned. wait_beside returns when all of
   * it is there, before which none of the memory may be given back; join makes later work wait for
   * it. */
  int (*allocate_beside)(void* device, size_t bytes, void** out);
  int (*to_device_beside)(void* device, void* to, UnpackFill fill, const void* context,
                          size_t bytes);
  int (*wait_beside)(void* device);
  int (*join)(void* device);

  int (*gemm)(void* device, UnpackFactors factors, const UnpackGemm* call);
  /* The same times a number on the device. */
  int (*scaled_gemm)(void* device, UnpackFactors factors, const UnpackGemm* call,
                     const float* times);
  int (*few_rows)(void* device, const UnpackFewRows* call);
  int (*pair_sums_fit)(void* device, int64_t e); /* whether heads of this width fit its chip */
  int (*pair_sums)(void* device, const UnpackPairSums* call);
  /* Kernel `id` of kernel_list.h over `count` units; `parameters` is its plain struct of `bytes`
   * bytes. */
  int (*launch)(void* device, int id, const void* parameters, size_t bytes, int64_t count);
} UnpackDeviceTable;

typedef const UnpackDeviceTable* (*UnpackDeviceTableFunction)(void);

#ifdef __cplusplus
}
#endif
#endif
