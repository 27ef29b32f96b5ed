// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011). Element i of stream s under a seed is a pure
// function of the three, so values do not depend on threads, order, sharding or which other arrays exist.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace xce {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

class Rng {
 public:
  Rng(uint64_t seed, std::string_view stream);  // the stream's name is hashed with FNV-1a

  uint64_t bits(uint64_t index) const;
  double uniform(uint64_t index) const;  // in (0, 1)
  double normal(uint64_t index) const;   // mean 0, variance 1 (Box-Muller)

 private:
  std::array<uint32_t, 4> draw(uint64_t index) const;
  std::array<uint32_t, 2> key_;
  uint64_t stream_;
};

}  // namespace xce
