// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/dictionaries.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "gpuscope/base/hooks.h"
#include "gpuscope/base/strings.h"

namespace gpuscope::attribution {
namespace {

constexpr uint32_t kUnmapped = UINT32_MAX;
constexpr uint16_t kMaxIds = UINT16_MAX;

uint16_t narrow(std::size_t id) { return id < kMaxIds ? static_cast<uint16_t>(id) : kMaxIds; }

uint64_t hash(const store::Variants::Row& row) {
  static_assert(sizeof(row) == 14 * sizeof(uint32_t));
  uint64_t words[7];
  std::memcpy(words, &row, sizeof(words));
  uint64_t value = 0;
  for (const uint64_t word : words) {
    value = std::rotl(value, 21) ^ (word * 0x9E3779B97F4A7C15ULL);
  }
  return value;
}

uint64_t hash(const store::Paths::Row& row) {
  const uint64_t key = (static_cast<uint64_t>(row.parent) << 32) | row.name;
  return row.kind == 0 && row.domain == 0
             ? key
             : base::mix(key ^ base::mix((static_cast<uint64_t>(row.domain) << 32) | row.kind));
}

uint64_t hash(const store::Tracks::Row& row) {
  return (static_cast<uint64_t>(row.device) << 52) ^ (static_cast<uint64_t>(row.context) << 32) ^ row.stream;
}

/// The next key to try after a collision.
uint64_t next_key(uint64_t key) { return base::mix(key + 1); }

uint64_t free_key(base::FlatMap<uint32_t>& map, uint64_t key) {
  while (map.find(key) != nullptr) {
    key = next_key(key);
  }
  return key;
}

store::Variants::Row only_name(const store::Variants::Row& row) {
  store::Variants::Row plain{};
  plain.name = row.name;
  return plain;
}

}  // namespace

uint32_t Dictionaries::string(std::string_view text) {
  if (tables_.strings.size() < kMaxStrings && !refuses_ && text != base::Names::kMore) {
    return tables_.strings.intern(text);
  }
  const uint32_t known = tables_.strings.find(text);
  return known != UINT32_MAX ? known : more_names();
}

uint32_t Dictionaries::more_names() {
  if (more_names_ == store::kNone) {
    more_names_ = tables_.strings.intern(base::Names::kMore);
  }
  return more_names_;
}

uint32_t Dictionaries::region_name(uint32_t name) {
  const uint32_t period = base::Names::period_of(name);
  const uint32_t index = base::Names::index_of(name);
  NamesOfPeriod& names = region_names_[period == 0 ? 0 : 1 + period % 2];
  if (names.period != period) [[unlikely]] {
    names = {period, {}};
  }
  if (index >= names.strings.size()) {
    names.strings.resize(index + 1, kUnmapped);
  }
  if (names.strings[index] == kUnmapped) {
    names.strings[index] = string(base::Names::process().text(name));
  }
  return names.strings[index];
}

uint32_t Dictionaries::pinned(const char* text) {
  return pointers_.find_or_make(std::bit_cast<uintptr_t>(text),
                                [&] { return string(text != nullptr ? text : "(no name)"); });
}

uint32_t Dictionaries::path(uint32_t parent, uint32_t name, base::RegionKind kind, uint32_t domain) {
  const auto kind_id = static_cast<uint32_t>(kind);
  uint64_t key = hash(store::Paths::Row{parent, name, 0, kind_id, domain});
  const store::Paths& paths = tables_.path;
  while (true) {
    if ((paths.size() >= kMaxPaths || refuses_) && paths_.find(key) == nullptr) {
      if (more_path_ == store::kNone) {
        more_path_ = tables_.path.append({store::kNone, more_names(), 0, 0, 0});
      }
      return more_path_;
    }
    const uint32_t id = paths_.find_or_make(key, [&] {
      const uint32_t depth = parent == store::kNone ? 0 : paths.depth[parent] + 1;
      return tables_.path.append({parent, name, depth, kind_id, domain});
    });
    if (paths.parent[id] == parent && paths.name[id] == name && paths.kind[id] == kind_id &&
        paths.domain[id] == domain) {
      return id;
    }
    key = next_key(key);  // two paths with one hash
  }
}

uint32_t Dictionaries::stack(uint32_t stack) {
  // Outermost frames first, so that a row's parent always precedes it.
  std::vector<uint32_t> missing;
  for (uint32_t id = stack; id != 0 && (id >= stacks_.size() || stacks_[id] == kUnmapped);) {
    missing.push_back(id);
    id = base::Stacks::process()[id].parent;
  }
  for (; !missing.empty(); missing.pop_back()) {
    const uint32_t id = missing.back();
    const base::Frame frame = base::Stacks::process()[id];
    if (id >= stacks_.size()) {
      stacks_.resize(id + 1, kUnmapped);
    }
    stacks_[id] =
        tables_.stack.append({frame.parent != 0 ? stacks_[frame.parent] : store::kNone, region_name(frame.function),
                              region_name(frame.file), frame.line, frame.instruction});
  }
  return stack != 0 ? stacks_[stack] : store::kNone;
}

uint32_t Dictionaries::variant(const store::Variants::Row& row) {
  const std::size_t slot =
      (row.name * 31 + row.grid_x * 7 + row.block_x + row.dynamic_shared_bytes) % recent_variants_.size();
  RecentVariant& recent = recent_variants_[slot];
  if (std::memcmp(&recent.row, &row, sizeof(row)) != 0) {
    recent = {row, find_variant(row)};
  }
  return recent.id;
}

uint32_t Dictionaries::find_variant(const store::Variants::Row& wanted) {
  const bool takes_more = variant_rows_.size() < kMaxVariants;
  const store::Variants::Row row = takes_more || variants_.find(hash(wanted)) != nullptr ? wanted : only_name(wanted);
  uint64_t key = hash(row);
  while (true) {
    const uint32_t id = variants_.find_or_make(key, [&] {
      variant_rows_.push_back(row);
      return tables_.variant.append(row);
    });
    if (std::memcmp(&variant_rows_[id], &row, sizeof(row)) == 0) {
      return id;
    }
    key = next_key(key);  // two configurations with one hash
  }
}

uint16_t Dictionaries::track(uint32_t device, uint32_t context, uint32_t stream) {
  const uint64_t key = hash(store::Tracks::Row{device, context, stream});
  if (key != last_track_key_) {
    if (const uint16_t* known = tracks_.find(key); known != nullptr) {
      last_track_ = *known;
    } else if (tables_.track.size() < kMaxIds) {
      last_track_ = narrow(tables_.track.append({device, context, stream}));
      tracks_.set(key, last_track_);
    } else {
      if (tables_.track.size() == kMaxIds) {  // for all later ones
        tables_.track.append({device, context, store::kNone});
      }
      last_track_ = kMaxIds;
    }
    last_track_key_ = key;
  }
  return last_track_;
}

uint16_t Dictionaries::call(std::string_view name, store::CallKind kind, bool captured, int32_t result,
                            uint32_t callback) {
  const bool plain = !captured && result == 0 && callback < plain_calls_.size();
  if (plain && plain_calls_[callback] != 0) {
    return static_cast<uint16_t>(plain_calls_[callback] - 1);
  }
  const uint64_t key =
      (static_cast<uint64_t>(static_cast<uint32_t>(result)) << 32) | (callback << 1) | (captured ? 1 : 0);
  const uint16_t id = calls_.find_or_make(key, [&] {
    const auto flags = static_cast<uint16_t>(captured ? store::kCaptured : 0);
    return narrow(tables_.call.append({string(name), static_cast<uint16_t>(kind), flags, result}));
  });
  if (plain && id < kMaxIds) {
    plain_calls_[callback] = static_cast<uint16_t>(id + 1);
  }
  return id;
}

uint16_t Dictionaries::thread(uint64_t system_id, std::string_view name) {
  if (tables_.thread.size() > kMaxIds) {
    return kMaxIds;
  }
  const bool last = tables_.thread.size() == kMaxIds;  // for all later ones
  return narrow(tables_.thread.append(last ? store::Threads::Row{0, string("(more threads)"), 0}
                                           : store::Threads::Row{system_id, string(name), 0}));
}

uint16_t Dictionaries::counter(const std::string& name, const std::string& unit, const std::string& description) {
  const uint32_t id = string(name);
  const store::Counters& known = tables_.counter;
  for (std::size_t row = 0; row < known.size(); ++row) {  // there are some dozens
    if (known.name[row] == id) {
      return narrow(row);
    }
  }
  return narrow(tables_.counter.append({id, string(unit), string(description)}));
}

std::size_t Dictionaries::bytes() const noexcept {
  std::size_t bytes = tables_.strings.bytes() + paths_.bytes() + variants_.bytes() + pointers_.bytes();
  for (const NamesOfPeriod& names : region_names_) {
    bytes += names.strings.size() * sizeof(uint32_t);
  }
  tables_.each_table([&]<class Table>(const Table& table) { bytes += table.size() * Table::kRowBytes; });
  return bytes + variant_rows_.size() * sizeof(store::Variants::Row) + stacks_.size() * sizeof(uint32_t);
}

bool Dictionaries::is_short_of_ids() const noexcept {
  return std::max(tables_.thread.size(), tables_.track.size()) > kMaxIds / 2;
}

void Dictionaries::move_into(store::Store& store) {
  store.strings = std::move(tables_.strings);
  store.path = std::move(tables_.path);
  store.stack = std::move(tables_.stack);
  store.variant = std::move(tables_.variant);
  store.track = std::move(tables_.track);
  store.thread = std::move(tables_.thread);
  store.call = std::move(tables_.call);
  store.counter = std::move(tables_.counter);
}

// Then one pass over each table, from its last row, finds all references.
static_assert(std::ranges::none_of(store::kTables, [](const store::TableInfo& table) {
  return table.role == store::Role::Dictionary &&
         std::ranges::any_of(table.columns, [&](const store::ColumnInfo& column) {
           const store::Target target = column.meaning.target;
           return target != store::Target::Nothing && target != store::Target::Strings && target != table.target;
         });
}));

Renewal::Renewal(Dictionaries& old) : old_(old) {
  rows_of(store::Target::Strings).resize(old.tables_.strings.size(), store::kNone);
  old.tables_.each_table([&]<class Table>(const Table& table) {
    if constexpr (Table::kInfo.role == store::Role::Dictionary) {
      rows_of(Table::kInfo.target).resize(table.size(), store::kNone);
    }
  });
}

void Renewal::keep_what_is_referred_to() {
  keep(store::Target::Strings, 0);
  old_.tables_.each_table([&]<class Table>(const Table& table) {
    const std::vector<uint32_t>& rows = rows_of(Table::kInfo.target);
    for (std::size_t row = rows.size(); row-- > 0;) {  // a row's parent precedes it
      table.each_column([&](const store::ColumnInfo& info, const auto& column) {
        if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(column[0])>>) {
          if (rows[row] == kKept && info.meaning.target != store::Target::Nothing) {
            keep(info.meaning.target, column[row]);
          }
        }
      });
    }
  });
}

