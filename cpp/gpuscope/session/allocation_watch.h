// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "gpuscope/base/hooks.h"
#include "gpuscope/memory/ledger.h"
#include "gpuscope/session/recorder.h"

namespace gpuscope::session {

/// Feeds the process's ledger of live driver allocations from the collector's callbacks, while it has users. One per
/// process.
///
/// Any thread, without Python's GIL: see activity::Collector.
class AllocationWatch {
 public:
  explicit AllocationWatch(Vendor& vendor) : vendor_(vendor) {}
  AllocationWatch(const AllocationWatch&) = delete;
  AllocationWatch& operator=(const AllocationWatch&) = delete;

  /// Adds a user. Returns why allocations cannot be watched. "" means success: then unwatch once. `stacks`: call
  /// base::stack_source for each allocation, while there are users.
  std::string watch(bool stacks);
  /// Removes a user. The last one clears the ledger.
  void unwatch() noexcept;

  /// Releases CUPTI for another client, until resume. `why`: the answer of watch and state meanwhile.
  void pause(const std::string& why);
  /// Continues, if there are still users. Returns why it cannot, "" on success or without users.
  std::string resume();

  struct State {
    bool watching = false;
    bool from_start = false;  // no CUDA context existed when it began
    std::string why;          // why it has users but does not watch
    uint64_t gaps = 0;        // number of interruptions
    memory::Ledger::Counts counts;
    activity::Collector::Loaded loaded;  // since it began; services: of the process
    bool loads_whole_modules = true;
    std::vector<memory::Failure> failures;
  };
  State state();
  /// Empty without users, and in a forked child.
  std::vector<memory::Allocation> live();

 private:
  std::string begin(bool stacks);
  bool in_forked_child() const noexcept;

  Vendor& vendor_;
  std::mutex mutex_;  // guards the members below; no callback takes it
  int users_ = 0;
  bool paused_ = false;
  std::string why_;
  bool from_start_ = false;
  uint64_t gaps_ = 0;
  activity::Collector::Loaded loaded_before_;
};

}  // namespace gpuscope::session
