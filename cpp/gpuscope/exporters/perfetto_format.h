// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "gpuscope/exporters/output.h"

namespace gpuscope::exporters {

/// Writes protobuf's wire format (protobuf.dev/programming-guides/encoding), field by field.
class ProtoWriter {
 public:
  explicit ProtoWriter(Output& out) : out_(out) {}

  void number(uint32_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
  }
  void real(uint32_t field, double value) {
    static_assert(std::endian::native == std::endian::little);
    varint(field << 3 | kEightBytes);
    std::memcpy(out_.room(sizeof value), &value, sizeof value);
    out_.advance(sizeof value);
  }
  void text(uint32_t field, std::string_view value) {
    varint(field << 3 | kLengthDelimited);
    varint(value.size());
    out_.put(value);
  }
  /// Opens a nested message. Pass the result to end().
  std::size_t begin(uint32_t field) {
    varint(field << 3 | kLengthDelimited);
    out_.put('\0');  // its length: most messages are shorter than 128 bytes
    return out_.size();
  }
  void end(std::size_t begun) {
    const std::size_t length = out_.size() - begun;
    if (length < 128) [[likely]] {
      out_.data()[begun - 1] = static_cast<char>(length);
      return;
    }
    char digits[kLongestVarint];
    const std::size_t count = encode(length, digits);
    out_.room(count);
    char* body = out_.data() + begun;
    std::memmove(body + count - 1, body, length);
    std::memcpy(body - 1, digits, count);
    out_.advance(count - 1);
  }

 private:
  static constexpr uint32_t kEightBytes = 1;
  static constexpr uint32_t kLengthDelimited = 2;
  static constexpr std::size_t kLongestVarint = 10;

  static std::size_t encode(uint64_t value, char* into) {
    std::size_t count = 0;
    for (; value >= 128; value >>= 7) {
      into[count++] = static_cast<char>(value | 128);
    }
    into[count++] = static_cast<char>(value);
    return count;
  }
  void varint(uint64_t value) { out_.advance(encode(value, out_.room(kLongestVarint))); }

  Output& out_;
};

// Field numbers and constants of Perfetto's trace format: protos/perfetto/trace/trace_packet.proto and its imports.
namespace perfetto {

inline constexpr uint32_t kTracePacket = 1;

namespace packet {
inline constexpr uint32_t kClockSnapshot = 6;
inline constexpr uint32_t kTimestamp = 8;
inline constexpr uint32_t kSequence = 10;  // trusted_packet_sequence_id
inline constexpr uint32_t kTrackEvent = 11;
inline constexpr uint32_t kInternedData = 12;
inline constexpr uint32_t kSequenceFlags = 13;
inline constexpr uint32_t kDefaults = 59;  // trace_packet_defaults
inline constexpr uint32_t kTrackDescriptor = 60;
}  // namespace packet
inline constexpr uint64_t kIncrementalStateCleared = 1;

namespace defaults {
inline constexpr uint32_t kTrackEvent = 11;
inline constexpr uint32_t kTimestampClock = 58;
}  // namespace defaults

namespace snapshot {
inline constexpr uint32_t kClock = 1;
inline constexpr uint32_t kClockId = 1;
inline constexpr uint32_t kTimestamp = 2;
inline constexpr uint32_t kIsIncremental = 3;
}  // namespace snapshot
inline constexpr uint64_t kRealtime = 1;
inline constexpr uint64_t kBoottime = 6;     // the clock of the viewer's time line
inline constexpr uint64_t kDeltaClock = 64;  // the first number for clocks of a single sequence

namespace descriptor {
inline constexpr uint32_t kUuid = 1;
inline constexpr uint32_t kName = 2;
inline constexpr uint32_t kProcess = 3;
inline constexpr uint32_t kThread = 4;
inline constexpr uint32_t kParent = 5;
inline constexpr uint32_t kCounter = 8;
inline constexpr uint32_t kChildOrdering = 11;
inline constexpr uint32_t kRank = 12;  // sibling_order_rank
}  // namespace descriptor
inline constexpr uint64_t kExplicitOrder = 3;

namespace process {
inline constexpr uint32_t kPid = 1;
inline constexpr uint32_t kName = 6;
}  // namespace process

namespace thread {
inline constexpr uint32_t kPid = 1;
inline constexpr uint32_t kTid = 2;
inline constexpr uint32_t kName = 5;
}  // namespace thread

namespace counter {
inline constexpr uint32_t kUnit = 3;
inline constexpr uint32_t kUnitName = 6;
inline constexpr uint64_t kBytes = 3;  // UNIT_SIZE_BYTES
}  // namespace counter

namespace event {
inline constexpr uint32_t kCategory = 3;  // category_iids
inline constexpr uint32_t kAnnotation = 4;
inline constexpr uint32_t kType = 9;
inline constexpr uint32_t kName = 10;
inline constexpr uint32_t kTrack = 11;
inline constexpr uint32_t kCounterValue = 30;
inline constexpr uint32_t kRealValue = 44;  // double_counter_value
// flow_ids_old: a varint, while flow_ids takes eight bytes. Readers know both.
inline constexpr uint32_t kFlow = 36;
}  // namespace event
enum class EventType : uint8_t { Begin = 1, End = 2, Instant = 3, Counter = 4 };

namespace annotation {
inline constexpr uint32_t kName = 1;
inline constexpr uint32_t kNumber = 3;
inline constexpr uint32_t kText = 17;  // an interned string
}  // namespace annotation

namespace interned {
inline constexpr uint32_t kCategories = 1;
inline constexpr uint32_t kEventNames = 2;
inline constexpr uint32_t kAnnotationNames = 3;
inline constexpr uint32_t kTexts = 29;  // debug_annotation_string_values
inline constexpr uint32_t kId = 1;
inline constexpr uint32_t kValue = 2;
}  // namespace interned

}  // namespace perfetto

}  // namespace gpuscope::exporters
