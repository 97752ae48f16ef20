// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpuscope/nvml/sampler.h"
#include "gpuscope/store/schema.h"

namespace gpuscope::nvml {

/// Samples the GPUs of this process in windows, for a recording. A GPU is read once the process has its primary
/// context; CUDA is not initialised for it.
class RecordingSampler : public Sampler {
 public:
  struct Rows {
    std::vector<store::DeviceSamples::Row> samples;
    std::vector<store::DeviceCounters::Row> counters;
    std::size_t size() const noexcept { return samples.size() + counters.size(); }
  };
  /// Why columns of a device are unknown.
  using Why = std::map<std::pair<unsigned, std::string>, std::string>;

  RecordingSampler(const driver::Nvml& nvml, const driver::Cuda& cuda, std::chrono::nanoseconds interval);

  /// Begins a window: all figures are read at once.
  void begin();
  /// Reads all figures a last time and pauses. Waits for that, up to `limit`.
  void finish(std::chrono::nanoseconds limit = std::chrono::milliseconds(100));
  /// The rows since the last call.
  Rows take();
  /// The cost since the last call.
  SamplingCost take_cost();
  Why why() const;
  /// Why no GPU is read; "" if one is.
  std::string why_none() const;

 private:
  class Tables;
  explicit RecordingSampler(std::shared_ptr<Tables> tables);

  std::shared_ptr<Tables> tables_;
};

}  // namespace gpuscope::nvml
