// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome_events.h"

#include "gpuscope/exporters/chrome_metadata.h"
#include "gpuscope/exporters/json_text.h"

namespace gpuscope::exporters {

void ChromeEvents::put_name(std::string_view what, uint64_t process, uint64_t thread, std::string_view name) {
  next();
  put_metadata(out_, what, process, thread, "\"name\":" + quoted(name));
}

void ChromeEvents::put_label(uint64_t process, std::string_view label) {
  next();
  put_metadata(out_, "process_labels", process, 0, "\"labels\":" + quoted(label));
}

void ChromeEvents::put_sort_index(std::string_view what, uint64_t process, uint64_t thread, uint64_t index) {
  next();
  put_metadata(out_, what, process, thread, "\"sort_index\":" + std::to_string(index));
}

void ChromeEvents::open_lanes(const Strand& strand, uint64_t process, uint64_t first_tid, const std::string& name) {
  places_.clear();
  for (uint32_t lane = 0; lane < strand.lanes; ++lane) {
    const uint64_t tid = lane == 0 ? first_tid : new_tid();
    const std::string suffix = lane == 0 ? "" : " (lane " + std::to_string(lane + 1) + ")";
    put_name("thread_name", process, tid, name + suffix);
    put_sort_index("thread_sort_index", process, tid, next_sort_index_++);
    places_.push_back(",\"pid\":" + std::to_string(process) + ",\"tid\":" + std::to_string(tid) + ",\"ts\":");
  }
}

}  // namespace gpuscope::exporters
