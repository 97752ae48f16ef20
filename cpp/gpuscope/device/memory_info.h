// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpuscope/device/nvml_device.h"
#include "gpuscope/driver/cuda.h"
#include "gpuscope/driver/nvml.h"

namespace gpuscope::device {

/// A GPU's memory now, in bytes. What is absent is named in `why`, with the reason.
struct MemoryInfo {
  std::optional<uint64_t> process;  // what NVML counts for a process on this GPU, its context and all
  std::optional<uint64_t> used;     // by all processes
  std::optional<uint64_t> free;     // total less used, and less what the driver keeps for itself
  std::optional<uint64_t> total;
  std::optional<std::string> name;
  bool context = false;  // the primary context of this process is active
  std::string why;
};

/// Reads a GPU's memory from NVML. Never throws for what a machine lacks, makes no context. Immutable; any thread.
class MemoryReader {
 public:
  MemoryReader(const driver::Nvml& nvml, const driver::Cuda& cuda, int ordinal);

  /// For the process of that number, as this container counts them.
  MemoryInfo read(unsigned pid) const;

 private:
  std::optional<uint64_t> read_process(unsigned pid, bool context, std::string& why) const;

  driver::Nvml nvml_;
  driver::Cuda cuda_;
  int ordinal_;
  FoundDevice found_;
};

/// A pool of stream-ordered memory (cuMemAllocAsync), in bytes.
struct MemoryPool {
  uint64_t handle = 0;
  uint64_t reserved = 0;
  uint64_t used = 0;
  uint64_t peak_reserved = 0;
  uint64_t peak_used = 0;
};

/// The default pool of a device and, where it is another, the current one. None where this process has no primary
/// context there. Any thread.
std::vector<MemoryPool> read_memory_pools(const driver::Cuda& cuda, int ordinal);

/// The devices whose primary context is active in this process. Throws NotAvailable without a driver or a device.
std::vector<int> devices_in_use(const driver::Cuda& cuda);

}  // namespace gpuscope::device
