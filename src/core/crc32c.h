// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), the checksum of TFRecord files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace xce {

namespace internal {
constexpr std::array<uint32_t, 256> crc32c_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}
}  // namespace internal

inline uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = internal::crc32c_table();
  uint32_t crc = 0xFFFFFFFFu;
  for (unsigned char byte : bytes) crc = kTable[(crc ^ byte) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

}  // namespace xce
