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

/// What a loaded file is called in results: "libcublasLt.so.13",
/// "cupy_backends/runtime.cpython-312-x86_64-linux-gnu.so" for an extension module, with the package that it came in,
/// "python" for the interpreter. "" for what is not the caller but passes a call on: CUDA's driver and runtime,
/// the C and C++ runtimes, foreign-function interfaces and gpuscope itself.
std::string library_name(std::string_view path);

/// The libraries that call the driver, as small numbers. Any thread.
///
/// Called inside the driver, whose locks the thread may hold. So a file is looked up with dl_iterate_phdr, not with
/// dladdr: dladdr takes the lock under which dlopen runs constructors, and a constructor may be waiting for the driver;
/// dl_iterate_phdr takes the one of the list of files, under which nobody waits for anything.
class NativeLibraries {
 public:
  static NativeLibraries& process();

  /// The nearest file on the calling thread's native stack that has a name; 0 when there is none within 32 frames.
  uint32_t caller() noexcept;
  /// By number. The first is "".
  std::vector<std::string> names();

 private:
  friend class Ledger;  // holds the mutex at a fork, as its own
  struct Walk;

  uint32_t of_address(uint64_t address) noexcept;
  uint32_t intern(const std::string& name);
  void forget_unloaded() noexcept;

  static constexpr std::size_t kSlots = 4096;  // a program has some hundred ways to call the driver
  static constexpr unsigned kNumberBits = 16;  // below the address, of which the upper 16 bits are zero

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

/// Memory that the driver has given out.
struct Allocation {
  uint64_t address = 0;  // 0 for arrays, and for virtual memory that is not mapped
  uint64_t bytes = 0;
  uint64_t pool = 0;
  uint64_t context = 0;
  int64_t time_ns = 0;
  int32_t device = base::kUnknownDevice;
  base::AllocationKind kind = base::AllocationKind::Device;
  Caller caller;
};

/// Memory that the driver refused.
struct Failure {
  uint64_t bytes = 0;
  uint64_t live_bytes = 0;  // of the same device at that moment
  int64_t time_ns = 0;
  int32_t device = base::kUnknownDevice;
  int32_t result = 0;  // CUresult
  base::AllocationKind kind = base::AllocationKind::Device;
  Caller caller;
};

/// What the driver has given out in this process and not taken back, since begin. Any thread: one mutex, held for no
/// call into CUDA or CUPTI, as allocations run with the driver's locks held.
class Ledger {
 public:
  static constexpr std::size_t kFailures = 16;

  /// Forks are safe: the child's is empty, and base::allocation_sink is unset there.
  static Ledger& process();
  /// Records in the process's ledger: a base::AllocationSink.
  static void on_allocation(const base::DriverAllocation& event) noexcept { process().record(event); }

  /// Starts with nothing. `stacks`: base::current_stack is asked at every allocation.
  void begin(bool stacks);
  void want_stacks() noexcept { stacks_.store(true, std::memory_order_relaxed); }
  /// Forgets all that is live; failures remain readable.
  void forget() noexcept;

  /// Never throws; what there was no memory to note counts as missed.
  void record(const base::DriverAllocation& event) noexcept;

  std::vector<Allocation> live();
  std::vector<Failure> failures();  // oldest first, the last kFailures
  struct Counts {
    uint64_t unknown_releases = 0;  // of memory that was taken before begin, or unseen
    uint64_t missed = 0;
  };
  Counts counts();

 private:
  struct Entry {
    Allocation allocation;
    uint64_t taken_ticks = 0;
    uint32_t holders = 1;   // of virtual memory: it lives until nobody holds it
    uint32_t mappings = 0;  // nor maps it
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
