#include "src/autograd/tape.h"

#include <memory>
#include <optional>

#include "kernels/base/check.h"
#include "src/core/trace.h"

namespace xce {
namespace {

size_t bytes_of(const Shape& shape, DType dtype) {
  return static_cast<size_t>(shape.size()) * size_of(dtype);
}

void call(const std::function<void(int)>& hook, int unit) {
  if (hook) hook(unit);
}

}  // namespace

void* Var::data() const {
  XCE_CHECK(tape_ != nullptr, "a value made by a tape", "an empty Var");
  if (!is_parameter()) return storage_->data();
  return tape_->parameters_->compute((*tape_->parameters_)[parameter_].offset);
}

Var Tape::parameter(int index) {
  const Parameter& p = (*parameters_)[index];
  Var v;
  v.tape_ = this;
  v.shape_ = {p.rows, p.cols};
  v.dtype_ = dtype();
  v.parameter_ = index;
  return v;
}

Var Tape::make(Shape shape, DType dtype) {
  Var v;
  v.tape_ = this;
  v.shape_ = shape;
  v.dtype_ = dtype;
  v.storage_ = scratch(bytes_of(shape, dtype));
  if (recording_) v.grad_ = std::make_shared<GradSlot>(GradSlot{shape, dtype, nullptr});
  return v;
}

Var Tape::alias(const Var& x) {
  XCE_CHECK(!x.is_parameter(), "an activation to work on in place", "a parameter");
  Var v = x;
  v.grad_ = recording_ ? std::make_shared<GradSlot>(GradSlot{x.shape_, x.dtype_, nullptr}) : nullptr;
  return v;
}

void Tape::on_backward(std::function<void()> fn) {
  if (recording_) steps_.push_back(std::move(fn));
}

void Tape::on_backward(const Var& y, std::function<void(const Grad&)> fn) {
  if (!recording_) return;
  steps_.push_back([dy = y.grad_, fn = std::move(fn)] {
    if (!dy->storage) return;
    fn(dy);
    dy->storage.reset();
  });
}

GradOut Tape::grad_out(const Var& x) {
  if (x.is_parameter()) {
    bool accumulate = parameters_->claim_gradient(x.parameter_);
    return {parameters_->grad((*parameters_)[x.parameter_].offset), accumulate};
  }
  XCE_CHECK(x.grad_ != nullptr, "a gradient of a value made while recording", "none");
  if (x.grad_->storage) return {own_grad(x.grad_), true};
  x.grad_->storage = scratch(bytes_of(x.shape_, x.dtype_));
  return {x.grad_->storage->data(), false};
}

GradOut Tape::grad_over(const Var& x) {
  bool mine = !x.is_parameter() && x.grad_ && !x.grad_->storage && x.storage_.use_count() == 1;
  if (!mine) return grad_out(x);
  x.grad_->storage = x.storage_;
  return {x.storage_->data(), false};
}

void Tape::pass_grad(const Grad& dy, const Var& x) {
  XCE_CHECK(x.grad_ != nullptr && x.shape_ == dy->shape, "a recorded value of its gradient's shape", x.rows());
  StorageRef& mine = x.grad_->storage;
  if (!mine) {
    mine = dy->storage;
    return;
  }
  StorageRef sum = mine.use_count() > 1 ? scratch(mine->size_bytes()) : mine;
  run(Add{.a = mine->data(), .b = data(dy), .y = sum->data(), .n = x.shape_.size(), .dtype = x.dtype_});
  mine = sum;
}

Var Tape::gradient_only(const Var& x) {
  Var v = x;
  v.storage_.reset();
  return v;
}

void* Tape::own_grad(const Grad& dy) {
  if (dy->storage.use_count() > 1) {
    StorageRef copy = scratch(dy->storage->size_bytes());
    run(Convert{.x = data(dy), .y = copy->data(), .n = dy->shape.size(), .from = dy->dtype, .to = dy->dtype});
    dy->storage = copy;
  }
  return dy->storage->data();
}

Var Tape::unit(const Unit& unit, bool recompute, const Var& x, const std::function<Var(const Var&)>& fn) {
  TraceRange forward(unit.name + " forward");
  // Held by both steps below: it ends with the second, or with the tape when a step between them throws.
  auto backward = std::make_shared<std::optional<TraceRange>>();
  call(hooks_.before_forward, unit.index);
  on_backward([this, index = unit.index, backward] {
    call(hooks_.after_backward, index);
    backward->reset();
  });
  Var y = recompute && recording_ ? recomputed(x, fn) : fn(x);
  on_backward([this, unit, backward] {
    backward->emplace(unit.name + " backward");
    call(hooks_.before_backward, unit.index);
  });
  call(hooks_.after_forward, unit.index);
  return y;
}

Var Tape::recomputed(const Var& x, const std::function<Var(const Var&)>& fn) {
  Var y;
  {
    struct Pause {
      bool& recording;
      ~Pause() { recording = true; }  // also when fn throws
    } pause{recording_ = false};
    y = fn(x);
  }
  y = alias(y);
  on_backward(y, [this, x, fn](const Grad& dy) {
    size_t mark = steps_.size();
    Var again = [&] {
      TraceRange range("recompute");
      return gradient_only(fn(x));  // the second output itself is not needed
    }();
    pass_grad(dy, again);
    dy->storage.reset();  // what again shares now is its own, free to change in place
    play_down_to(mark);
  });
  return y;
}

void Tape::play_down_to(size_t mark) {
  while (steps_.size() > mark) {
    std::function<void()> step = std::move(steps_.back());
    steps_.pop_back();
    step();
  }
}

void Tape::backward() {
  play_down_to(0);
}

}  // namespace xce
