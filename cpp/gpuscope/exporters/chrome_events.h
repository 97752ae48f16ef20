// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpuscope/exporters/output.h"
#include "gpuscope/exporters/timeline.h"

namespace gpuscope::exporters {

inline constexpr uint64_t kFirstLaneTid = 1'000'000'000;  // past every thread id and stream number

/// The events of a Chrome trace in the making: what all of them share, and where their lanes are.
class ChromeEvents {
 public:
  explicit ChromeEvents(Write write) : out_(std::move(write)) {}

  Output& out() { return out_; }
  void set_base(int64_t base_ns) { base_ns_ = base_ns; }

  // -- what names and orders processes and threads -------------------------------------------------------------------
  void put_name(std::string_view what, uint64_t process, uint64_t thread, std::string_view name);
  void put_label(uint64_t process, std::string_view label);
  void put_sort_index(std::string_view what, uint64_t process, uint64_t thread, uint64_t index);
  uint64_t new_tid() { return next_tid_++; }
  /// Names the lanes of a strand; place() then tells what each event in them repeats.
  void open_lanes(const Strand& strand, uint64_t process, uint64_t first_tid, const std::string& name);

  // -- events --------------------------------------------------------------------------------------------------------
  std::string_view place(const Slice& slice) const { return places_[slice.lane]; }
  void next() {
    out_.cut();
    out_.put(first_ ? "" : ",\n");
    first_ = false;
  }
  /// A slice, from its fragment up to its duration.
  void begin(std::string_view head, const Slice& slice) {
    next();
    out_.put(head);
    put_time(slice, slice.start_ns);
    out_.put(",\"dur\":");
    out_.put_micros(slice.end_ns - slice.start_ns);
  }
  void put_time(const Slice& slice, int64_t at_ns) {
    out_.put(place(slice));
    out_.put_micros(at_ns - base_ns_);
  }
  void put_pair(std::string_view key, std::integral auto value) {
    out_.put(key);
    out_.put_number(value);
  }
  /// One end of an arrow of that category, at the slice's start; arrows of a category are joined by their ids.
  void put_arrow(bool is_end, std::string_view category, uint64_t id, const Slice& slice) {
    next();
    put_pair(is_end ? "{\"ph\":\"f\",\"bp\":\"e\",\"id\":" : "{\"ph\":\"s\",\"id\":", id);
    put_time(slice, slice.start_ns);
    out_.put(category);
    out_.put('}');
  }

 private:
  Output out_;
  int64_t base_ns_ = 0;
  std::vector<std::string> places_;
  uint64_t next_tid_ = kFirstLaneTid;
  uint64_t next_sort_index_ = 0;
  bool first_ = true;
};

inline constexpr std::string_view kLaunchArrow = ",\"cat\":\"ac2g\",\"name\":\"ac2g\"";
inline constexpr std::string_view kBackwardArrow = ",\"cat\":\"fwdbwd\",\"name\":\"fwdbwd\"";

}  // namespace gpuscope::exporters
