// An injection of NVTX, linked into the program itself: NVTX hands over its table of functions at its first call.
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#include <utility>

#include "tests/support/nvtx_recorder.h"

namespace xce::test {
namespace {

std::string& ranges() {
  static std::string text;
  return text;
}

int push(const char* name) {
  ranges() += std::string(name) + "( ";
  return 0;
}
int pop() {
  ranges() += ") ";
  return 0;
}

int inject(NvtxGetExportTableFunc_t table_of) {
  auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  if (size <= NVTX_CBID_CORE_RangePop) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

}  // namespace

std::string take_nvtx_ranges() {
  return std::exchange(ranges(), {});
}

}  // namespace xce::test

extern "C" NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr;
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = xce::test::inject;
