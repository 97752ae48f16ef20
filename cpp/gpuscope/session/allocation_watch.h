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

/// Feeds the process's ledger of the driver's live allocations from the collector's callbacks, as long as it has users.
/// One in a process.
///
/// Any thread, without Python's GIL: see activity::Collector.
class AllocationWatch {
 public:
  explicit AllocationWatch(Vendor& vendor) : vendor_(vendor) {}
  AllocationWatch(const AllocationWatch&) = delete;
  AllocationWatch& operator=(const AllocationWatch&) = delete;

  /// One more user. Returns why allocations cannot be watched, "" when they are: then unwatch once. `stacks`:
  /// base::stack_source is called for each allocation, as long as there are users.
  std::string watch(bool stacks);
  /// One user less; the last one clears the ledger.
  void unwatch() noexcept;

  /// Gives CUPTI up to another client, until resume; `why` is what watch and state answer in the meantime.
  void pause(const std::string& why);
  /// Goes on, if there are still users. Returns why not, "" when allocations are watched again or there are no users.
  std::string resume();

  struct State {
    bool watching = false;
    bool from_start = false;  // no CUDA context was found when it began
    std::string why;          // why it is not watching, though it has users
    uint64_t gaps = 0;        // how often it was interrupted
    memory::Ledger::Counts counts;
    activity::Collector::Loaded loaded;  // since it began; services: of the process
    bool loads_whole_modules = true;
    std::vector<memory::Failure> failures;
  };
  State state();
  /// Nothing without users, and in the child of a fork.
  std::vector<memory::Allocation> live();

 private:
  std::string begin(bool stacks);
  bool in_forked_child() const noexcept;

  Vendor& vendor_;
  std::mutex mutex_;  // guards what follows; no callback takes it
  int users_ = 0;
  bool paused_ = false;
  std::string why_;
  bool from_start_ = false;
  uint64_t gaps_ = 0;
  activity::Collector::Loaded loaded_before_;
};

}  // namespace gpuscope::session
