// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// A region, or the kind of work that store::Work numbers.
enum class Kind : uint16_t { Region = 0, Kernel = 1, Memcpy = 2, Memset = 3, Call = 4, Sync = 5, GraphLaunch = 6 };

/// Runs on the GPU, rather than on the thread that asked for it.
constexpr bool is_device(Kind kind) noexcept {
  return kind == Kind::Kernel || kind == Kind::Memcpy || kind == Kind::Memset || kind == Kind::GraphLaunch;
}

/// Hands out numbers for the names that people read; each kernel is demangled once. One thread.
class DisplayNames {
 public:
  explicit DisplayNames(const store::Store& store) : store_(store) {}

  uint32_t intern(std::string_view text);

  uint32_t of_string(uint32_t id);
  /// Regions of one name and different kinds have different numbers. The steps of a schedule share one name, as in
  /// torch.profiler: "ProfilerStep*".
  uint32_t of_region(uint32_t id, uint32_t kind);
  uint32_t of_kernel(uint32_t id);
  std::vector<std::string> take() { return std::move(texts_); }

 private:
  const store::Store& store_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::unordered_map<std::string, uint32_t> regions_;
  std::unordered_map<uint32_t, uint32_t> kernels_;
};

/// The name of one row of the event table that `kind` is about; kernels are demangled.
std::string event_name(const store::Store& store, Kind kind, std::size_t row);

}  // namespace gpuscope::analysis
