// Rotary position embedding (Su et al. 2021), half-split layout as Hugging Face's Llama: element i of a head pairs with
// i + head_dim/2, (a, b) -> (a cos - b sin, b cos + a sin). In place; backward is the rotation by the negative angle.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

struct Rope {
  void* x;             // rows of `heads` heads of head_dim elements, dtype, in and out
  int64_t row_stride;  // elements from row to row; >= heads * head_dim
  const void* table;   // (seq_len, head_dim / 2, 2) accum_dtype(dtype): cos, sin of each position, from rope_table
  int64_t rows;        // row r stands at position r % seq_len
  int64_t seq_len, heads, head_dim;
  DType dtype;
  bool inverse = false;  // true: backward
};

void launch(const CpuExec& exec, const Rope& args);
void launch(const CudaExec& exec, const Rope& args);

// Error(kRuntime) that names the field at fault; both launches begin with it.
void check_args(const Rope& args);

// Llama 3's frequency scaling (rope_type "llama3" in config.json).
struct RopeScaling {
  double factor = 1.0;  // 1: none
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  double original_max_position = 8192.0;
};
// The host's table of (cos, sin) pairs, (seq_len, head_dim / 2, 2), computed in fp64; callers convert it to
// accum_dtype.
std::vector<double> rope_table(int64_t seq_len, int64_t head_dim, double theta, const RopeScaling& scaling);

}  // namespace xce
