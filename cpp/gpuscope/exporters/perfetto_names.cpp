// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/perfetto_names.h"

#include "gpuscope/base/demangle.h"
#include "gpuscope/exporters/json_text.h"
#include "gpuscope/exporters/labels.h"

namespace gpuscope::exporters {
namespace {

std::string triple(uint32_t x, uint32_t y, uint32_t z) {
  std::string text = "[";
  text += std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z);
  return text += "]";
}

std::string configuration_text(const store::Variants::Row& variant) {
  std::string text = "grid " + triple(variant.grid_x, variant.grid_y, variant.grid_z) + ", block " +
                     triple(variant.block_x, variant.block_y, variant.block_z) + ", " +
                     std::to_string(variant.registers) + " registers, " +
                     std::to_string(uint64_t{variant.static_shared_bytes} + variant.dynamic_shared_bytes) +
                     " B shared memory";
  if (uint64_t{variant.cluster_x} * variant.cluster_y * variant.cluster_z > 1) {
    text += ", cluster " + triple(variant.cluster_x, variant.cluster_y, variant.cluster_z);
  }
  return text;
}

}  // namespace

PerfettoNames::PerfettoNames(const store::Store& store)
    : store_(store),
      first_demangled_(store.strings.size()),
      first_configuration_(first_demangled_ * 2),
      first_made_(first_configuration_ + static_cast<uint32_t>(store.variant.size())) {}

uint32_t PerfettoNames::made(const std::string& text) {
  const auto [at, is_new] = made_.try_emplace(text, first_made_ + static_cast<uint32_t>(made_.size()));
  if (is_new) {
    texts_.emplace(at->second, text);
  }
  return at->second;
}

std::string_view PerfettoNames::text(uint32_t name) {
  const auto found = texts_.find(name);
  return found != texts_.end() ? found->second : texts_.emplace(name, make(name)).first->second;
}

std::string PerfettoNames::make(uint32_t name) const {
  if (name < first_demangled_) {
    return valid_utf8(store_.strings[name]);
  }
  if (name < first_configuration_) {
    return valid_utf8(base::demangle(store_.strings[name - first_demangled_]));
  }
  return configuration_text(store_.variant[name - first_configuration_]);
}

}  // namespace gpuscope::exporters
