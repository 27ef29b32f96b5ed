#include "src/train/plan_cache.h"

#include <cstdlib>

#include "kernels/base/check.h"
#include "src/core/file.h"
#include "src/core/log.h"

namespace xce {
namespace {

constexpr const char* kName = "gemm_plans.txt";

void load(Device& device, const std::filesystem::path& path) {
  if (!path_exists(path)) return;
  const std::string why = device.load_plans(read_text_file(path), path.string());
  if (!why.empty()) log().info("{}: not used: {}", path.string(), why);
}

}  // namespace

std::filesystem::path user_cache_directory() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return std::filesystem::path(cache) / "xce";
  if (const char* home = std::getenv("HOME"); home && *home) return std::filesystem::path(home) / ".cache" / "xce";
  return {};
}

void load_plans(Device& device, const std::filesystem::path& run_directory) {
  if (!device.asynchronous()) return;
  if (std::filesystem::path cache = user_cache_directory(); !cache.empty()) {
    try {
      load(device, cache / kName);
    } catch (const Error& e) {
      log().warn("{}: not used: {}", (cache / kName).string(), e.what());
    }
  }
  load(device, run_directory / kName);
}

void save_plans(Device& device, const std::filesystem::path& run_directory) {
  const std::string text = device.plans_text();
  if (text.empty()) return;
  write_text_file(run_directory / kName, text);
  const std::filesystem::path cache = user_cache_directory();
  if (cache.empty()) return;
  try {
    make_directories(cache);
    write_text_file(cache / kName, text);
  } catch (const Error& e) {
    log().warn("the choices of algorithms are not kept for other runs: {}", e.what());
  }
}

}  // namespace xce
