// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome_threads.h"

#include <string>

#include "gpuscope/exporters/json_text.h"
#include "gpuscope/exporters/labels.h"

namespace gpuscope::exporters {

using base::RegionKind;
using store::kNone;

void ChromeThreads::write(const Strand& strand, uint64_t process) {
  events_.open_lanes(strand, process, store_.thread.system_id[strand.row], thread_label(store_, strand.row));
  for (const Slice& slice : strand.slices) {
    switch (slice.source) {
      case Source::Region:
        write_region(slice);
        break;
      case Source::Api:
        write_call(slice);
        break;
      case Source::Allocation:
        write_allocation(slice);
        break;
      default:
        write_mark(slice);
        break;
    }
  }
}

void ChromeThreads::write_ranges(const Strand& strand, uint64_t process) {
  Strand flat{strand.row, 1, {}};
  events_.open_lanes(flat, process, events_.new_tid(), thread_label(store_, strand.row) + " (ranges)");
  Output& out = events_.out();
  for (Slice slice : strand.slices) {
    slice.lane = 0;  // viewers lay asynchronous events out themselves
    const std::string_view name = fragments_.region_name(store_.region.path[slice.row]);
    events_.next();
    events_.put_pair("{\"ph\":\"b\",\"id\":", slice.row + 1);
    out.put(name);
    events_.put_time(slice, slice.start_ns);
    put_region_arguments(slice.row);
    out.put('}');
    events_.next();
    events_.put_pair("{\"ph\":\"e\",\"id\":", slice.row + 1);
    out.put(name);
    events_.put_time(slice, slice.end_ns);
    out.put('}');
  }
}

void ChromeThreads::write_region(const Slice& slice) {
  const uint32_t region = slice.row;
  events_.begin(fragments_.region(store_.region.path[region]), slice);
  put_region_arguments(region);
  events_.out().put('}');
  if (links_.is_forward(region)) {
    events_.put_arrow(false, kBackwardArrow, region + 1, slice);
  }
  if (const uint32_t detail = links_.detail(region); detail != kNone && store_.detail.forward[detail] != kNone) {
    events_.put_arrow(true, kBackwardArrow, uint64_t{store_.detail.forward[detail]} + 1, slice);
  }
}

void ChromeThreads::put_region_arguments(uint32_t region) {
  Output& out = events_.out();
  events_.put_pair(",\"args\":{\"External id\":", uint64_t{region} + 1);
  if (links_.kind(region) == RegionKind::Module) {
    const uint32_t outer = links_.outer_module(region);
    events_.put_pair(",\"Python id\":", uint64_t{region} + 1);
    out.put(",\"Python parent id\":");
    out.put(outer == kNone ? "null" : std::to_string(uint64_t{outer} + 1));
  } else {
    events_.put_pair(",\"Ev Idx\":", region);
  }
  arguments_.put_details(out, region);
  arguments_.put_payloads(out, region);
  if (const uint16_t flags = store_.region.flags[region]; flags != 0) {
    const std::string notes = flag_label(flags);
    out.put(notes.empty() ? "" : ",\"notes\":\"" + notes + "\"");
  }
  out.put('}');
}

void ChromeThreads::write_call(const Slice& slice) {
  Output& out = events_.out();
  const auto row = store_.api[slice.row];
  events_.begin(fragments_.call(row.call), slice);
  if (row.region != kNone) {
    events_.put_pair(",\"args\":{\"External id\":", uint64_t{links_.owner(row.region)} + 1);
    events_.put_pair(",\"correlation\":", row.correlation);
  } else {
    events_.put_pair(",\"args\":{\"correlation\":", row.correlation);
  }
  out.put(fragments_.call_arguments(row.call));
  arguments_.put_stack(out, links_.call_stack(slice.row));
  out.put("}}");
  if (launches_.has_work(slice.row)) {
    events_.put_arrow(false, kLaunchArrow, row.correlation, slice);
  }
}

void ChromeThreads::write_mark(const Slice& slice) {
  events_.next();
  events_.out().put("{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"mark\",\"name\":");
  events_.out().put(quoted(store_.strings[store_.mark.name[slice.row]]));
  events_.put_time(slice, slice.start_ns);
  events_.out().put('}');
}

void ChromeThreads::write_allocation(const Slice& slice) {
  constexpr int kCpu = 0;  // c10::DeviceType's numbers
  constexpr int kCuda = 1;
  const auto row = store_.allocation[slice.row];
  const bool on_host = row.ordinal == kNone;
  events_.next();
  events_.out().put("{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"cpu_instant_event\",\"name\":\"[memory]\"");
  events_.put_time(slice, slice.start_ns);
  events_.put_pair(",\"args\":{\"Total Reserved\":", row.reserved_bytes);
  events_.put_pair(",\"Total Allocated\":", row.allocated_bytes);
  events_.put_pair(",\"Bytes\":", row.bytes);
  events_.put_pair(",\"Device Id\":", on_host ? int64_t{-1} : int64_t{row.ordinal});
  events_.put_pair(",\"Device Type\":", on_host ? kCpu : kCuda);
  events_.put_pair(",\"Addr\":", row.address);
  events_.out().put("}}");
}

}  // namespace gpuscope::exporters
