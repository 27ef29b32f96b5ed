// OpenBLAS picks its kernels by the processor's model number; a model it does not know (a virtual machine, a newer
// chip) gets the SSE3 ones, five times slower. This picks them by the instructions the processor has.
#pragma once

namespace xce::cpu {

// Replaces OpenBLAS's fallback core by SkylakeX or Haswell where the processor can run it; once per process, before
// other threads call BLAS. Does nothing if OpenBLAS knew the processor, if OPENBLAS_CORETYPE is set, or for another
// BLAS.
void select_blas_core();

// The name of the core in use, for records; "" if BLAS does not say.
const char* blas_core();

}  // namespace xce::cpu
