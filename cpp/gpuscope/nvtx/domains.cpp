// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvtx/domains.h"

#include <array>
#include <atomic>

#include "gpuscope/nvtx/published_map.h"

namespace gpuscope::nvtx {
namespace {

constexpr Domain kMostDomains = 1024;
constinit std::array<std::atomic<uint32_t>, kMostDomains> names{};  // by domain; 0 is not taken yet
constinit PublishedMap<4096> categories;
constinit PublishedMap<4096> threads;

// Neither is 0, for no key may be.
constexpr uint64_t category_key(Domain domain, uint32_t category) noexcept {
  return (static_cast<uint64_t>(domain) + 1) << 32 | category;
}
constexpr uint64_t thread_key(uint64_t system_id) noexcept { return system_id + 1; }

}  // namespace

Domain domain_of(uint32_t name) noexcept {
  for (Domain domain = kDefaultDomain + 1; name != 0 && domain < kMostDomains; ++domain) {
    uint32_t held = 0;
    if (names[domain].compare_exchange_strong(held, name) || held == name) {
      return domain;
    }
  }
  return kDefaultDomain;
}

uint32_t domain_name(Domain domain) noexcept {
  return domain < kMostDomains ? names[domain].load(std::memory_order_relaxed) : 0;
}

void name_category(Domain domain, uint32_t category, uint32_t name) noexcept {
  categories.set(category_key(domain, category), name);
}

uint32_t category_name(Domain domain, uint32_t category) noexcept {
  return static_cast<uint32_t>(categories.find(category_key(domain, category)));
}

void name_thread(uint32_t system_id, uint32_t name) noexcept { threads.set(thread_key(system_id), name); }

uint32_t thread_name(uint64_t system_id) noexcept { return static_cast<uint32_t>(threads.find(thread_key(system_id))); }

}  // namespace gpuscope::nvtx
