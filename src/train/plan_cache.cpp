#include "src/train/plan_cache.h"

#include <cctype>
#include <cstdlib>

#include "kernels/base/check.h"
#include "src/core/file.h"
#include "src/core/log.h"

namespace xce {
namespace {

constexpr const char* kName = "gemm_plans.txt";

// Why the file was passed over, empty if it was not or is not there.
std::string load(Device& device, const std::filesystem::path& path) {
  return path_exists(path) ? device.load_plans(read_text_file(path), path.string()) : "";
}

// The cache's file for this kind of device.
std::filesystem::path cache_file(const Device& device) {
  std::string name = device.describe();
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return user_cache_directory() / (name + "." + kName);
}

}  // namespace

std::filesystem::path user_cache_directory() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return std::filesystem::path(cache) / "xce";
  if (const char* home = std::getenv("HOME"); home && *home) return std::filesystem::path(home) / ".cache" / "xce";
  return {};
}

void load_plans(Device& device, const std::filesystem::path& run_directory, UserCache cache) {
  if (!device.asynchronous()) return;
  if (cache == UserCache::kUse && !user_cache_directory().empty()) {
    try {
      if (std::string why = load(device, cache_file(device)); !why.empty()) log().info("not used: {}", why);
    } catch (const Error& e) {
      log().warn("not used: {}", e.what());
    }
  }
  if (std::string why = load(device, run_directory / kName); !why.empty())
    log().warn("the run's algorithms are chosen anew, so that it may round in another way from here on: {}", why);
}

void save_plans(Device& device, const std::filesystem::path& run_directory, UserCache cache) {
  const std::string text = device.plans_text();
  if (text.empty()) return;
  write_text_file(run_directory / kName, text);
  if (cache == UserCache::kLeave || user_cache_directory().empty()) return;
  try {
    make_directories(user_cache_directory());
    write_text_file(cache_file(device), device.raced_plans_text());
  } catch (const Error& e) {
    log().warn("the choices of algorithms are not kept for other runs: {}", e.what());
  }
}

}  // namespace xce
