// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpuscope/driver/libraries.h"
#include "gpuscope/nvml/gpm.h"

namespace gpuscope::nvml {

/// A part of a GPU that is split (MIG): what NVML tells of it. What is absent is named in `why`, with the reason.
struct MigInstance {
  unsigned gpu_instance = 0;
  unsigned compute_instance = 0;
  std::string uuid;
  std::string name;
  std::optional<uint64_t> memory_used_bytes;
  std::optional<uint64_t> memory_total_bytes;
  std::optional<std::vector<driver::NvmlProcess>> processes;
  GpmState gpm;  // of its GPU instance, which several compute instances may share
  Reasons why;
};

/// Reads the instances of one GPU, again and again: their handles are looked up each time, so that ten times a second
/// would be too often. One thread.
class MigReader {
 public:
  MigReader(const driver::Nvml& nvml, driver::NvmlDevice device) : nvml_(nvml), device_(device) {}

  /// The instances that there are now; none, and `why`, where NVML does not tell.
  std::optional<std::vector<MigInstance>> read(int64_t now_ns, std::string& why);

 private:
  MigInstance read_instance(driver::NvmlDevice handle);

  driver::Nvml nvml_;
  driver::NvmlDevice device_;
  std::map<unsigned, std::string> uuids_;   // of the instances that the counters are of
  std::map<unsigned, GpmReader> counters_;  // by GPU instance
};

}  // namespace gpuscope::nvml
