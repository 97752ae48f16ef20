// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace gpuscope::store {

// Durations binned by size, 16 bins an octave: a quantile read from the bins is within 1/32 (3.1 %) of the true one.
inline constexpr uint32_t kBinBits = 4;

/// The bin of a duration in ns; negative durations count as 0. Bins below 16 hold one ns each.
constexpr uint32_t histogram_bin(int64_t duration_ns) noexcept {
  const auto value = static_cast<uint64_t>(duration_ns > 0 ? duration_ns : 0);
  if (value < (1U << kBinBits)) {
    return static_cast<uint32_t>(value);
  }
  const auto octave = static_cast<uint32_t>(std::bit_width(value)) - 1 - kBinBits;
  return ((octave + 1) << kBinBits) + static_cast<uint32_t>((value >> octave) - (1U << kBinBits));
}

/// The middle of a bin, in ns.
constexpr int64_t histogram_middle(uint32_t bin) noexcept {
  if (bin < (1U << kBinBits)) {
    return bin;
  }
  const uint32_t octave = (bin >> kBinBits) - 1;
  const int64_t low = static_cast<int64_t>((bin & ((1U << kBinBits) - 1)) + (1U << kBinBits)) << octave;
  return low + (int64_t{1} << octave) / 2;
}

}  // namespace gpuscope::store