void Renewal::copy_kept(Dictionaries& fresh) {
  std::vector<uint32_t>& strings = rows_of(store::Target::Strings);
  for (uint32_t id = 0; id < strings.size(); ++id) {
    strings[id] = strings[id] == kKept ? fresh.tables_.strings.intern(old_.tables_.strings[id]) : store::kNone;
  }
  store::Store::each_pair(fresh.tables_, old_.tables_, [&]<class Table>(Table& to, const Table& from) {
    std::vector<uint32_t>& rows = rows_of(Table::kInfo.target);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      if (rows[row] == store::kNone) {
        continue;
      }
      rows[row] = static_cast<uint32_t>(to.size());
      Table::each_pair(to, from, [&](const store::ColumnInfo& info, auto& target, const auto& source) {
        using T = std::remove_cvref_t<decltype(source)>::value_type;
        if constexpr (std::is_integral_v<T>) {
          target.push_back(static_cast<T>(find(info.meaning.target, source[row])));
        } else {
          target.push_back(source[row]);
        }
      });
    }
  });
}

void Renewal::index(Dictionaries& fresh) {
  const store::Paths& paths = fresh.tables_.path;
  for (uint32_t path = 0; path < paths.size(); ++path) {
    fresh.paths_.set(free_key(fresh.paths_, hash(paths[path])), path);
  }
  const store::Variants& variants = fresh.tables_.variant;
  for (uint32_t variant = 0; variant < variants.size(); ++variant) {
    fresh.variant_rows_.push_back(variants[variant]);
    fresh.variants_.set(free_key(fresh.variants_, hash(variants[variant])), variant);
  }
  const store::Tracks& tracks = fresh.tables_.track;
  for (uint32_t track = 0; track < tracks.size(); ++track) {
    fresh.tracks_.set(hash(tracks[track]), narrow(track));
  }
  old_.calls_.each([&](uint64_t key, uint16_t call) {
    if (const uint64_t row = find(store::Target::Calls, call); row < fresh.tables_.call.size()) {
      fresh.calls_.set(key, narrow(row));
    }
  });
  for (uint32_t stack = 0; stack < old_.stacks_.size(); ++stack) {
    if (const uint64_t row = find(store::Target::Stacks, old_.stacks_[stack]); row < fresh.tables_.stack.size()) {
      fresh.stacks_.resize(stack + 1, kUnmapped);
      fresh.stacks_[stack] = static_cast<uint32_t>(row);
    }
  }
  const uint32_t more_names = fresh.tables_.strings.find(base::Names::kMore);
  fresh.more_names_ = more_names != UINT32_MAX ? more_names : store::kNone;
  fresh.more_path_ = static_cast<uint32_t>(find(store::Target::Paths, old_.more_path_));
}

Dictionaries Renewal::take() {
  Dictionaries fresh;
  keep_what_is_referred_to();
  copy_kept(fresh);
  index(fresh);
  return fresh;
}

}  // namespace gpuscope::attribution
