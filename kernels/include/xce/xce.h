// xce: the cross-entropy of large vocabularies, fused with the linear head before it or over given logits, for any
// language that calls C. C99; needs no header of CUDA.
//
// Rules of every call
//  1. Arguments are a struct: set struct_size (XCE_..._ARGS_INIT does) and what is marked required; zero is a sensible
//     value of everything else. What is marked reserved must stay zero.
//  2. Memory: arrays and results lie where the context computes: in host memory for a CPU context, for a CUDA context
//     in memory of its device (or memory that it can address). The structs themselves are read before the call returns.
//  3. Arrays are aligned to their elements, do not overlap unless a field says so, and may have more than 2^31
//     elements; what is smaller says so. Below, () is one value, (rows, hidden) row after row; "accum" is fp32, or fp64
//     where dtype is XCE_FLOAT64. What lies between rows that are a leading dimension apart is neither read nor
//     written.
//  4. Results: any may be null, its work is then skipped; what is given is written wholly, unless it says "added to".
//  5. CUDA calls only enqueue on the context's stream: they do not wait, allocate or read back. After `prepare` with
//     the same arguments (pointers may change, but not which are null nor their 16-byte alignment) they can be captured
//     in a graph, in global mode too, and a replay follows targets, weights, denominator and upstream gradient that
//     changed in place. The graph must not outlive the context. CPU calls are done when they return.
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
// with the final zero, and the text unless it is null. XCE_ERROR_INVALID_ARGUMENT when capacity is less. Of a CPU
// context the text is empty.
XCE_API xce_status xce_context_tuning_text(xce_context* context, char* text, size_t capacity, size_t* bytes);
// Takes over the choices of such a text, for products not seen yet. XCE_ERROR_UNSUPPORTED: of another GPU or cuBLAS, or
// the context is a CPU's. XCE_ERROR_INVALID_ARGUMENT: not such a text.
XCE_API xce_status xce_context_load_tuning_text(xce_context* context, const char* text);
// Wait for the stream first. Null: nothing.
XCE_API void xce_context_destroy(xce_context* context);

// What both losses share. With y the logits, bias added, s the logit scale and e the label smoothing:
//   z_v = s y_v, with softcap cap tanh(s y_v / cap);   lse = log sum_v exp z_v = offset + logsum;   p = softmax(z)
//   a_v, the mass of label v:  w_y (1 - e) [v = y] + (e / V) w_v  of a label y,  w_v ((1 - e) t_v + e / V)  of a row t
//     of probabilities; w the class weights, V vocab_global;   S = sum_v a_v
//   L_i  = u_i (S logsum - sum_{a_v != 0} a_v (z_v - offset) + z_loss lse^2), 0 on ignored rows; u the token weights
//   loss = sum_i L_i / D;   D = *denominator if given, else weight_sum (mean); 1 (sum, none)
//   weight_sum = sum of u_i w_y over valid rows;  of probabilities the sum of u_i
//   dy_v = s g_i ((S + 2 z_loss lse) p_v - a_v) (1 - (z_v / cap)^2),  g_i = upstream_i u_i / D;   D = 0: all are zero
// A row is valid when its token weight is not 0 and its label is not ignore_index and lies in [0, vocab_global). Other
// rows are ignored: no value of theirs, NaN included, reaches any result, and their gradients are zero.
typedef struct xce_loss {
  int64_t rows;   // >= 0; of a loss on a GPU below 2^30
  int64_t vocab;  // required, >= 1: the columns here; of a loss on a GPU below 2^30
  // A part of the vocabulary: column v is the label shard_offset + v. Columns whose label is vocab_global or more are
  // padding: no logit, zero gradient (a shard may be nothing else). vocab_global 0: shard_offset + vocab. "A shard" is
  // a call with a shard_offset or with a vocab_global above vocab.
  int64_t shard_offset, vocab_global;
  int32_t dtype;              // required, of x and weight or of the logits: XCE_FLOAT32, _BFLOAT16, _FLOAT16, _FLOAT64
  int32_t label_dtype;        // required with labels, XCE_INT32 or XCE_INT64; not read with probabilities
  const void* labels;         // (rows) label_dtype, in, label_stride apart; required with rows, or else probabilities
  int64_t label_stride;       // elements between two rows' labels, of either sign; 0: 1
  int64_t ignore_index;       // any value, also in the vocabulary; counts only if
  int32_t has_ignore_index;   // 1 (not with probabilities); 0: rows labelled -100 are ignored, ignore_index must be 0
  int32_t reduction;          // XCE_MEAN, XCE_SUM or XCE_NONE
  double z_loss;              // coefficient of lse^2, 0 .. 1e30; class weights do not scale it
  double label_smoothing;     // e, 0 .. 1, over all of vocab_global
  double softcap;             // cap, 1e-30 .. 1e30; 0: none
  double logit_scale;         // s, -1e30 .. 1e30; 0: 1
  const void* class_weights;  // (vocab_global) accum, in: w by label, whole on a shard too; null: 1
  const void* token_weights;  // (rows) accum, in: u; null: 1
  // Instead of labels, which must then be null: (rows, vocab) probability_dtype, in, rows ld_probabilities apart, of
  // the columns here. They need not sum to 1.
  const void* probabilities;
  int64_t ld_probabilities;     // elements; 0: vocab
  int32_t probability_dtype;    // any that dtype may be; 0: dtype
  int32_t out_of_range_is_nan;  // 1: a label outside the vocabulary makes its row_loss and the loss NaN; no gradient
  const double* denominator;    // () in: D of a mean over micro-batches or ranks (sum xce_loss_count's); XCE_MEAN only
  int32_t empty_is_nan;         // 1: D = 0 makes the loss NaN, as PyTorch's mean; gradients stay zero
  int32_t upstream_is_scalar;   // 1: XCE_NONE reads one upstream value for all rows, as of an expanded tensor
  const void* upstream;         // accum, in: () for mean and sum, (rows) upstream_stride apart for none; null: 1
  int64_t upstream_stride;      // elements between two rows' values, of either sign; 0: 1

  void* loss;                   // () accum, out; with XCE_NONE the sum
  double* loss_total;           // () loss is added to it: of a step's micro-batches
  void* row_loss;               // (rows) accum, out: L_i, undivided
  void* offset;                 // (rows) accum: the residual, out of forward and in of backward, which requires it;
  void* logsum;                 // (rows) accum: both 0 on ignored rows
  void* z_loss_part;            // () accum, out: what z_loss adds to `loss`
  int64_t* n_valid;             // () out: valid rows
  int64_t* out_of_range;        // () out: rows whose label is not ignore_index and outside [0, vocab_global)
  double* weight_sum;           // () out: of the valid rows, whether it is the D or not
  int64_t* first_out_of_range;  // () out: the first row that out_of_range counts, -1 if none
  void* row_max;                // (rows) accum, out: max_v z_v, 0 on ignored rows
  void* row_entropy;            // (rows) accum, out: -sum_v p_v log p_v, 0 on ignored rows
  int64_t* argmax;              // (rows) out: the label of the largest z_v, the lowest of equals; -1 on ignored rows
  int64_t* n_correct;           // () out: valid rows whose argmax is their label; not with probabilities
  uint64_t reserved[8];         // 0
} xce_loss;

