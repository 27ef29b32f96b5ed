// Instructions that sm_80 brought, each wrapped once: the bf16 tensor-core product, the loads of its fragments from
// shared memory, and copies from global to shared memory that nobody waits for until they are needed.
//
// Of a 16 x 8 result thread t holds rows t / 4 and t / 4 + 8, columns t % 4 * 2 and the next: {row, row, row + 8,
// row + 8}.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/base/dtype.h"

namespace xce::cuda {

// c (16 x 8) += a (16 x 16) times b (16 x 8).
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// Four 8 x 8 matrices of bf16; the thread's address is the row t % 8 of matrix t / 8.
__device__ inline void load_matrices(uint32_t (&r)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// Two values rounded to bf16, the first in the lower half.
__device__ inline uint32_t pack_bf16(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// 16 bytes to shared memory, zeros where not `wanted` (src is then not read).
__device__ inline void copy_async16(void* dst, const void* src, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(dst)),
               "l"(__cvta_generic_to_global(src)), "r"(wanted ? 16 : 0)
               : "memory");
}
// Until the thread's own copies have arrived; a barrier tells of the others'.
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace xce::cuda
