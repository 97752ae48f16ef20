// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fakes/cupti.h"
#include "gpuscope/attribution/decoder.h"
#include "gpuscope/base/event_log.h"

namespace gpuscope::fakes {

/// A recorded window without a session: what threads log while it is open becomes rows.
class Window {
 public:
  Window() {
    decoder_.discard_logs();
    decoder_.window().open_ns = INT64_MIN;
    listen(base::kListenRegions);
  }
  ~Window() { base::listening.store(0); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  static void listen(uint32_t flags) {
    static uint32_t sessions = 0;
    base::listening.store((++sessions << base::kListenBits) | flags);
  }

  /// Ends the window and reads it.
  const store::Store& close() {
    base::listening.store(0);
    decoder_.decode(pool_);
    unmatched_exits_ = decoder_.state().counters.unmatched_exits;
    store_ = decoder_.finish(base::Clock::process().now_ns());
    return *store_;
  }

  uint64_t unmatched_exits() const { return unmatched_exits_; }

  /// One line a region, in the order of their beginnings: its path, with "!" when it never closed and "~" when it is a
  /// start/end range.
  std::vector<std::string> regions() const {
    std::vector<std::string> lines;
    for (uint32_t row = 0; row < store_->region.size(); ++row) {
      const uint16_t flags = store_->region.flags[row];
      lines.push_back(path(store_->region.path[row]) + ((flags & store::kAsync) != 0 ? "~" : "") +
                      ((flags & store::kOpen) != 0 ? "!" : ""));
    }
    return lines;
  }
  std::vector<std::string> marks() const {
    std::vector<std::string> names;
    for (uint32_t row = 0; row < store_->mark.size(); ++row) {
      names.emplace_back(store_->strings[store_->mark.name[row]]);
    }
    return names;
  }
  /// Of each region, what was given along.
  std::map<std::string, std::string> payload(uint32_t region = 0) const {
    std::map<std::string, std::string> values;
    const store::Payloads& payload = store_->payload;
    for (uint32_t row = 0; row < payload.size(); ++row) {
      if (payload.region[row] == region) {
        values[std::string(store_->strings[payload.name[row]])] = text(payload.type[row], payload.value[row]);
      }
    }
    return values;
  }

 private:
  std::string path(uint32_t path) const {
    std::string text;
    for (; path != store::kNone; path = store_->path.parent[path]) {
      const std::string_view domain = store_->strings[store_->path.domain[path]];
      std::string name(store_->strings[store_->path.name[path]]);
      name.insert(0, domain.empty() ? "" : std::string(domain).append(":"));
      text.insert(0, text.empty() ? name : name.append("/"));
    }
    return text;
  }
  std::string text(uint16_t type, uint64_t value) const {
    switch (static_cast<store::PayloadType>(type)) {
      case store::PayloadType::Signed:
        return std::to_string(std::bit_cast<int64_t>(value));
      case store::PayloadType::Float:
        return std::to_string(std::bit_cast<double>(value));
      case store::PayloadType::Text:
      case store::PayloadType::List:
        return std::string("'").append(store_->strings[static_cast<uint32_t>(value)]).append("'");
      default:
        return std::to_string(value);
    }
  }

  attribution::Decoder decoder_{{}, Cupti::instance().table(), 0};
  activity::BufferPool pool_;
  std::unique_ptr<store::Store> store_;
  uint64_t unmatched_exits_ = 0;
};

}  // namespace gpuscope::fakes
