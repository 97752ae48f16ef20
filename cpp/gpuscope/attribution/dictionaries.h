// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "gpuscope/base/events.h"
#include "gpuscope/base/flat_map.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/store/store.h"

namespace gpuscope::attribution {

/// The dictionaries of a recording. One thread at a time.
class Dictionaries {
 public:
  Dictionaries() {
    for (RecentVariant& recent : recent_variants_) {
      recent.row.name = store::kNone;  // no kernel's
    }
  }

  uint32_t string(std::string_view text);
  /// The string of a base::Names id. Ids expire, so ask while reading the event.
  uint32_t region_name(uint32_t name);
  /// The string at `text`, whose address is valid until forget_pointers().
  uint32_t pinned(const char* text);
  void forget_pointers() { pointers_.clear(); }

  uint32_t path(uint32_t parent, uint32_t name, base::RegionKind kind = base::RegionKind::Region, uint32_t domain = 0);
  /// The row of a base::Stacks id. kNone for none.
  uint32_t stack(uint32_t stack);
  uint32_t variant(const store::Variants::Row& row);
  uint16_t track(uint32_t device, uint32_t context, uint32_t stream);
  store::Tracks::Row track(uint16_t track) const { return tables_.track[track]; }
  uint16_t call(std::string_view name, store::CallKind kind, bool captured, int32_t result, uint32_t callback);
  uint16_t thread(uint64_t system_id, std::string_view name);
  uint16_t counter(const std::string& name, const std::string& unit, const std::string& description);
  void name_thread(uint16_t thread, std::string_view name) {
    if (thread < tables_.thread.size() && tables_.thread.system_id[thread] != 0) {  // not the shared last row
      tables_.thread.name[thread] = string(name);
    }
  }

  std::string_view text(uint32_t string) const { return tables_.strings[string]; }
  uint32_t path_name(uint32_t path) const { return tables_.path.name[path]; }
  uint32_t path_parent(uint32_t path) const { return tables_.path.parent[path]; }
  base::RegionKind path_kind(uint32_t path) const { return static_cast<base::RegionKind>(tables_.path.kind[path]); }
  /// Whether the string stands for all names that found no room.
  bool is_unnamed(uint32_t string) const noexcept { return string == more_names_ && string != store::kNone; }

  std::size_t bytes() const noexcept;
  /// Whether half of the ids for threads or tracks are used.
  bool is_short_of_ids() const noexcept;
  /// Whether new names become "(more names)", as the memory is used up.
  void refuse_more(bool refuse) noexcept { refuses_ = refuse; }
  /// The strings and the dictionary tables. Further facts may be added to the table `info`.
  store::Store& tables() noexcept { return tables_; }
  /// Moves everything into the store. The object is unusable afterwards.
  void move_into(store::Store& store);

 private:
  friend class Renewal;
  uint32_t more_names();
  uint32_t find_variant(const store::Variants::Row& wanted);

  // Bounds the memory of programs that make names without end: further names are all "(more names)".
  static constexpr uint32_t kMaxStrings = 1U << 20;
  static constexpr uint32_t kMaxPaths = 1U << 20;
  static constexpr uint32_t kMaxVariants = 1U << 20;  // further kernel configurations are not kept

  store::Store tables_;  // the strings and dictionary tables, and facts that are added by `tables`
  struct NamesOfPeriod {
    uint32_t period = 0;
    std::vector<uint32_t, base::BlockAllocator<uint32_t>> strings;  // by base::Names' index
  };
  std::array<NamesOfPeriod, 3> region_names_;  // of permanent ids, and of two periods in turn
  std::vector<uint32_t> stacks_;               // by base::Stacks id, their rows
  uint32_t more_names_ = store::kNone;         // the string, and a path of that name
  uint32_t more_path_ = store::kNone;
  bool refuses_ = false;
  base::FlatMap<uint32_t> pointers_;
  base::FlatMap<uint32_t> paths_;
  base::FlatMap<uint32_t> variants_;
  std::vector<store::Variants::Row> variant_rows_;  // the same table by rows: a comparison reads one cache line
  struct RecentVariant {
    store::Variants::Row row;
    uint32_t id;
  };
  // Programs launch the same few kernels repeatedly.
  std::array<RecentVariant, 256> recent_variants_{};
  base::FlatMap<uint16_t> tracks_;
  uint64_t last_track_key_ = UINT64_MAX;
  uint16_t last_track_ = 0;
  base::FlatMap<uint16_t> calls_;
  std::array<uint16_t, 2048> plain_calls_{};  // by callback id, of successful calls: their id + 1
};

/// Rebuilds dictionaries with the entries still in use, in the same order. First `keep` every reference, then `take`
/// the dictionaries, then replace each reference by the result of `find`, which cannot fail. One thread.
class Renewal {
 public:
  explicit Renewal(Dictionaries& old);

  /// A row of that dictionary, or a string. Other values stay as they are.
  void keep(store::Target target, uint64_t row) noexcept {
    std::vector<uint32_t>& rows = rows_of(target);
    if (row < rows.size()) {
      rows[row] = kKept;
    }
  }
  Dictionaries take();
  uint64_t find(store::Target target, uint64_t row) const noexcept {
    const std::vector<uint32_t>& rows = rows_[static_cast<std::size_t>(target)];
    return row < rows.size() ? rows[row] : row;
  }

 private:
  static constexpr uint32_t kKept = 0;

  std::vector<uint32_t>& rows_of(store::Target target) { return rows_[static_cast<std::size_t>(target)]; }
  void keep_what_is_referred_to();
  void copy_kept(Dictionaries& fresh);
  void index(Dictionaries& fresh);

  Dictionaries& old_;
  // For each dictionary and old row: kNone, or kKept at first and later the new row.
  std::array<std::vector<uint32_t>, store::kTargets> rows_;
};

}  // namespace gpuscope::attribution
