// 64-bit hashes. Xxh64 is the checksum of our files (Yann Collet's XXH64, the published specification, so `xxhsum -H64`
// gives the same figure); mix64 turns counters into independent-looking bits for everything that is sampled by
// position.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace xce {

// XXH64 of a stream that arrives in pieces.
class Xxh64 {
 public:
  explicit Xxh64(uint64_t seed = 0);
  void update(const void* data, size_t bytes);
  uint64_t digest() const;  // of all bytes so far; update may go on afterwards

 private:
  static constexpr size_t kStripe = 32;
  uint64_t seed_;
  std::array<uint64_t, 4> lanes_;
  std::array<unsigned char, kStripe> tail_{};
  size_t tail_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

uint64_t xxh64(const void* data, size_t bytes, uint64_t seed = 0);
std::string hex64(uint64_t value);  // 16 lower-case digits

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection whose output bits each depend on every input bit.
inline uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
// A hash of the ordered pair; chain it for longer keys: mix64(mix64(seed, stream), index).
inline uint64_t mix64(uint64_t key, uint64_t x) {
  return mix64(mix64(key) ^ (x * 0xd6e8feb86659fd93ull));
}

// x / 2^64 * n rounded down: a number in [0, n) from uniform bits; the bias is below n / 2^64.
inline uint64_t scale_to(uint64_t x, uint64_t n) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(x) * n) >> 64);
}
// Uniform in [0, 1), from the upper 53 bits.
inline double unit_interval(uint64_t x) {
  return static_cast<double>(x >> 11) * 0x1p-53;
}

}  // namespace xce
