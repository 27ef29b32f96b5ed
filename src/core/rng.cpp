#include "src/core/rng.h"

#include <cmath>
#include <numbers>

namespace xce {
namespace {

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}
double unit(uint32_t high, uint32_t low) {
  uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = static_cast<uint64_t>(0xD2511F53u) * c[0], b = static_cast<uint64_t>(0xCD9E8D57u) * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return c;
}

Rng::Rng(uint64_t seed, std::string_view stream)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, stream_(fnv1a(stream)) {}

std::array<uint32_t, 4> Rng::draw(uint64_t index) const {
  return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(stream_),
                 static_cast<uint32_t>(stream_ >> 32)},
                key_);
}
uint64_t Rng::bits(uint64_t index) const {
  auto r = draw(index);
  return static_cast<uint64_t>(r[0]) << 32 | r[1];
}
double Rng::uniform(uint64_t index) const {
  auto r = draw(index);
  return unit(r[0], r[1]);
}
double Rng::normal(uint64_t index) const {
  auto r = draw(index);
  return std::sqrt(-2 * std::log(unit(r[0], r[1]))) * std::cos(2 * std::numbers::pi * unit(r[2], r[3]));
}

}  // namespace xce
