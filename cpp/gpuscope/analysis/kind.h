// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpuscope::analysis {

/// A region, or the kind of work that store::Work numbers.
enum class Kind : uint16_t { Region = 0, Kernel = 1, Memcpy = 2, Memset = 3, Call = 4, Sync = 5, GraphLaunch = 6 };

/// Runs on the GPU, rather than on the thread that asked for it.
constexpr bool is_device(Kind kind) noexcept {
  return kind == Kind::Kernel || kind == Kind::Memcpy || kind == Kind::Memset || kind == Kind::GraphLaunch;
}

}  // namespace gpuscope::analysis
