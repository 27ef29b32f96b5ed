// xce: the cross-entropy of large vocabularies, fused with the linear head before it or over given logits, for any
// language that calls C. C99; needs no header of CUDA.
//
// Rules of every call
//  1. Arguments are a struct: set struct_size (XCE_..._ARGS_INIT does) and what is marked required; zero is a sensible
//     value of everything else. Fields "not supported yet" must stay zero: XCE_ERROR_UNSUPPORTED names them.
//  2. Memory: arrays and results lie where the context computes: in host memory for a CPU context, for a CUDA context
//     in memory of its device (or memory that it can address). The structs themselves are read before the call returns.
//  3. Arrays are aligned to their elements, do not overlap unless a field says so, and every size may exceed 2^31.
//     Below, (rows, hidden) means row after row; "accum" is fp32, or fp64 where dtype is XCE_FLOAT64.
//  4. Results: any may be null, its work is then skipped; what is given is written wholly, unless it says "added to".
//  5. CUDA calls only enqueue on the context's stream: they do not wait, allocate or read back. After `prepare` with
//     the same arguments (pointers may change, their 16-byte alignment may not) they can be captured in a graph, in
//     global mode too, and a replay follows labels, denominator and upstream gradient that changed in place. The graph
//     must not outlive the context. CPU calls are done when they return.
//  6. The same call gives the same bits again: of CPU contexts with as many threads; of a CUDA context once prepared;
//     of several where they took over one another's tuning text, or do not tune.
//  7. Errors: a call that its arguments make wrong returns a status, writes nothing and enqueues nothing;
//     xce_last_error() names argument and value. Nothing prints, exits or throws. What only the device can see (an
//     address that is not its own) appears where the stream is next waited for. A label outside the vocabulary is no
//     error: its row counts as ignored and out_of_range says so.
#ifndef XCE_XCE_H_
#define XCE_XCE_H_

#include <stddef.h>
#include <stdint.h>

#define XCE_VERSION_MAJOR 0
#define XCE_VERSION_MINOR 1
#define XCE_VERSION_PATCH 0

#if defined(__GNUC__)
#define XCE_API __attribute__((visibility("default")))
#else
#define XCE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum xce_status {
  XCE_OK = 0,
  XCE_ERROR_INVALID_ARGUMENT = 1,  // null, out of its range, or arguments that contradict each other
  XCE_ERROR_UNSUPPORTED = 2,       // meaningful, but not in this version or build, or not on this device
  XCE_ERROR_WORKSPACE = 3,         // null, misaligned or too small, or its budget is below the least
  XCE_ERROR_NO_DEVICE = 4,         // no such CUDA device
  XCE_ERROR_DEVICE = 5,            // CUDA or cuBLAS reported an error, perhaps of work enqueued earlier
  XCE_ERROR_OUT_OF_MEMORY = 6,     // of the host, or threads could not be started
  XCE_ERROR_INTERNAL = 7           // a defect of the library
} xce_status;

// Element types. Zero is none: a dtype is always said.
enum { XCE_FLOAT32 = 1, XCE_BFLOAT16 = 2, XCE_FLOAT64 = 3, XCE_FLOAT16 = 4, XCE_INT32 = 5, XCE_INT64 = 6 };
// XCE_NONE: row losses are the result, their gradients come with an upstream value per row.
enum { XCE_MEAN = 0, XCE_SUM = 1, XCE_NONE = 2 };
// What a workspace or a preparation is for. XCE_BEGIN_FINISH: of linear cross-entropy alone.
typedef int32_t xce_pass;
enum { XCE_FORWARD = 1, XCE_BACKWARD = 2, XCE_FORWARD_BACKWARD = 3, XCE_BEGIN_FINISH = 4 };

XCE_API const char* xce_version(void);                  // "0.1.0", of the library in use
XCE_API const char* xce_status_string(int32_t status);  // "workspace", ...; never null
// Function, argument and value of the last call that failed on this thread; "" if none did. Valid until the next
// failing call of this thread.
XCE_API const char* xce_last_error(void);

// Where calls compute. Not for two threads at once; different contexts are independent of each other.
typedef struct xce_context xce_context;

