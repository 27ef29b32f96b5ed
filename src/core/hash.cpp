#include "src/core/hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace xce {
namespace {

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87ull;
constexpr uint64_t kPrime2 = 0xc2b2ae3d27d4eb4full;
constexpr uint64_t kPrime3 = 0x165667b19e3779f9ull;
constexpr uint64_t kPrime4 = 0x85ebca77c2b2ae63ull;
constexpr uint64_t kPrime5 = 0x27d4eb2f165667c5ull;

static_assert(std::endian::native == std::endian::little, "loads below and our file formats are little-endian");

template <class T>
uint64_t load(const unsigned char* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

uint64_t round_lane(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}
uint64_t merge(uint64_t hash, uint64_t lane) {
  return (hash ^ round_lane(0, lane)) * kPrime1 + kPrime4;
}

void consume_stripe(std::array<uint64_t, 4>& lanes, const unsigned char* p) {
  for (int i = 0; i < 4; ++i) lanes[i] = round_lane(lanes[i], load<uint64_t>(p + 8 * i));
}

}  // namespace

Xxh64::Xxh64(uint64_t seed) : seed_(seed), lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1} {}

void Xxh64::update(const void* data, size_t bytes) {
  if (bytes == 0) return;
  const auto* p = static_cast<const unsigned char*>(data);
  total_bytes_ += bytes;
  if (tail_bytes_ > 0) {
    size_t take = std::min(bytes, kStripe - tail_bytes_);
    std::memcpy(tail_.data() + tail_bytes_, p, take);
    tail_bytes_ += take, p += take, bytes -= take;
    if (tail_bytes_ < kStripe) return;
    consume_stripe(lanes_, tail_.data());
    tail_bytes_ = 0;
  }
  std::array<uint64_t, 4> lanes = lanes_;  // kept in registers over the long loop
  for (; bytes >= kStripe; p += kStripe, bytes -= kStripe) consume_stripe(lanes, p);
  lanes_ = lanes;
  std::memcpy(tail_.data(), p, bytes);
  tail_bytes_ = bytes;
}

uint64_t Xxh64::digest() const {
  uint64_t hash = seed_ + kPrime5;
  if (total_bytes_ >= kStripe) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (uint64_t lane : lanes_) hash = merge(hash, lane);
  }
  hash += total_bytes_;
  const unsigned char* p = tail_.data();
  size_t left = tail_bytes_;
  for (; left >= 8; p += 8, left -= 8)
    hash = std::rotl(hash ^ round_lane(0, load<uint64_t>(p)), 27) * kPrime1 + kPrime4;
  for (; left >= 4; p += 4, left -= 4) hash = std::rotl(hash ^ (load<uint32_t>(p) * kPrime1), 23) * kPrime2 + kPrime3;
  for (; left > 0; ++p, --left) hash = std::rotl(hash ^ (*p * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

uint64_t xxh64(const void* data, size_t bytes, uint64_t seed) {
  Xxh64 hash(seed);
  hash.update(data, bytes);
  return hash.digest();
}

std::string hex64(uint64_t value) {
  std::string out(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) out[i] = "0123456789abcdef"[value & 15];
  return out;
}

}  // namespace xce
