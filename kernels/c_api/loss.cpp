// xce_loss_*: counts, and statistics of a vocabulary's shards.
#include "kernels/cross_entropy/loss.h"

#include "kernels/c_api/arguments.h"

namespace {

using namespace xce;
using namespace xce::c_api;

void check_statistics(const xce_loss_statistics_args* args) {
  check_struct(args);
  check_shape(args->loss);
  require(args->rows >= 0, "args.rows >= 0", args->rows);
  check_elements(args->rows, kLossStatistics, "args.rows and 7");
}

}  // namespace

extern "C" {

xce_status xce_loss_count(xce_context* context, const xce_loss_count_args* args) {
  return call(__func__, context, [&] {
    check_struct(args);
    check_shape(args->loss);
    check_arrays(args->loss);
    check_flag(args->accumulate, "args.accumulate");
    require(args->reserved_flag == 0, "args.reserved_flag 0", args->reserved_flag);
    LossTargets counted = targets(args->loss);
    counted.ld_probabilities = 0;  // of columns here, which a count does not read: vocab_global may be more
    run(context->exec, LossCount{.targets = counted,
                                 .rows = args->loss.rows,
                                 .vocab_global = vocab_global(args->loss),
                                 .n_valid = args->loss.n_valid,
                                 .weight_sum = args->loss.weight_sum,
                                 .out_of_range = args->loss.out_of_range,
                                 .accumulate = args->accumulate != 0,
                                 .class_weights = args->loss.class_weights,
                                 .token_weights = args->loss.token_weights,
                                 .dtype = dtype_of(args->loss.dtype),
                                 .first_out_of_range = args->loss.first_out_of_range});
  });
}

xce_status xce_loss_statistics_bytes(xce_context* context, const xce_loss_statistics_args* args, size_t* bytes) {
  return call(__func__, context, [&] {
    require(bytes != nullptr, "bytes", "null");
    check_statistics(args);
    *bytes = static_cast<size_t>(kLossStatistics * args->rows) * sizeof(double);
  });
}

xce_status xce_loss_merge_statistics(xce_context* context, const xce_loss_statistics_args* args) {
  return call(__func__, context, [&] {
    check_statistics(args);
    require(args->count >= 1, "args.count >= 1", args->count);
    check_elements(args->count, kLossStatistics * args->rows, "args.count and 7 args.rows");
    if (args->rows == 0) return;
    check_array(args->sets, sizeof(double), "args.sets");
    check_array(args->statistics, sizeof(double), "args.statistics");
    run(context->exec, LossMergeStatistics{.sets = static_cast<const double*>(args->sets),
                                           .merged = static_cast<double*>(args->statistics),
                                           .count = args->count,
                                           .rows = args->rows});
  });
}

xce_status xce_loss_from_statistics(xce_context* context, const xce_loss_statistics_args* args) {
  return call(__func__, context, [&] {
    check_statistics(args);
    check_arrays(args->loss);
    if (args->loss.rows > 0) check_array(args->statistics, sizeof(double), "args.statistics");
    run(context->exec, LossFromStatistics{.statistics = static_cast<const double*>(args->statistics),
                                          .targets = targets(args->loss),
                                          .rows = args->loss.rows,
                                          .vocab_global = vocab_global(args->loss),
                                          .dtype = dtype_of(args->loss.dtype),
                                          .options = options(args->loss),
                                          .out = outputs(args->loss)});
  });
}

xce_status xce_loss_prepare(xce_context* context, int32_t dtype) {
  return call(__func__, context, [&] {
    const DType type = dtype_of(dtype);
    if (context->on_cpu()) return;
    // One ignored row whose set and results lie in the context's scratch, behind the label.
    unsigned char* scratch = context->scratch;
    double* set = reinterpret_cast<double*>(scratch + 128);
    const LossTargets none{.index = scratch, .type = IndexType::kI64, .ignore_index = -1};
    run(context->exec, LossCount{.targets = none,
                                 .rows = 1,
                                 .vocab_global = 1,
                                 .n_valid = reinterpret_cast<int64_t*>(scratch + 64),
                                 .weight_sum = nullptr,
                                 .dtype = type});
    run(context->exec, LossMergeStatistics{.sets = set, .merged = set, .count = 1, .rows = 1});
    run(context->exec, LossFromStatistics{.statistics = set,
                                          .targets = none,
                                          .rows = 1,
                                          .vocab_global = 1,
                                          .dtype = type,
                                          .options = {},
                                          .out = {.loss = scratch + 256}});
  });
}
}
