// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "gpuscope/analysis/queue_reader.h"
#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// Changes before a replay. Unknown rows have no effect. The factors of a repeated row multiply.
struct QueueEdits {
  std::span<const int64_t> unwaited;       // rows of `api` that no longer wait for the GPU
  std::span<const int64_t> removed_calls;  // rows of `api` to remove, with their launches
  std::span<const int64_t> host_spans;     // triples of thread, start, end in ns: time to remove
  std::span<const int64_t> kernels;        // rows of `kernel`
  std::span<const double> kernel_factors;  // remaining share of each duration; 0 removes it
  std::span<const int64_t> copies;         // rows of `memcpy`
  std::span<const double> copy_factors;
};

/// The cost of recording, in ns of host time per event.
struct RecordingCosts {
  int64_t launch = 0;
  int64_t copy = 0;
  int64_t call = 0;  // that launches nothing
  int64_t region = 0;
};

/// A model of a recording: host threads, streams and their waits. A replay computes how long the program would take.
///
/// A thread is a sequence of calls and pieces of fixed length between them. A stream runs its work in launch order.
/// Work begins after its call, the previous work on its stream, and work on other streams that was seen to hold it
/// back. A waiting call ends when the work has ended. A launch into a full queue ends when there is room. A thread that
/// was idle while another one made calls waited for it.
///
/// Three latencies are learned for each kind of call and work:
/// - from a launch to its start on an idle stream,
/// - from one work to the next,
/// - from the end of work to the end of the waiting call.
class QueueModel {
 public:
  /// Ignores references to missing rows, as in damaged files. Throws std::bad_alloc.
  explicit QueueModel(const store::Store& store) : queues_(read_queues(store)) {}

  /// Removes the cost of recording from later replays. The cost of an event is removed from its call, and the cost of a
  /// region from its thread's next call and the time before it.
  void take_out(const store::Store& store, const RecordingCosts& costs);

  /// For each moment (sorted), when the program had finished everything before it. The thread, or every thread without
  /// `thread`, had reached it, and earlier launches were done. In ns after the first call.
  std::vector<int64_t> recorded(std::span<const int64_t> moments, std::optional<uint16_t> thread) const;
  /// The same for a replay with edits from the first to the last moment. It stops early when all times are as
  /// recorded.
  std::vector<int64_t> replayed(std::span<const int64_t> moments, std::optional<uint16_t> thread,
                                const QueueEdits& edits) const;

  std::size_t calls() const noexcept { return queues_.calls.size(); }
  std::size_t works() const noexcept { return queues_.works.size(); }
  /// Work without a recorded call. The replay excludes it.
  std::size_t unlaunched() const noexcept { return queues_.unlaunched; }

 private:
  template <class T>
  using Rows = Queues::Rows<T>;
  using Call = Queues::Call;
  using Work = Queues::Work;
  static constexpr uint32_t kNone = Queues::kNone;

  /// The replayed part: these calls and all their launches. The rest is as recorded.
  struct Window {
    std::size_t first_call;
    std::size_t last_call;
    std::size_t first_work;
    std::size_t last_work;
  };
  struct Times;
  class Saved;
  struct Changes;

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

  Queues queues_;
  Rows<float> scales_;  // remaining share of each call and the piece before it without recording; empty: all
};

}  // namespace gpuscope::analysis
