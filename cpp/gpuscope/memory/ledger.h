// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpuscope/base/hooks.h"

namespace gpuscope::memory {

/// The name of a loaded file in results: "libcublasLt.so.13". Extension modules include their package:
/// "cupy_backends/runtime.cpython-312-x86_64-linux-gnu.so". The interpreter is "python". "" for files that pass calls
/// on: CUDA's driver and runtime, the C and C++ runtimes, foreign-function interfaces and gpuscope itself.
std::string library_name(std::string_view path);

/// The libraries that call the driver, as small numbers. Any thread.
///
/// Called inside the driver, possibly with its locks held. So files are found with dl_iterate_phdr, not with dladdr.
/// dladdr takes the lock under which dlopen runs constructors, and a constructor may wait for the driver.
/// dl_iterate_phdr only takes the lock of the file list, under which no thread waits.
class NativeLibraries {
 public:
  static NativeLibraries& process();

  /// The nearest file with a name on the calling thread's native stack. 0 if there is none within 32 frames.
  uint32_t caller() noexcept;
  /// By number. The first is "".
  std::vector<std::string> names();

 private:
  friend class Ledger;  // locks the mutex for a fork
  struct Walk;

  uint32_t of_address(uint64_t address) noexcept;
  uint32_t intern(const std::string& name);
  void forget_unloaded() noexcept;

  static constexpr std::size_t kSlots = 4096;  // a program calls the driver from some hundred places
  static constexpr unsigned kNumberBits = 16;  // below the address, whose upper 16 bits are zero

  std::array<std::atomic<uint64_t>, kSlots> known_{};  // address and number in one word, 0 for none
  std::atomic<uint64_t> unloads_{0};                   // of the process, when known_ was valid
  std::mutex mutex_;                                   // guards names_
  std::vector<std::string> names_ = std::vector<std::string>(1);
};

/// Who asked for memory.
struct Caller {
  uint32_t library = 0;  // a NativeLibraries number
  uint32_t stack = 0;    // a base::Stacks id
  uint32_t region = 0;   // as base::current_region returns it
  uint64_t thread = 0;   // as the system counts
};

/// An allocation of the driver.
struct Allocation {
  uint64_t address = 0;  // 0 for arrays and unmapped virtual memory
  uint64_t bytes = 0;
  uint64_t pool = 0;
  uint64_t context = 0;
  int64_t time_ns = 0;
  int32_t device = base::kUnknownDevice;
  base::AllocationKind kind = base::AllocationKind::Device;
  Caller caller;
};

/// An allocation that the driver refused.
struct Failure {
  uint64_t bytes = 0;
  uint64_t live_bytes = 0;  // of the same device at that moment
  int64_t time_ns = 0;
  int32_t device = base::kUnknownDevice;
  int32_t result = 0;  // CUresult
  base::AllocationKind kind = base::AllocationKind::Device;
  Caller caller;
};

/// The driver's live allocations in this process since begin. Any thread: one mutex, never held during a call into CUDA
/// or CUPTI, as allocations run with the driver's locks held.
class Ledger {
 public:
  static constexpr std::size_t kFailures = 16;

  /// Fork-safe: in the child it is empty, and base::allocation_sink is unset.
  static Ledger& process();
  /// Records in the process's ledger: a base::AllocationSink.
  static void on_allocation(const base::DriverAllocation& event) noexcept { process().record(event); }

  /// Starts empty. `stacks`: call base::current_stack for each allocation.
  void begin(bool stacks);
  void want_stacks() noexcept { stacks_.store(true, std::memory_order_relaxed); }
  /// Clears the live allocations. Failures stay readable.
  void forget() noexcept;

  /// Never throws. Events without memory to store them count as missed.
  void record(const base::DriverAllocation& event) noexcept;

  std::vector<Allocation> live();
  std::vector<Failure> failures();  // oldest first, the last kFailures
  struct Counts {
    uint64_t unknown_releases = 0;  // of memory allocated before begin, or unseen
    uint64_t missed = 0;
  };
  Counts counts();

 private:
  struct Entry {
    Allocation allocation;
    uint64_t taken_ticks = 0;
    uint32_t holders = 1;   // of virtual memory: it lives while it has holders
    uint32_t mappings = 0;  // or mappings
  };
  struct Mapping {
    uint64_t handle;
    uint64_t mapped_ticks;
  };
  using Entries = std::unordered_map<uint64_t, Entry>;

  Caller find_caller() const noexcept;
  // With the mutex held.
  void take(const base::DriverAllocation& event, const Caller& caller);
  void refuse(const base::DriverAllocation& event, const Caller& caller);
  void release(const base::DriverAllocation& event);
  void map(const base::DriverAllocation& event);
  void unmap(const base::DriverAllocation& event);
  void forget_context(uint64_t context);
  void clear() noexcept;

  std::mutex mutex_;
  Entries by_address_;
  Entries virtual_;  // by handle
  Entries arrays_;   // by handle
  std::map<uint64_t, Mapping> mappings_;
  std::deque<Failure> failures_;
  uint64_t unknown_releases_ = 0;
  std::atomic<uint64_t> missed_{0};
  std::atomic<bool> stacks_{false};
};

}  // namespace gpuscope::memory
