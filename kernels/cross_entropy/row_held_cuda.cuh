// Loss and gradient of plain rows of one type, each read once: the threads of a block, or of a cluster of blocks where
// the GPU has them, hold the row in their registers between the two passes. What does not fit is read again.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "kernels/base/cuda_check.h"
#include "kernels/cross_entropy/row_gradient_cuda.cuh"
#include "kernels/cross_entropy/row_loss_cuda.cuh"
#include "kernels/cross_entropy/row_statistics_cuda.cuh"

namespace xce::loss {

constexpr int kHeldBytes = 128;  // of a row in each thread
constexpr int kHeldThreads = 1024;

// Each group of `blocks` blocks takes row after row:
// 1. A gradient may overwrite its row's logits: after the barrier that joins the parts every thread has its own in
//    registers, and what it reads again no other thread writes.
// 2. `block_part`, which the whole cluster reads after its barrier, has two places, taken in turns by the rows that
//    count: a block comes back to a place after the barrier of the row between, and by then everyone has read it.
// 3. An ignored row has no barrier and takes no turn.
template <int W, class T>
__global__ void __launch_bounds__(kHeldThreads, 1) held_losses_and_gradients(DeviceRows<T, T> r, int blocks) {
  using A = Accum<T>;
  [[maybe_unused]] __shared__ Part<A> block_part[2];
  __shared__ RowStatistics kept;  // by one thread, until the others have their work
  const int rank = blocks == 1 ? 0 : static_cast<int>(blockIdx.x) % blocks;
  const RowThreads group{rank * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x),
                         blocks * static_cast<int>(blockDim.x)};
  const double d = denominator(r.options, *r.totals);
  if (d == 0)  // in a loop of its own: fewer registers spill in the other
    for (int i = static_cast<int>(blockIdx.x); i < r.rows; i += static_cast<int>(gridDim.x)) zero_input(r, i);
  [[maybe_unused]] int turn = 0;
  for (int i = static_cast<int>(blockIdx.x) / blocks; i < r.rows; i += static_cast<int>(gridDim.x) / blocks) {
    const RowTarget target = r.target(i);
    if (!target.valid) {
      if (group.thread == 0) store_loss(r, i, target, nullptr);
      zero_gradient<W>(r, i, group);
      continue;
    }
    double logit = 0;
    if (group.thread == 0) logit = target_logit(r, i, target);
    Raw<T, W> raw[kBatch<T, W, kHeldBytes>];
    Part<A> part = merge_block(thread_statistics<false>(r, i, group, raw));
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) {
      const auto cluster = cooperative_groups::this_cluster();
      if (threadIdx.x == 0) block_part[turn] = part;
      cluster.sync();
      const int lane = static_cast<int>(threadIdx.x) % 32;
      part = merge_warp(lane < blocks ? *cluster.map_shared_rank(&block_part[turn], lane) : Part<A>{});
      turn ^= 1;
    }
#else
    if (blocks > 1) __trap();  // not compiled for clusters
#endif
    if (group.thread == 0) {
      kept = statistics_of(part);
      kept.target = logit;
    }
    if (d == 0) {
      zero_gradient<W>(r, i, group);
    } else {
      const A logsum = log(part.sum);
      const RowGradient<T, false> gradient(r, target, factor_of(r, target, d, i),
                                           static_cast<double>(part.max) + static_cast<double>(logsum),
                                           total_mass<false>(r, target, i));
      GradientWriter<W, false, T, T>(r, gradient, i, group).write_from_last(raw);
    }
    if (group.thread == 0) {
      const RowTarget again = r.target(i);  // rather than hold its weight in registers
      const RowLoss row = loss_of<false>(r, again, kept);
      store_loss(r, i, again, &row);
    }
  }
#if __CUDA_ARCH__ >= 900
  if (blocks > 1) cooperative_groups::this_cluster().sync();  // no block leaves while another reads its part
#endif
}

// Clusters that the device of `exec` holds at once.
template <int W, class T>
int64_t resident_held(const CudaExec& exec, const cudaLaunchConfig_t& config, int blocks) {
  static std::mutex mutex;
  static std::map<std::tuple<int, int, unsigned>, int> known;
  const std::lock_guard lock(mutex);
  int& clusters = known[{exec.device, blocks, config.blockDim.x}];
  if (clusters == 0)
    XCE_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, held_losses_and_gradients<W, T>, &config));
  XCE_CHECK(clusters >= 1, "room for a cluster of blocks on the GPU", clusters);
  return clusters;
}

// The fewest blocks whose threads hold a row of `bytes` bytes.
struct HeldShape {
  int blocks, threads;
};
inline HeldShape held_shape(int64_t bytes, bool clusters) {
  const int64_t all = cuda::ceil_div(std::max<int64_t>(bytes, 1), kHeldBytes);
  int blocks = 1;
  while (clusters && blocks < 8 && all > int64_t{blocks} * kHeldThreads) blocks *= 2;
  const int64_t threads = cuda::ceil_div(cuda::ceil_div(all, blocks), 32) * 32;
  return {blocks, static_cast<int>(std::clamp<int64_t>(threads, 128, kHeldThreads))};
}

template <int W, class T>
void launch_held(const CudaExec& exec, const DeviceRows<T, T>& r) {
  XCE_CHECK(r.rows < int64_t{1} << 30, "fewer than 2^30 rows", r.rows);
  const HeldShape shape = held_shape(r.cols * static_cast<int64_t>(sizeof(T)), has_clusters(exec));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(shape.blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.stream = exec.stream;
  config.attrs = &cluster;
  config.numAttrs = shape.blocks > 1 ? 1 : 0;
  // Those that take long to start stay for row after row; of blocks that share an SM the next one fills the gap.
  int64_t groups = r.rows;
  if (shape.blocks > 1)
    groups = std::min(r.rows, resident_held<W, T>(exec, config, shape.blocks));
  else if (shape.threads > kHeldThreads / 2)
    groups = std::min<int64_t>(r.rows, exec.sm_count);
  config.gridDim = dim3(static_cast<unsigned>(groups * shape.blocks));
  XCE_CUDA_CHECK(cudaLaunchKernelEx(&config, held_losses_and_gradients<W, T>, r, shape.blocks));
}

}  // namespace xce::loss
