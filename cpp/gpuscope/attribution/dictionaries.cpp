// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/dictionaries.h"

#include <bit>
#include <cstring>

#include "gpuscope/base/hooks.h"
#include "gpuscope/base/strings.h"

namespace gpuscope::attribution {
namespace {

constexpr uint32_t kUnmapped = UINT32_MAX;
constexpr std::string_view kMoreNames = "(more names)";
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

store::Variants::Row only_name(const store::Variants::Row& row) {
  store::Variants::Row plain{};
  plain.name = row.name;
  return plain;
}

}  // namespace

uint32_t Dictionaries::string(std::string_view text) {
  if (strings_.size() < kMaxStrings) {
    return strings_.intern(text);
  }
  const uint32_t known = strings_.find(text);
  return known != UINT32_MAX ? known : strings_.intern(kMoreNames);
}

uint32_t Dictionaries::region_name(uint32_t name) {
  if (name >= region_names_.size()) {
    region_names_.resize(name + 1, kUnmapped);
  }
  if (region_names_[name] == kUnmapped) {
    region_names_[name] = string(base::Names::process().text(name));
  }
  return region_names_[name];
}

uint32_t Dictionaries::pinned(const char* text) {
  return pointers_.find_or_make(std::bit_cast<uintptr_t>(text),
                                [&] { return string(text != nullptr ? text : "(no name)"); });
}

uint32_t Dictionaries::path(uint32_t parent, uint32_t name, base::RegionKind kind, uint32_t domain) {
  const auto kind_id = static_cast<uint32_t>(kind);
  uint64_t key = (static_cast<uint64_t>(parent) << 32) | name;
  if (kind_id != 0 || domain != 0) {
    key = base::mix(key ^ base::mix((static_cast<uint64_t>(domain) << 32) | kind_id));
  }
  const store::Paths& paths = tables_.path;
  while (true) {
    if (paths.size() >= kMaxPaths && paths_.find(key) == nullptr) {
      return parent != store::kNone ? parent : 0;
    }
    const uint32_t id = paths_.find_or_make(key, [&] {
      const uint32_t depth = parent == store::kNone ? 0 : paths.depth[parent] + 1;
      return tables_.path.append({parent, name, depth, kind_id, domain});
    });
    if (paths.parent[id] == parent && paths.name[id] == name && paths.kind[id] == kind_id &&
        paths.domain[id] == domain) {
      return id;
    }
    key = base::mix(key + 1);  // two paths with one hash
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
    stacks_[id] = tables_.stack.append({frame.parent != 0 ? stacks_[frame.parent] : store::kNone,
                                        region_name(frame.function), region_name(frame.file), frame.line});
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
    key = base::mix(key + 1);  // two configurations with one hash
  }
}

uint16_t Dictionaries::track(uint32_t device, uint32_t context, uint32_t stream) {
  const uint64_t key = (static_cast<uint64_t>(device) << 52) ^ (static_cast<uint64_t>(context) << 32) ^ stream;
  if (key != last_track_key_) {
    last_track_ = tracks_.find_or_make(key, [&] { return narrow(tables_.track.append({device, context, stream})); });
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

void Dictionaries::copy_into(store::Store& store) const {
  for (uint32_t id = 0; id < strings_.size(); ++id) {
    store.strings.intern(strings_[id]);
  }
  const auto copy = [](const auto& from, auto& to) {
    for (std::size_t row = 0; row < from.size(); ++row) {
      to.append(from[row]);
    }
  };
  copy(tables_.path, store.path);
  copy(tables_.stack, store.stack);
  copy(tables_.variant, store.variant);
  copy(tables_.track, store.track);
  copy(tables_.thread, store.thread);
  copy(tables_.call, store.call);
}

}  // namespace gpuscope::attribution
