// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpuscope/store/segments.h"
#include "gpuscope/store/store.h"

namespace gpuscope::session {

/// Where a recording is written as it grows, and how much of it stays there.
struct SpoolOptions {
  std::string folder;  // exists; empty: the recording stays in memory
  uint64_t segment_bytes = uint64_t{16} << 20;
  std::chrono::nanoseconds segment_time = std::chrono::seconds(8);
  uint64_t max_bytes = uint64_t{1} << 30;  // the oldest segments are deleted
  std::chrono::nanoseconds max_age{};      // likewise; 0: no limit
};

/// Writes files into a folder, on a thread of its own: a slow disk delays only that thread.
///
/// A file that cannot be written is deleted. A full disk first loses the oldest segments. begin, append, end and
/// failed: one thread at a time.
class SegmentFiles {
 public:
  /// Throws Error if the folder cannot be opened, NotAvailable if no thread can be started.
  explicit SegmentFiles(const SpoolOptions& options);
  /// Waits until everything is written, at most two seconds.
  ~SegmentFiles();
  SegmentFiles(const SegmentFiles&) = delete;
  SegmentFiles& operator=(const SegmentFiles&) = delete;

  /// Begins the next file.
  void begin();
  /// Whether there is room for more to write.
  bool has_room() const noexcept { return queued_bytes_.load(std::memory_order_relaxed) < kMostQueued; }
  void append(std::string bytes);
  /// Ends the file, which has so many rows.
  void end(uint64_t rows);
  /// Waits until everything is written, at most `limit`. False if that failed.
  bool wait(std::chrono::nanoseconds limit);
  /// Whether the current file could not be written. It is deleted then, and what follows is not written.
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire) == number_; }
  /// Rows of files that failed after their end, since the last call. Any thread.
  uint64_t take_lost_rows() noexcept;
  /// The error, empty for none. Any thread.
  std::string why() const;

 private:
  // Shared with the thread, which is left behind if it hangs in a call of the system.
  struct Work;
  static constexpr std::size_t kMostQueued = std::size_t{8} << 20;

  std::shared_ptr<Work> work_;
  uint64_t number_ = 0;
  std::atomic<std::size_t>& queued_bytes_;
  std::atomic<uint64_t>& failed_;
  std::thread thread_;
};

/// A window's rows on their way into segments. Only for the decode thread, except the constructor.
class Spool {
 public:
  /// Throws as SegmentFiles does.
  explicit Spool(const SpoolOptions& options);

  enum class State : uint8_t { Writing, SegmentIsFull, MemoryIsFull };
  /// Writes the new rows. SegmentIsFull: call end_segment, then drop the rows. MemoryIsFull: nothing could be written
  /// for long, so drop the rows, and call lose.
  State write(const store::Store& events, const store::Store& dictionaries, int64_t now_ns);
  /// Writes all that is left of the segment. The next call of `write` begins another. False if the segment could not
  /// be written, and the rows are to be kept.
  bool end_segment(const store::Store& events, const store::Store& dictionaries);
  /// At the end of the window: the same, and waits until the disk takes it, at most two seconds.
  bool finish(const store::Store& events, const store::Store& dictionaries);
  /// The rows of a segment that cannot be written are lost.
  void lose() { writer_.reset(); }
  /// Rows of files that failed after their end, since the last call.
  uint64_t take_lost_rows() noexcept { return files_.take_lost_rows(); }
  std::string why() const { return files_.why(); }

 private:
  bool begin_segment(int64_t now_ns);
  void hand_over();

  SpoolOptions options_;
  SegmentFiles files_;
  std::unique_ptr<store::SegmentWriter> writer_;
  std::string bytes_;  // not handed over yet
  uint64_t segment_bytes_ = 0;
  int64_t began_ns_ = 0;
  int64_t retry_ns_ = 0;  // no segment is begun before
};

}  // namespace gpuscope::session