// A context of `threads` threads of this process, the caller's included, 1 to 512; 0: as many as it may use. OpenBLAS
// is set to one thread by the first product, because the threads are the context's.
XCE_API xce_status xce_context_create_cpu(int32_t threads, xce_context** context);
// A context on a CUDA device; takes 32 MiB there. Its calls go to the legacy default stream until set_stream. The
// calling thread's current device is left as it is, here and in every call. XCE_ERROR_UNSUPPORTED: built without CUDA.
XCE_API xce_status xce_context_create_cuda(int32_t device, xce_context** context);
// CUDA devices that can be used; 0 without a driver, or built without CUDA.
XCE_API int32_t xce_cuda_device_count(void);
// The cudaStream_t (or CUstream) that later calls enqueue on; null: the legacy default stream. It stays the caller's.
// Streams that one context alternates between must be ordered by the caller, its scratch serves all: better give each
// stream a context. XCE_ERROR_INVALID_ARGUMENT for a stream of a CPU context.
XCE_API xce_status xce_context_set_stream(xce_context* context, void* stream);
// Of a CUDA context: whether prepare races cuBLAS's algorithms for each matrix product under sustained load, about a
// second each (1, as at first), or takes its first answer (0), which is the same in every process.
XCE_API xce_status xce_context_set_tuning(xce_context* context, int32_t on);
// The algorithms chosen so far, as a text for other contexts on such a GPU and cuBLAS, in other processes too: `bytes`
// with the final zero, and the text unless it is null. XCE_ERROR_INVALID_ARGUMENT when capacity is less.
XCE_API xce_status xce_context_tuning_text(xce_context* context, char* text, size_t capacity, size_t* bytes);
// Takes over the choices of such a text, for products not seen yet. XCE_ERROR_UNSUPPORTED: of another GPU or cuBLAS.
XCE_API xce_status xce_context_load_tuning_text(xce_context* context, const char* text);
// Wait for the stream first. Null: nothing.
XCE_API void xce_context_destroy(xce_context* context);

// What both losses share. With z the logits, u_i the upstream gradient of row i and y its label:
//   lse = log sum_v exp z_v = offset + logsum;   L_i = logsum - (z_y - offset) + z_loss lse^2,  0 on ignored rows
//   loss = sum_i L_i / D;   dz_v = (u_i / D) (p_v (1 + 2 z_loss lse) - [v = y]),  p = softmax(z)
//   D = *denominator if given, else the number of valid rows (mean); 1 (sum, none).  D = 0: loss and gradients are zero
// A row is valid when its label is not ignore_index and lies in [0, vocab_global).
typedef struct xce_loss {
  int64_t rows;   // >= 0
  int64_t vocab;  // required, >= 1: the columns here
  // A part of the vocabulary: column v is the label shard_offset + v. Columns whose label is vocab_global or more are
  // padding: no logit, zero gradient (a shard may be nothing else). vocab_global 0: shard_offset + vocab.
  int64_t shard_offset, vocab_global;
  int32_t dtype;                // required, of x and weight, or of the logits: XCE_FLOAT32, XCE_BFLOAT16 or XCE_FLOAT64
  int32_t label_dtype;          // required, XCE_INT32 or XCE_INT64
  const void* labels;           // (rows) label_dtype, in, label_stride apart; required when there are rows
  int64_t label_stride;         // elements between two rows' labels; 0: 1
  int64_t ignore_index;         // any value, also in the vocabulary; counts only if
  int32_t has_ignore_index;     // 1; 0: rows labelled -100 are ignored, and ignore_index must be 0
  int32_t reduction;            // XCE_MEAN, XCE_SUM or XCE_NONE
  double z_loss;                // coefficient of lse^2, 0 or positive
  double label_smoothing;       // not supported yet
  double softcap;               // not supported yet
  double logit_scale;           // not supported yet: 0 or 1
  const void* class_weights;    // not supported yet
  const void* token_weights;    // not supported yet
  const void* probabilities;    // not supported yet: targets as (rows, vocab) probabilities
  int64_t ld_probabilities;     // not supported yet
  const double* denominator;    // () in: D of a mean over micro-batches or ranks (sum xce_loss_count's); XCE_MEAN only
  int32_t empty_is_nan;         // not supported yet: D = 0 gives NaN instead of zero
  int32_t out_of_range_is_nan;  // not supported yet: a label outside the vocabulary gives NaN
  const void* upstream;         // accum, in: () for mean and sum, (rows) upstream_stride apart for none; null: 1
  int64_t upstream_stride;      // elements between two rows' values; 0: 1
  int32_t upstream_is_scalar;   // 1: XCE_NONE reads one value for all rows, as of an expanded tensor
  int32_t reserved_flag;        // 0

  void* loss;                   // () accum, out; with XCE_NONE the sum
  double* loss_total;           // () loss is added to it: of a step's micro-batches
  void* row_loss;               // (rows) accum, out: L_i, undivided
  void* offset;                 // (rows) accum: the residual, out of forward and in of backward,
  void* logsum;                 // (rows) accum: both 0 on ignored rows
  void* z_loss_part;            // () accum, out: what z_loss adds to `loss`
  int64_t* n_valid;             // () out: valid rows
  int64_t* out_of_range;        // () out: rows whose label is neither ignored nor in the vocabulary
  double* weight_sum;           // () out, of xce_loss_count alone so far: the D of these rows
  int64_t* first_out_of_range;  // not supported yet
  void* row_max;                // not supported yet
  void* row_entropy;            // not supported yet
  int64_t* argmax;              // not supported yet
  int64_t* n_correct;           // not supported yet
  uint64_t reserved[8];         // 0
} xce_loss;

