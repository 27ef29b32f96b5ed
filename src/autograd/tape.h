// The tape: backward steps in the order their forwards ran, played in reverse. It knows no op.
//
// Invariants. 1. A step holds handles (Var, Grad), never addresses. 2. A gradient is overwritten by its first writer
// and added to by later ones; grad_out() decides which, nobody else. 3. A step is played only if the gradient it
// consumes was written, and that gradient is dropped right after. 4. Storage shared by two gradients is copied before
// one of them is added to.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/elementwise.h"
#include "src/autograd/var.h"
#include "src/core/param.h"

namespace xce {

// Called around a unit's forward and backward: where sharding gathers weights, sends gradients and frees both.
struct UnitHooks {
  std::function<void(int unit)> before_forward, after_forward, before_backward, after_backward;
};

// One of the pieces that UnitHooks number, with its name for profilers.
struct Unit {
  Unit(int index) : Unit(index, "unit " + std::to_string(index)) {}
  Unit(int index, std::string name) : index(index), name(std::move(name)) {}
  int index;
  std::string name;
};

// Where a backward step puts a gradient.
struct GradOut {
  void* data;
  bool accumulate;
};

class Tape {
 public:
  // exec and parameters are borrowed. With a planning arena nothing is launched: the same program yields the memory
  // plan.
  Tape(const Exec& exec, Arena& arena, ParameterSet& parameters)
      : exec_(exec), arena_(&arena), parameters_(&parameters) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  bool recording() const { return recording_; }
  void set_recording(bool on) { recording_ = on; }
  bool planning() const { return arena_->planning(); }
  UnitHooks& hooks() { return hooks_; }
  DType dtype() const { return parameters_->dtype(); }  // of activations and compute weights

  Var parameter(int index);
  Var make(Shape shape, DType dtype);  // a new value, its contents undefined
  Var make(Shape shape) { return make(shape, dtype()); }
  Var alias(const Var& x);  // a new value in x's storage: for ops that work in place
  StorageRef scratch(size_t size_bytes) { return std::make_shared<Storage>(*arena_, size_bytes); }

  template <class Args>
  void run(const Args& args) {
    if (!planning()) xce::run(exec_, args);
  }
  template <class Args>
  size_t workspace_bytes_of(const Args& args) const {
    return workspace_bytes(exec_, args);
  }
  // Runs args with scratch of the size it asks for, freed right after.
  template <class Args>
  void run_with_workspace(Args args) {
    args.workspace_size_bytes = workspace_bytes_of(args);
    StorageRef workspace = args.workspace_size_bytes ? scratch(args.workspace_size_bytes) : nullptr;
    args.workspace = workspace ? workspace->data() : nullptr;
    run(args);
  }

  // While recording: fn is called in backward() when every later step has been played.
  void on_backward(std::function<void()> fn);
  // The same, with y's gradient, which is complete by then; not called if nothing wrote it.
  void on_backward(const Var& y, std::function<void(const Grad& dy)> fn);
  // Where a step writes the gradient of x (a parameter's main gradient is in accum_dtype).
  GradOut grad_out(const Var& x);
  // The same, but in x's own storage if the calling step is x's only holder: for a kernel that reads x and writes x's
  // gradient in place. x's values are gone then.
  GradOut grad_over(const Var& x);
  // x's gradient is, or grows by, dy itself: shares the storage instead of copying it where it can.
  void pass_grad(const Grad& dy, const Var& x);
  // x's gradient without its values: what a step captures that does not read x, so that x's memory can go.
  Var gradient_only(const Var& x);
  // dy's storage for changing in place: a private copy if another gradient shares it.
  void* own_grad(const Grad& dy);
  static const void* data(const Grad& dy) { return dy->storage->data(); }

  // A piece of the model whose parameters are one unit: the hooks run around its forward and its backward.
  // With recompute, only the input x is kept and fn runs again, recorded, when the backward reaches it: the same bits.
  // A profiler sees "NAME forward" and "NAME backward" around the hooks' calls too.
  Var unit(const Unit& unit, bool recompute, const Var& x, const std::function<Var(const Var&)>& fn);

  // Plays every step in reverse; afterwards the tape is empty. The last recorded value is the loss.
  void backward();
  size_t recorded_steps() const { return steps_.size(); }

 private:
  void play_down_to(size_t mark);
  Var recomputed(const Var& x, const std::function<Var(const Var&)>& fn);

  Exec exec_;
  Arena* arena_;
  ParameterSet* parameters_;
  UnitHooks hooks_;
  std::vector<std::function<void()>> steps_;
  bool recording_ = true;

  friend class Var;
};

}  // namespace xce