// ---- Linear cross-entropy: z = x weight^T + bias, never kept whole: chunks of rows live in the workspace.

typedef struct xce_linear_cross_entropy_args {
  size_t struct_size;  // required: sizeof(xce_linear_cross_entropy_args)
  xce_loss loss;
  int64_t hidden;      // required, >= 1, below 2^31, as the leading dimensions
  const void* x;       // (rows, hidden) dtype, in, rows ldx apart; required when there are rows
  const void* weight;  // (vocab, hidden) dtype, in, rows ldw apart; required
  const void* bias;    // (vocab) dtype, in, or null
  int64_t ldx, ldw;    // elements; 0: hidden

  void* dx;                   // (rows, hidden) dx_dtype, out or, with accumulate_dx, added to; 0 for ignored rows
  void* dweight;              // (vocab, hidden) dweight_dtype, out or, with accumulate_dweight, added to
  void* dbias;                // (vocab) dweight_dtype, out or, with accumulate_dweight, added to; only with a bias
  int64_t ld_dx, ld_dweight;  // elements; 0: hidden
  int32_t dx_dtype;           // 0: dtype. Or accum: shards sum dx over ranks before it is rounded
  // 0: accum, a main gradient. Or dtype: each value rounded once, which takes all rows in one chunk (a larger least
  // budget) and cannot be accumulated.
  int32_t dweight_dtype;
  int32_t accumulate_dx, accumulate_dweight;  // 0 or 1
  int32_t allow_tf32;     // 1: products of XCE_FLOAT32 on a GPU may round their operands to TF32; no effect elsewhere
  int32_t reserved_flag;  // 0

  // One set of `rows` rows (xce_loss_statistics_bytes), aligned to 8 bytes. Forward: out, of the columns here. Backward
  // of a shard with probabilities: the merged set, in, required. Other calls do not use it, but see prepare.
  void* statistics;
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
// shapes, dtypes, options and budget, and which of the pointers that may be null are; where those that are given point
// is not looked at, and x, weight and labels may still be null. One buffer of the largest serves all passes.
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
  void* statistics;    // as xce_linear_cross_entropy_args'
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
  // Rows, targets, weights and vocabulary; results n_valid, weight_sum, out_of_range and first_out_of_range.
  xce_loss loss;
  int32_t accumulate;     // 1: added to them, over micro-batches; first_out_of_range stays when it is 0 or more
  int32_t reserved_flag;  // 0
  uint64_t reserved[4];   // 0
} xce_loss_count_args;

#define XCE_LOSS_COUNT_ARGS_INIT \
  { .struct_size = sizeof(xce_loss_count_args) }

// Counts before any loss: weight_sum, summed over micro-batches and ranks, is the denominator of their mean.
XCE_API xce_status xce_loss_count(xce_context* context, const xce_loss_count_args* args);

typedef struct xce_loss_statistics_args {
  size_t struct_size;  // required: sizeof(xce_loss_statistics_args)
  xce_loss loss;       // as in the calls that made or will use the statistics, of every rank alike
  const void* sets;    // merge: (count) sets one after the other, as an all_gather lays them out, in; required
  int64_t count;       // merge: >= 1
  int64_t rows;        // merge: of each set (a chunk's)
  // Merge: one set, out, may be the first of `sets`; from_statistics: in, of loss.rows; required. All sets are aligned
  // to 8 bytes.
  void* statistics;
  uint64_t reserved[4];  // 0
} xce_loss_statistics_args;

#define XCE_LOSS_STATISTICS_ARGS_INIT \
  { .struct_size = sizeof(xce_loss_statistics_args) }

// The size of a set of `rows` rows, whose content is the library's: move whole sets, never part of one. All ranks ask
// begin or forward for the same options and results: a set holds only what they need.
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