// ---- Linear cross-entropy: z = x weight^T + bias, never kept whole: chunks of rows live in the workspace.

typedef struct xce_linear_cross_entropy_args {
  size_t struct_size;  // required: sizeof(xce_linear_cross_entropy_args)
  xce_loss loss;
  int64_t hidden;      // required, >= 1
  const void* x;       // (rows, hidden) dtype, in, rows ldx apart; required when there are rows
  const void* weight;  // (vocab, hidden) dtype, in, rows ldw apart; required
  const void* bias;    // (vocab) dtype, in, or null
  int64_t ldx, ldw;    // elements; 0: hidden

  void* dx;                   // (rows, hidden) dx_dtype, out or, with accumulate_dx, added to; 0 for ignored rows
  void* dweight;              // (vocab, hidden) accum, out or, with accumulate_dweight, added to (a main gradient)
  void* dbias;                // (vocab) accum, out or, with accumulate_dweight, added to
  int64_t ld_dx, ld_dweight;  // not supported yet: 0 or hidden
  int32_t dx_dtype;           // 0: dtype. Or accum: shards sum dx over ranks before it is rounded
  int32_t dweight_dtype;      // 0 or accum
  int32_t accumulate_dx, accumulate_dweight;  // 0 or 1
  int32_t allow_tf32;                         // not supported yet
  int32_t reserved_flag;                      // 0

  void* statistics;    // forward of a shard: one set of `rows` rows, out (xce_loss_statistics_bytes)
  int64_t plan_vocab;  // begin and finish: the largest shard's vocab, so that all ranks cut alike; 0: vocab

  // Scratch, for the time of a call (of begin and finish: from the first begin to the last finish). Any budget from the
  // least on gives the same results up to rounding; a larger one is faster.
  void* workspace;                // aligned to 16 bytes
  size_t workspace_size_bytes;    // at least what workspace_bytes says
  size_t workspace_budget_bytes;  // what workspace_bytes may say; 0: 128 MiB
  uint64_t reserved[4];           // 0
} xce_linear_cross_entropy_args;

#define XCE_LINEAR_CROSS_ENTROPY_ARGS_INIT \
  { .struct_size = sizeof(xce_linear_cross_entropy_args) }

// The workspace that these arguments need, never above the budget; XCE_ERROR_WORKSPACE names the least budget. Reads
// shapes, dtype and budget alone: pointers may still be null. One buffer of the largest serves all passes.
XCE_API xce_status xce_linear_cross_entropy_workspace_bytes(xce_context* context, xce_pass pass,
                                                            const xce_linear_cross_entropy_args* args, size_t* bytes);
// Makes later calls with such arguments ready for graphs: runs the pass, perhaps many times. All that it writes, what
// is added to included, is scratch to it: prepare before results hold anything to keep, with inputs like those to come.
// May allocate, wait and take seconds; not in a capture. XCE_BEGIN_FINISH needs args->statistics, a set of
// rows_per_chunk rows, as scratch. On a CPU context it only checks the arguments.
XCE_API xce_status xce_linear_cross_entropy_prepare(xce_context* context, xce_pass pass,
                                                    const xce_linear_cross_entropy_args* args);

// Loss and residual: one matrix product. A shard of the vocabulary asks for `statistics` and no result of `loss`:
// xce_loss_merge_statistics over the ranks, then xce_loss_from_statistics.
XCE_API xce_status xce_linear_cross_entropy_forward(xce_context* context, const xce_linear_cross_entropy_args* args);
// Gradients from the residual: three products. On a shard dx is its part of the sum over shards. Results of `loss` are
// not written.
XCE_API xce_status xce_linear_cross_entropy_backward(xce_context* context, const xce_linear_cross_entropy_args* args);
// Both at once and, where the budget holds a chunk's logits, in three products. The whole vocabulary only.
XCE_API xce_status xce_linear_cross_entropy_forward_backward(xce_context* context,
                                                             const xce_linear_cross_entropy_args* args);

// forward_backward of a shard: for chunk 0 .. count - 1 in order begin, merge the ranks' statistics, finish. Chunk c
// has rows c * rows_per_chunk up to the next chunk's or `rows`; its statistics are a set of so many rows. Reduced
// results are complete after the last finish. The ranks' rows, hidden, dtype, budget, plan_vocab and threads must
// agree.
XCE_API xce_status xce_linear_cross_entropy_chunks(xce_context* context, const xce_linear_cross_entropy_args* args,
                                                   int64_t* count, int64_t* rows_per_chunk);
