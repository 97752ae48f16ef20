// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::nvml {

// X(name, metric of NVML, its unit in ours). Means between two samples, over the whole GPU and all its users. NVML's
// percents are ratios here, and its MiB bytes. "Received" bytes go to the GPU.
#define GPUSCOPE_GPM_FIGURES(X)                 \
  X(sm_active_ratio, 2, 0.01)                   \
  X(sm_occupancy_ratio, 3, 0.01)                \
  X(tensor_active_ratio, 5, 0.01)               \
  X(fp64_active_ratio, 11, 0.01)                \
  X(fp32_active_ratio, 12, 0.01)                \
  X(fp16_active_ratio, 13, 0.01)                \
  X(integer_active_ratio, 4, 0.01)              \
  X(dram_bandwidth_ratio, 10, 0.01)             \
  X(pcie_received_bytes_per_s, 21, 1048576.0)   \
  X(pcie_sent_bytes_per_s, 20, 1048576.0)       \
  X(nvlink_received_bytes_per_s, 60, 1048576.0) \
  X(nvlink_sent_bytes_per_s, 61, 1048576.0)

/// The reasons for missing figures by name. Lookups make no string.
using Reasons = std::map<std::string, std::string, std::less<>>;

/// The latest readings of a GPU's counters. `why` gives the reason for each missing figure.
struct GpmState {
#define GPUSCOPE_GPM_MEMBER(figure, id, unit) std::optional<double> figure;
  GPUSCOPE_GPM_FIGURES(GPUSCOPE_GPM_MEMBER)
#undef GPUSCOPE_GPM_MEMBER
  Reasons why;
};

struct FreeGpmSample {
  decltype(driver::Nvml::gpm_sample_free) free = nullptr;
  void operator()(driver::nvmlGpmSample_st* sample) const noexcept { free(sample); }
};
struct GpmSample {
  std::unique_ptr<driver::nvmlGpmSample_st, FreeGpmSample> data;
  int64_t ns = 0;  // time of the sample, 0 for none
};

/// NVML's performance counters (GPM, Hopper and later) of one GPU: means since a sample that is at least 0.1 s old. One
/// thread.
class GpmReader {
 public:
  /// Checks whether the GPU has them. `instance`: the number of a GPU instance, if the GPU is split.
  GpmReader(const driver::Nvml& nvml, driver::NvmlDevice device, std::optional<unsigned> instance = std::nullopt);

  /// Reads them. A call soon after another returns the same values. `is_busy`: NVML's utilization is above 0.
  const GpmState& read(int64_t now_ns, bool is_busy);
  /// Whether NVML permanently refuses.
  bool is_refused() const noexcept { return is_refused_; }

 private:
  void refuse(const std::string& reason);
  int take(driver::NvmlGpmSample sample) const;
  /// The newest sample that is old enough to be compared with the latest. Null if there is none.
  const GpmSample* before(int64_t now_ns) const;
  void evaluate(const GpmSample& from, const GpmSample& to);
  void distrust_zeros(int64_t now_ns, bool is_busy);

  driver::Nvml nvml_;
  driver::NvmlDevice device_ = nullptr;
  std::optional<unsigned> instance_;
  bool is_refused_ = false;
  std::array<GpmSample, 4> samples_;
  std::size_t newest_ = 0;
  std::unique_ptr<driver::NvmlGpmMetrics> metrics_;  // 13 KB
  std::optional<int64_t> zero_since_ns_;             // the counters show no work, while utilization does
  GpmState state_;
};

}  // namespace gpuscope::nvml
