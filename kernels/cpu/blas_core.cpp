#include "kernels/cpu/blas_core.h"

#include <cstdlib>
#include <cstring>

extern "C" {
// Exported by an OpenBLAS built for several cores; weak, so that any other BLAS links too.
[[gnu::weak]] char* openblas_get_corename();
[[gnu::weak]] void gotoblas_dynamic_init();
[[gnu::weak]] void gotoblas_dynamic_quit();
}

namespace xce::cpu {
namespace {

constexpr const char* kVariable = "OPENBLAS_CORETYPE";

// The best core that the processor's instructions allow; null where the fallback is right.
const char* core_by_instructions() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
    return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
  return nullptr;
}

void reload_as(const char* core) {
  setenv(kVariable, core, 1);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv(kVariable);
}

}  // namespace

const char* blas_core() {
  return openblas_get_corename ? openblas_get_corename() : "";
}

void select_blas_core() {
  static const bool done = [] {
    if (!gotoblas_dynamic_init || !gotoblas_dynamic_quit || std::getenv(kVariable)) return true;
    const char* core = core_by_instructions();
    if (core && std::strcmp(blas_core(), "Prescott") == 0) reload_as(core);
    return true;
  }();
  (void)done;
}

}  // namespace xce::cpu
