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

/// An instance of a split GPU (MIG), from NVML. `why` gives the reason for each missing figure.
struct MigInstance {
  unsigned gpu_instance = 0;
  unsigned compute_instance = 0;
  std::string uuid;
  std::string name;
  std::optional<uint64_t> memory_used_bytes;
  std::optional<uint64_t> memory_total_bytes;
  std::optional<std::vector<driver::NvmlProcess>> processes;
  GpmState gpm;  // of its GPU instance, possibly shared by several compute instances
  Reasons why;
};

/// Reads the instances of one GPU repeatedly. Looks up their handles each time, so ten reads per second would be too
/// many. One thread.
class MigReader {
 public:
  MigReader(const driver::Nvml& nvml, driver::NvmlDevice device) : nvml_(nvml), device_(device) {}

  /// The current instances. None if NVML does not report them, with the reason in `why`.
  std::optional<std::vector<MigInstance>> read(int64_t now_ns, std::string& why);

 private:
  MigInstance read_instance(driver::NvmlDevice handle);

  driver::Nvml nvml_;
  driver::NvmlDevice device_;
  std::map<unsigned, std::string> uuids_;   // of the instances in counters_
  std::map<unsigned, GpmReader> counters_;  // by GPU instance
};

}  // namespace gpuscope::nvml
