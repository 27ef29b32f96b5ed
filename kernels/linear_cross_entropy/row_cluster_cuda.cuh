// The row pass on GPUs with thread block clusters: a cluster holds one row of logits in its registers, so that each is
// read once. For wide vocabularies and bf16 gradients over fp32 logits; row_losses_and_gradients does the same for all.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "kernels/cross_entropy/row_launch_cuda.cuh"

namespace xce::loss {

constexpr int kClusterBlocks = 8;  // what every such GPU offers
constexpr int kHeldWidth = 8;      // elements of a vector: two loads of 16 bytes, one store

// Columns col .. col + kHeldWidth of a row; -inf beyond the last.
__device__ inline cuda::Vec<float, kHeldWidth> read_logits(const DeviceRows<float, Bf16>& r, const LogitMap<float>& map,
                                                           const float* row, int col) {
  const int cols = static_cast<int>(r.cols);
  if (col + kHeldWidth <= cols) return map(r, cuda::load<kHeldWidth>(row + col), col);
  cuda::Vec<float, kHeldWidth> z;
#pragma unroll
  for (int j = 0; j < kHeldWidth; ++j) {
    z.at[j] = minus_infinity<float>();
    if (col + j < cols) z.at[j] = map(r, cuda::Vec<float, 1>{row[col + j]}, col + j).at[0];
  }
  return z;
}

// kHeld vectors to a thread. Clusters stay for row after row, with one barrier of the cluster to a row that counts:
// 1. A gradient overwrites its row's logits after that barrier, where every block has its own in registers.
// 2. What other threads read after the barrier (`block_part` in the whole cluster, `upstream` and `weight` in the
//    block) has two places, taken in turns by the rows that count: a thread comes back to a place after the barrier of
//    the row between, and by then everyone has read it.
// 3. An ignored row has no barrier and takes no turn: no block reads its logits, each overwrites its own columns.
template <int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) cluster_losses_and_gradients(DeviceRows<float, Bf16> r) {
#if __CUDA_ARCH__ >= 900
  __shared__ float2 block_part[2];
  __shared__ double upstream[2], weight[2];
  const auto cluster = cooperative_groups::this_cluster();
  const int rank = blockIdx.x % kClusterBlocks;  // here and below 32 bits, or a register spills
  const double d = denominator(r.options, *r.totals);
  auto column = [&](int k) {
    return ((k * kClusterBlocks + rank) * kThreads + static_cast<int>(threadIdx.x)) * kHeldWidth;
  };
  const LogitMap<float> map(r.options);
  auto exponential = [](float z) { return cuda::exp2_approx(z * Exponential<float>::kLog2e); };
  int turn = 0;
  for (int i = blockIdx.x / kClusterBlocks; i < r.rows; i += gridDim.x / kClusterBlocks) {
    const RowTarget label = r.target(i);
    auto write = [&](auto&& gradient) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k)
        write_gradient<kHeldWidth>(r.dlogits + i * r.ld_out, column(k), r.cols_out, gradient(k));
    };
    auto zero = [](int) { return cuda::Vec<Bf16, kHeldWidth>{}; };
    if (d == 0 && rank == 0) zero_input(r, i);
    if (!label.valid) {
      if (rank == 0 && threadIdx.x == 0) store_loss(r, i, label, nullptr);
      write(zero);
      continue;
    }
    cuda::Vec<float, kHeldWidth> held[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) held[k] = read_logits(r, map, r.logits + i * r.ld, column(k));
    if (threadIdx.x == 0) upstream[turn] = factor_of(r, label, d, i), weight[turn] = total_mass<false>(r, label, i);
    const float target = rank == 0 && threadIdx.x == 0 ? static_cast<float>(target_logit(r, i, label)) : 0;

    // held becomes exp(z - the thread's maximum).
    Part<float> mine;
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
#pragma unroll
      for (float z : held[k].at) mine.max = z > mine.max ? z : mine.max;
    const float thread_max = mine.max, base = thread_max == minus_infinity<float>() ? 0 : thread_max;
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
#pragma unroll
      for (float& z : held[k].at) z = exponential(z - base), mine.sum += z;
    mine = merge_block(mine);
    if (threadIdx.x == 0) block_part[turn] = {mine.max, mine.sum};
    cluster.sync();  // every block's part is there, and every logit was read
    Part<float> whole;
