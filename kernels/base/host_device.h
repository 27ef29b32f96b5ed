// XCE_HOST_DEVICE marks small functions that kernels of both devices share; nothing for a C++ compiler.
#pragma once

#ifdef __CUDACC__
#define XCE_HOST_DEVICE __host__ __device__
#else
#define XCE_HOST_DEVICE
#endif
