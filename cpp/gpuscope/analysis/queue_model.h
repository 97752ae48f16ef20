// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/base/pages.h"
#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// What is changed before a recording is replayed. Rows that it does not have change nothing; of a row that stands more
/// than once the factors are multiplied.
struct QueueEdits {
  std::span<const int64_t> unwaited;       // rows of `api` that no longer wait for the GPU
  std::span<const int64_t> removed_calls;  // rows of `api` that are gone, with what they launched
  std::span<const int64_t> host_spans;     // thread, start, end in ns, and so on: time that is no longer spent
  std::span<const int64_t> kernels;        // rows of `kernel`
  std::span<const double> kernel_factors;  // what remains of the duration of each; 0: gone
  std::span<const int64_t> copies;         // rows of `memcpy`
  std::span<const double> copy_factors;
};

/// What recording a program costs it, in ns of the host for each event.
struct RecordingCosts {
  int64_t launch = 0;
  int64_t copy = 0;
  int64_t call = 0;  // that launches nothing
  int64_t region = 0;
};

/// A recording as host threads, streams and what they wait for; replayed, it says how long the program had taken.
///
/// A thread is a sequence of pieces of fixed length and calls; a stream begins its work in the order of the launches.
/// Work begins after its call, the work before it on its stream, and what was seen to hold it back on another. A call
/// that waits ends when that work has ended, and a launch into a full queue when there is room again. Where a thread
/// did nothing while another called, it waited for that one.
///
/// How long it takes from a launch to its start on an idle stream, from one work to the next, and from the end of work
/// to that of the call that waits for it is learned from the recording: one number for each kind of call and work.
class QueueModel {
 public:
  /// What is not in a recording, as a damaged file refers to, is left out. Throws std::bad_alloc.
  explicit QueueModel(const store::Store& store);

  /// From now on it runs again as if nothing had recorded it: what that cost is taken from the call of each event, or,
  /// of a region, from the next call of its thread and the time before that.
  void take_out(const store::Store& store, const RecordingCosts& costs);

  /// When the program was through with what it did before each of these moments, in order: when a thread (every one
  /// without) came by and the work was done that had been launched by then. In ns after the first call.
  std::vector<int64_t> recorded(std::span<const int64_t> moments, std::optional<uint16_t> thread) const;
  /// The same when it runs again from the first of these moments on, until when all is as it was recorded, to the last.
  std::vector<int64_t> replayed(std::span<const int64_t> moments, std::optional<uint16_t> thread,
                                const QueueEdits& edits) const;

  std::size_t calls() const noexcept { return calls_.size(); }
  std::size_t works() const noexcept { return works_.size(); }
  /// Work whose call was not recorded; the replay is without it.
  std::size_t unlaunched() const noexcept { return unlaunched_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  template <class T>
  using Rows = std::vector<T, base::ScratchAllocator<T>>;

  // Times are ns after base_. Calls are in the order of their start, work in that of its calls.
  struct Call {
    int64_t start;
    int64_t end;
    int64_t piece;  // from the end of `after` to its start
    int64_t own;    // how long it takes without waiting
    uint32_t row;
    uint32_t after = kNone;       // the call that it follows, on its thread or on that which its thread waited for
    uint32_t first_work = 0;      // up to that of the next call
    uint32_t wait = kNone;        // the work that it waits for
    uint32_t queue_wait = kNone;  // the launch, as work, that must have begun before it finds room
    int32_t wake = 0;
    int32_t queue_wake = 0;
    uint16_t thread;
    uint16_t wait_device = 0;  // 1 + the number of the device of which it waits for all work
  };
  struct Work {
    int64_t start;
    int64_t end;
    uint32_t call;
    uint32_t after = kNone;   // begins `gap` after the end of this
    uint32_t beside = kNone;  // begins as long after the beginning of this as it was recorded
    uint32_t held = kNone;    // begins after the end of this one on another stream
    int32_t latency = 0;      // from the end of its call, or from its start
    int32_t gap = 0;
    uint16_t device;
    bool from_start = false;
  };
  /// What runs again: these calls and all that they launch. The rest is as it was recorded.
  struct Window {
    std::size_t first_call;
    std::size_t last_call;
    std::size_t first_work;
    std::size_t last_work;
  };
  struct Times;
  class Saved;
  struct Changes;
  friend class QueueReader;

  static constexpr int64_t kFar = int64_t{1} << 60;  // no time of a damaged recording is further from the first call

  int64_t after_base(int64_t time_ns) const noexcept;
  std::size_t works_before(std::size_t call) const noexcept {
    return call < calls_.size() ? calls_[call].first_work : works_.size();
  }
  std::vector<std::size_t> calls_before(std::span<const int64_t> moments) const;
  int64_t scaled(std::size_t call, int64_t time) const noexcept {
    return scales_.empty() ? time : static_cast<int64_t>(static_cast<double>(time) * scales_[call]);
  }
  std::size_t calls_until(int64_t moment, const std::vector<uint32_t>* of_thread) const;
  const std::vector<uint32_t>* calls_of(std::optional<uint16_t> thread) const;
  Window window(const std::vector<std::size_t>& before, std::optional<uint16_t> thread) const;
  std::pair<int64_t, int64_t> asked_for(const Window& window, std::span<const int64_t> moments,
                                        std::optional<uint16_t> thread) const;
  void run(Times& times, const std::vector<std::size_t>& before, const Changes& changes) const;
  std::vector<int64_t> passed(std::span<const int64_t> moments, std::optional<uint16_t> thread, const Times& times,
                              const Changes* changes) const;

  int64_t base_ = 0;
  std::size_t unlaunched_ = 0;
  std::size_t devices_ = 0;
  int32_t held_gap_ = 0;
  Rows<Call> calls_;
  Rows<Work> works_;
  Rows<float> scales_;  // what remains of each call and the piece before it without a recording; empty: all
  Rows<int64_t> done_;  // before each call, and after the last: when all was done that was launched
  std::unordered_map<uint16_t, std::vector<uint32_t>> calls_of_thread_;
  Rows<uint32_t> call_of_row_;
  Rows<uint32_t> work_of_kernel_;
  Rows<uint32_t> work_of_copy_;
};

}  // namespace gpuscope::analysis
