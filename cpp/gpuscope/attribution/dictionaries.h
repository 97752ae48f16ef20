// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "gpuscope/base/event_log.h"
#include "gpuscope/base/flat_map.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/store/store.h"

namespace gpuscope::attribution {

/// The dictionaries of a session: they are kept from one recorded window to the next, and each store gets a copy, so
/// that ids mean the same in all of them. One thread at a time.
class Dictionaries {
 public:
  Dictionaries() {
    for (RecentVariant& recent : recent_variants_) {
      recent.row.name = store::kNone;  // no kernel's
    }
  }

  uint32_t string(std::string_view text);
  /// The string of a base::Names id.
  uint32_t region_name(uint32_t name);
  /// The string at `text`, whose address is valid until forget_pointers().
  uint32_t pinned(const char* text);
  void forget_pointers() { pointers_.clear(); }

  uint32_t path(uint32_t parent, uint32_t name, base::RegionKind kind = base::RegionKind::Region, uint32_t domain = 0);
  /// The row of a base::Stacks id; kNone for none.
  uint32_t stack(uint32_t stack);
  uint32_t variant(const store::Variants::Row& row);
  uint16_t track(uint32_t device, uint32_t context, uint32_t stream);
  uint16_t call(std::string_view name, store::CallKind kind, bool captured, int32_t result, uint32_t callback);
  uint16_t thread(uint64_t system_id, std::string_view name);

  std::string_view text(uint32_t string) const { return strings_[string]; }
  uint32_t path_name(uint32_t path) const { return tables_.path.name[path]; }
  uint64_t path_parent(uint32_t path) const { return tables_.path.parent[path]; }
  void copy_into(store::Store& store) const;

 private:
  uint32_t find_variant(const store::Variants::Row& wanted);

  // A program that makes new names for ever must not fill the memory: past these, all are one "(more names)".
  static constexpr uint32_t kMaxStrings = 1U << 20;
  static constexpr uint32_t kMaxPaths = 1U << 20;
  static constexpr uint32_t kMaxVariants = 1U << 20;  // past these, a kernel's configuration is not kept

  base::StringTable strings_;
  store::Store tables_;  // its dictionary tables only
  std::vector<uint32_t> region_names_;
  std::vector<uint32_t> stacks_;  // by base::Stacks id, their rows
  base::FlatMap<uint32_t> pointers_;
  base::FlatMap<uint32_t> paths_;
  base::FlatMap<uint32_t> variants_;
  std::vector<store::Variants::Row> variant_rows_;  // the table again, row by row: one cache line to compare
  struct RecentVariant {
    store::Variants::Row row;
    uint32_t id;
  };
  // Programs launch the same few kernels again and again.
  std::array<RecentVariant, 256> recent_variants_{};
  base::FlatMap<uint16_t> tracks_;
  uint64_t last_track_key_ = UINT64_MAX;
  uint16_t last_track_ = 0;
  base::FlatMap<uint16_t> calls_;
  std::array<uint16_t, 2048> plain_calls_{};  // by callback id, of those that went well: their id + 1
};

}  // namespace gpuscope::attribution
