// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpuscope/base/file.h"
#include "gpuscope/store/gscope.h"
#include "gpuscope/store/store.h"

// A recording on disk as a folder of segments: .gscope files that were written while the program ran, in the order of
// their names. Each opens alone. A row that is open at the end of a segment (a region, a driver call) is also the first
// of its kind in the next one.

namespace gpuscope::store {

inline constexpr std::string_view kSegmentPrefix = "segment-";
inline constexpr std::string_view kSegmentSuffix = ".gscope";

/// The number of the last segment, written when the recording has ended.
inline constexpr uint64_t kEndSegment = 99'999'999;

/// "segment-00000012.gscope".
std::string segment_name(uint64_t number);

/// Writes a store as a .gscope file while the store grows. One thread.
class SegmentWriter {
 public:
  /// Passes each block to `write`, whose exceptions pass through.
  explicit SegmentWriter(base::Write write);

  /// Writes the rows since the last call, and again those of the newest that changed. Event rows are those of `events`,
  /// dictionaries, strings and facts those of `dictionaries`.
  void write(const Store& events, const Store& dictionaries);
  /// The same, and again all rows that changed. Ends the file.
  void end(const Store& events, const Store& dictionaries);
  /// Event rows written so far.
  uint64_t event_rows() const noexcept { return event_rows_; }

 private:
  struct Table {
    std::size_t rows = 0;                  // written
    std::vector<uint32_t> checksums;       // of these rows, by chunk
    std::vector<std::size_t> open_chunks;  // with rows that were open when written, in order
  };
  template <class T>
  void write_table(const T& table, bool all);
  void write_all(const Store& events, const Store& dictionaries, bool all);

  base::Write write_;
  uint32_t blocks_ = 0;
  uint32_t strings_ = 0;  // written
  uint64_t event_rows_ = 0;
  std::array<Table, kTargets> tables_;
};

/// The segments of a folder as one recording, damaged ones as far as they are whole. Rows that are in two segments are
/// joined. What is missing is described in the info: `file.segments`, their number; `file.first_segment`, the number of
/// the first, as older ones may have been deleted; `file.unfinished` if the recording has no end;
/// `file.unread_segments`, a line each; and what read_gscope writes.
///
/// `last`: a segment that is in no file, or null. Throws CorruptTrace if no segment can be read, Error if the system
/// cannot read the folder.
std::unique_ptr<Store> read_segments(const std::string& folder, const Store* last = nullptr);

}  // namespace gpuscope::store
