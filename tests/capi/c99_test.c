// xce.h is C99: this file compiles with -std=c99 -pedantic -Wall -Wextra -Werror, names every function and initialises
// every struct. It runs one small loss: of equal logits it is the logarithm of their number.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xce/xce.h>

typedef void (*any_function)(void);

static const any_function functions[] = {(any_function)xce_version,
                                         (any_function)xce_status_string,
                                         (any_function)xce_last_error,
                                         (any_function)xce_cuda_device_count,
                                         (any_function)xce_context_create_cpu,
                                         (any_function)xce_context_create_cuda,
                                         (any_function)xce_context_set_stream,
                                         (any_function)xce_context_destroy,
                                         (any_function)xce_context_set_tuning,
                                         (any_function)xce_context_tuning_text,
                                         (any_function)xce_context_load_tuning_text,
                                         (any_function)xce_linear_cross_entropy_workspace_bytes,
                                         (any_function)xce_linear_cross_entropy_prepare,
                                         (any_function)xce_linear_cross_entropy_forward,
                                         (any_function)xce_linear_cross_entropy_backward,
                                         (any_function)xce_linear_cross_entropy_forward_backward,
                                         (any_function)xce_linear_cross_entropy_chunks,
                                         (any_function)xce_linear_cross_entropy_begin,
                                         (any_function)xce_linear_cross_entropy_finish,
                                         (any_function)xce_cross_entropy_workspace_bytes,
                                         (any_function)xce_cross_entropy_prepare,
                                         (any_function)xce_cross_entropy_forward,
                                         (any_function)xce_cross_entropy_backward,
                                         (any_function)xce_cross_entropy_forward_backward,
                                         (any_function)xce_loss_count,
                                         (any_function)xce_loss_statistics_bytes,
                                         (any_function)xce_loss_merge_statistics,
                                         (any_function)xce_loss_from_statistics,
                                         (any_function)xce_loss_prepare};

int main(void) {
  xce_linear_cross_entropy_args linear = XCE_LINEAR_CROSS_ENTROPY_ARGS_INIT;
  xce_cross_entropy_args plain = XCE_CROSS_ENTROPY_ARGS_INIT;
  xce_loss_count_args count = XCE_LOSS_COUNT_ARGS_INIT;
  xce_loss_statistics_args statistics = XCE_LOSS_STATISTICS_ARGS_INIT;
  xce_context* context = NULL;
  const float logits[3] = {2, 2, 2};
  const int32_t label = 1;
  float loss = -1;

  if (linear.struct_size != sizeof linear || count.struct_size != sizeof count) return 1;
  if (statistics.struct_size != sizeof statistics) return 2;
  if (strcmp(xce_version(), "0.1.0") != 0) return 3;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i)
    if (!functions[i]) return 4;
  plain.loss.rows = 1;
  plain.loss.vocab = 3;
  plain.loss.dtype = XCE_FLOAT32;
  plain.loss.label_dtype = XCE_INT32;
  plain.loss.labels = &label;
  plain.loss.loss = &loss;
  plain.logits = logits;
  if (xce_context_create_cpu(1, &context) != XCE_OK || xce_cross_entropy_forward(context, &plain) != XCE_OK) {
    fprintf(stderr, "%s\n", xce_last_error());
    return 5;
  }
  xce_context_destroy(context);
  return fabs(loss - log(3)) > 1e-6;
}