#pragma unroll
    for (int b = 0; b < kClusterBlocks; ++b) {
      const float2 part = *cluster.map_shared_rank(&block_part[turn], b);
      whole.merge({part.x, part.y});
    }
    if (rank == 0 && threadIdx.x == 0) {
      RowStatistics s;
      s.max = static_cast<double>(whole.max), s.sum = static_cast<double>(whole.sum);
      s.target = static_cast<double>(target);
      const RowTarget again = r.target(i);  // rather than hold its weight in registers
      const RowLoss row = loss_of<false>(r, again, s);
      store_loss(r, i, again, &row);
    }
    if (d == 0) {
      write(zero);
    } else {
      const double logsum = r.options.z_loss != 0 ? static_cast<double>(logf(whole.sum)) : 0;
      const RowGradient<Bf16, false> gradient(r, label, upstream[turn], static_cast<double>(whole.max) + logsum,
                                              weight[turn]);
      const float scale = exponential(thread_max - whole.max) / whole.sum;
      write([&](int k) {
        return gradient.template finish<kHeldWidth>(held[k], gradient.k * scale, column(k), static_cast<int>(r.cols),
                                                    scale);
      });
    }
    turn ^= 1;
  }
  cluster.sync();  // no block leaves while another reads its part
#else
  __trap();  // not compiled for clusters
#endif
}

// Clusters that the device of `exec` holds at once.
template <int kThreads, int kHeld>
int64_t resident_clusters(const CudaExec& exec, const cudaLaunchConfig_t& config) {
  static std::mutex mutex;
  static std::map<int, int> by_device;
  const std::lock_guard lock(mutex);
  int& clusters = by_device[exec.device];
  if (clusters == 0)
    XCE_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, cluster_losses_and_gradients<kThreads, kHeld>, &config));
  XCE_CHECK(clusters >= 1, "room for a cluster of blocks on the GPU", clusters);
  return clusters;
}

template <int kThreads, int kHeld>
void launch_cluster(const CudaExec& exec, const DeviceRows<float, Bf16>& r) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kClusterBlocks;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kClusterBlocks);
  config.blockDim = dim3(kThreads);
  config.stream = exec.stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  XCE_CHECK(r.rows < int64_t{1} << 30, "fewer than 2^30 rows", r.rows);
  const int64_t clusters = std::min(r.rows, resident_clusters<kThreads, kHeld>(exec, config));
  config.gridDim = dim3(static_cast<unsigned>(clusters * kClusterBlocks));
  XCE_CUDA_CHECK(cudaLaunchKernelEx(&config, cluster_losses_and_gradients<kThreads, kHeld>, r));
}

// False, and nothing enqueued, where a block to a row does better or there are no clusters.
inline bool launch_in_cluster(const CudaExec& exec, const DeviceRows<float, Bf16>& r) {
  constexpr int64_t kColumns = int64_t{kClusterBlocks} * kHeldWidth * 512;
  const bool aligned = r.ld % kHeldWidth == 0 && cuda::aligned16(r.logits, r.dlogits);
  if (is_general(r) || !has_clusters(exec) || !aligned || r.rows == 0 || r.cols <= kColumns / 2 ||
      r.cols > 8 * kColumns)
    return false;
  if (r.cols <= kColumns)
    launch_cluster<512, 1>(exec, r);
  else if (r.cols <= 2 * kColumns)
    launch_cluster<512, 2>(exec, r);
  else if (r.cols <= 4 * kColumns)
    launch_cluster<512, 4>(exec, r);
  else
    launch_cluster<1024, 4>(exec, r);
  return true;
}
template <class In, class Out>
bool launch_in_cluster(const CudaExec&, const DeviceRows<In, Out>&) {
  return false;
}

}  // namespace xce::loss
