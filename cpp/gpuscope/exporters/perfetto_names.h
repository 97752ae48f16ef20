// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// Every text that a Perfetto event may show, by a number; the texts are made when first asked for.
class PerfettoNames {
 public:
  explicit PerfettoNames(const store::Store& store);

  uint32_t plain(uint32_t string) const { return string; }
  uint32_t demangled(uint32_t string) const { return first_demangled_ + string; }
  uint32_t configuration(uint32_t variant) const { return first_configuration_ + variant; }
  uint32_t made(const std::string& text);
  std::string_view text(uint32_t name);

 private:
  std::string make(uint32_t name) const;

  const store::Store& store_;
  uint32_t first_demangled_, first_configuration_, first_made_;
  std::unordered_map<uint32_t, std::string> texts_;
  std::unordered_map<std::string, uint32_t> made_;
};

/// Small numbers for texts on one packet sequence, in order of first use.
class Interner {
 public:
  /// True when the text has to be sent along, under the number it has now got.
  bool add(uint32_t name, uint32_t& id) {
    if (name >= slots_.size()) {
      slots_.resize(std::size_t{name} * 2 + 64);
    }
    Slot& slot = slots_[name];
    const bool is_new = slot.sequence != sequence_;
    if (is_new) {
      slot = {sequence_, ++count_};
    }
    id = slot.id;
    return is_new;
  }
  void restart() {
    ++sequence_;
    count_ = 0;
  }

 private:
  struct Slot {
    uint32_t sequence;
    uint32_t id;
  };
  std::vector<Slot> slots_;
  uint32_t sequence_ = 1;
  uint32_t count_ = 0;
};

}  // namespace gpuscope::exporters
