// Collectives among the ranks of a run. Each call enqueues on the exec's order and returns a Work to wait for; arena
// buffers a Work uses are freed only after its wait. A world of one is a full member: no caller asks for the size
// before calling.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"

namespace xce {

enum class Reduce : int32_t { kSum = 0, kMax = 1 };
enum class CommType : int32_t { kF32 = 0, kBf16 = 1, kF64 = 2, kI64 = 3 };
CommType comm_type(DType dtype);
size_t size_of(CommType type);

// A collective in flight. Handed to Communicator::wait exactly once.
class Work {
 public:
  explicit Work(int64_t id) : id_(id) {}
  Work(Work&& other) noexcept : id_(other.id_) { other.id_ = -1; }
  Work& operator=(Work&&) = delete;
  int64_t id() const { return id_; }

 private:
  int64_t id_;
};

// Counts are elements and may be 0. Buffers are device memory of the exec. Misuse (null with a count above 0, a
// negative count, a rank outside the world) is Error(kRuntime); a failed transport is Error(kCommunication).
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Work all_reduce(const Exec& exec, void* data, int64_t count, CommType type, Reduce op) = 0;  // in place
  // recv[count] = the reduction of every rank's send[rank * count ...]; send holds size * count; recv may lie at its
  // own part.
  virtual Work reduce_scatter(const Exec& exec, const void* send, void* recv, int64_t count, CommType type) = 0;
  // recv[size * count] = every rank's send[count] in rank order; send may be its own part of recv.
  virtual Work all_gather(const Exec& exec, const void* send, void* recv, int64_t count, CommType type) = 0;
  virtual Work broadcast(const Exec& exec, void* data, int64_t count, CommType type, int root) = 0;  // in place
  virtual void wait(const Exec& exec, Work work) = 0;

  virtual void barrier() = 0;
  // The ranks that call with the same color, ordered by key then rank, as a world of their own.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  virtual void check() = 0;  // throws Error(kCommunication) for an asynchronous failure seen so far
};

// The world this process was started in.
std::unique_ptr<Communicator> make_communicator();

}  // namespace xce
