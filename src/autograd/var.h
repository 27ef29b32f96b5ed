// A value on the tape: a handle that keeps the value's storage alive. The last handle to go returns the memory to the
// arena, so a backward step holds on to exactly the values it names and nothing else outlives its use.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/dtype.h"
#include "src/core/arena.h"

namespace xce {

class Tape;

struct Shape {
  int64_t rows, cols;
  int64_t size() const { return rows * cols; }
  bool operator==(const Shape&) const = default;
};

// The gradient of one value: no storage until the first backward step writes it.
struct GradSlot {
  Shape shape;
  DType dtype;
  StorageRef storage;
};
using Grad = std::shared_ptr<GradSlot>;

class Var {
 public:
  Var() = default;

  Tape& tape() const { return *tape_; }
  const Shape& shape() const { return shape_; }
  int64_t rows() const { return shape_.rows; }
  int64_t cols() const { return shape_.cols; }
  DType dtype() const { return dtype_; }
  void* data() const;  // resolved now: ask again in a backward step, a parameter may lie elsewhere by then
  bool is_parameter() const { return parameter_ >= 0; }

 private:
  friend class Tape;
  Tape* tape_ = nullptr;
  Shape shape_{0, 0};
  DType dtype_ = DType::kF32;
  StorageRef storage_;  // null for parameters
  Grad grad_;           // null for parameters and while nothing is recorded
  int parameter_ = -1;
};

}  // namespace xce
