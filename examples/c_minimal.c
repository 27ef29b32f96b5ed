// The loss library from C: the loss of a linear head over 32,000 labels and its gradients, in 16 MiB of workspace. All
// the logits would be 32 MiB; they are computed a part at a time and never kept. One element of the weights' gradient
// is then compared with a difference quotient of the loss.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <xce/xce.h>

enum { ROWS = 256, HIDDEN = 64, VOCAB = 32000 };

static float x[ROWS * HIDDEN], weight[VOCAB * HIDDEN], dx[ROWS * HIDDEN], dweight[VOCAB * HIDDEN];
static int32_t labels[ROWS];

static void check(xce_status status) {
  if (status == XCE_OK) return;
  fprintf(stderr, "%s: %s\n", xce_status_string(status), xce_last_error());
  exit(1);
}

int main(void) {
  float loss = 0, row_loss[ROWS];
  size_t bytes = 0;
  xce_context* context = NULL;
  xce_linear_cross_entropy_args args = XCE_LINEAR_CROSS_ENTROPY_ARGS_INIT;

  for (int i = 0; i < ROWS * HIDDEN; ++i) x[i] = sinf((float)i);
  for (int i = 0; i < VOCAB * HIDDEN; ++i) weight[i] = 0.02f * cosf((float)i);
  for (int i = 0; i < ROWS; ++i) labels[i] = i * 97 % VOCAB;

  args.loss.rows = ROWS;
  args.hidden = HIDDEN;
  args.loss.vocab = VOCAB;
  args.loss.dtype = XCE_FLOAT32;
  args.loss.label_dtype = XCE_INT32;
  args.loss.labels = labels;
  args.x = x;
  args.weight = weight;
  args.loss.loss = &loss;
  args.dx = dx;
  args.dweight = dweight;
  args.workspace_budget_bytes = (size_t)16 << 20;

  check(xce_context_create_cpu(2, &context));
  check(xce_linear_cross_entropy_workspace_bytes(context, XCE_FORWARD_BACKWARD, &args, &bytes));
  args.workspace = malloc(bytes);
  args.workspace_size_bytes = bytes;
  check(xce_linear_cross_entropy_forward_backward(context, &args));
  printf("loss %.4f, ln V %.4f, workspace %zu bytes, all logits %zu bytes\n", loss, log(VOCAB), bytes,
         sizeof(float) * ROWS * VOCAB);

  // The weight with which a token's own label sees its first feature.
  const int at = labels[1] * HIDDEN, steps = 2;
  const float middle = weight[at], step = 0.125f;
  double quotient = 0;
  args.loss.row_loss = row_loss;  // summed in fp64 here: the reduced loss has only fp32's digits
  for (int side = 0; side < steps; ++side) {
    double sum = 0;
    weight[at] = middle + (side ? -step : step);
    check(xce_linear_cross_entropy_forward(context, &args));
    for (int i = 0; i < ROWS; ++i) sum += row_loss[i];
    quotient += (side ? -sum : sum) / ROWS / (2 * step);
  }
  printf("gradient %.6f, difference quotient %.6f\n", dweight[at], quotient);
  free(args.workspace);
  xce_context_destroy(context);
  return fabs(dweight[at] - quotient) > 1e-3 * fabs(quotient);
}