// `statistics`: out. args->statistics is not used.
XCE_API xce_status xce_linear_cross_entropy_begin(xce_context* context, const xce_linear_cross_entropy_args* args,
                                                  int64_t chunk, void* statistics);
// `statistics`: merged, in.
XCE_API xce_status xce_linear_cross_entropy_finish(xce_context* context, const xce_linear_cross_entropy_args* args,
                                                   int64_t chunk, const void* statistics);

// ---- Cross-entropy over given logits: what is kept is O(rows).

typedef struct xce_cross_entropy_args {
  size_t struct_size;  // required: sizeof(xce_cross_entropy_args)
  xce_loss loss;
  const void* logits;  // (rows, vocab) dtype, in, rows ld apart; required when there are rows
  int64_t ld;          // elements; 0: vocab
  void* dlogits;       // (rows, vocab) dtype, out, rows ld_dlogits apart; may be the logits where ld = ld_dlogits
  int64_t ld_dlogits;  // elements; 0: vocab
  void* statistics;    // forward of a shard: one set of `rows` rows, out
  void* workspace;     // aligned to 16 bytes; may be null where workspace_bytes says 0
  size_t workspace_size_bytes;
  uint64_t reserved[4];  // 0
} xce_cross_entropy_args;

#define XCE_CROSS_ENTROPY_ARGS_INIT \
  { .struct_size = sizeof(xce_cross_entropy_args) }

// As for linear cross-entropy, without a budget: O(rows) on a CUDA device, 0 on the CPU.
XCE_API xce_status xce_cross_entropy_workspace_bytes(xce_context* context, xce_pass pass,
                                                     const xce_cross_entropy_args* args, size_t* bytes);
XCE_API xce_status xce_cross_entropy_prepare(xce_context* context, xce_pass pass, const xce_cross_entropy_args* args);
// Loss and residual; a shard: as xce_linear_cross_entropy_forward.
XCE_API xce_status xce_cross_entropy_forward(xce_context* context, const xce_cross_entropy_args* args);
// dlogits (required) from logits and residual; of any shard.
XCE_API xce_status xce_cross_entropy_backward(xce_context* context, const xce_cross_entropy_args* args);
// Both. The whole vocabulary only; dlogits is required.
XCE_API xce_status xce_cross_entropy_forward_backward(xce_context* context, const xce_cross_entropy_args* args);

// ---- Counts, and statistics of a vocabulary's shards.

typedef struct xce_loss_count_args {
  size_t struct_size;  // required: sizeof(xce_loss_count_args)
  xce_loss loss;       // rows, labels, ignore index, vocabulary; results n_valid, weight_sum and out_of_range
  int32_t accumulate;  // 1: added to them, over micro-batches
  int32_t reserved_flag;
  uint64_t reserved[4];  // 0
} xce_loss_count_args;

#define XCE_LOSS_COUNT_ARGS_INIT \
  { .struct_size = sizeof(xce_loss_count_args) }

// Counts before any loss: weight_sum, summed over micro-batches and ranks, is the denominator of their mean.
XCE_API xce_status xce_loss_count(xce_context* context, const xce_loss_count_args* args);

typedef struct xce_loss_statistics_args {
  size_t struct_size;    // required: sizeof(xce_loss_statistics_args)
  xce_loss loss;         // as in the calls that made or will use the statistics
  const void* sets;      // merge: (count) sets one after the other, as an all_gather lays them out, in; required
  int64_t count;         // merge: >= 1
  int64_t rows;          // merge: of each set (a chunk's)
  void* statistics;      // merge: one set, out, may be the first of `sets`; from_statistics: in, of loss.rows; required
  uint64_t reserved[4];  // 0
} xce_loss_statistics_args;

#define XCE_LOSS_STATISTICS_ARGS_INIT \
  { .struct_size = sizeof(xce_loss_statistics_args) }

// The size of a set of `rows` rows, whose content is the library's: move whole sets, never part of one.
XCE_API xce_status xce_loss_statistics_bytes(xce_context* context, const xce_loss_statistics_args* args, size_t* bytes);
// The statistics of the union of the shards, in the order of `sets`.
XCE_API xce_status xce_loss_merge_statistics(xce_context* context, const xce_loss_statistics_args* args);
// Results of `loss` from merged statistics: the last step of a sharded forward.
XCE_API xce_status xce_loss_from_statistics(xce_context* context, const xce_loss_statistics_args* args);
// Makes the calls of this section ready for graphs; touches nothing of the caller's.
XCE_API xce_status xce_loss_prepare(xce_context* context, int32_t dtype);

#ifdef __cplusplus
}
#endif

#endif  // XCE_XCE_H_
