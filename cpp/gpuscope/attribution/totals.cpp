// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/totals.h"

#include <algorithm>

#include "gpuscope/store/histogram.h"

namespace gpuscope::attribution {
namespace {

uint32_t write_bins(store::Store& store, const std::vector<uint64_t>& bins, uint32_t& next) {
  for (uint32_t bin = 0; bin < bins.size(); ++bin) {
    if (bins[bin] != 0) {
      store.histogram.append({next, bin, bins[bin]});
    }
  }
  return next++;
}

}  // namespace

void Total::add(int64_t duration_ns) {
  ++count;
  total_ns += duration_ns;
  min_ns = std::min(min_ns, duration_ns);
  max_ns = std::max(max_ns, duration_ns);
  const uint32_t bin = store::histogram_bin(duration_ns);
  if (bin >= bins.size()) {
    bins.resize(bin + 1);
  }
  ++bins[bin];
}

void Totals::add_region(uint32_t path, int64_t duration_ns, int64_t child_ns) {
  const uint32_t index = region_index_.find_or_make(path, [&] {
    region_paths_.push_back(path);
    regions_.emplace_back();
    return static_cast<uint32_t>(regions_.size() - 1);
  });
  regions_[index].add(duration_ns);
  regions_[index].child_ns += child_ns;
}

Total& Totals::work(const Key& key) {
  // 28 bits hold any path (Dictionaries caps them at 20), 4 the kind, 32 the name: the packing is exact.
  const uint64_t packed =
      (static_cast<uint64_t>(key.path & 0xFFFFFFF) << 36) | (static_cast<uint64_t>(key.kind) << 32) | key.name;
  const uint32_t index = work_index_.find_or_make(packed, [&] {
    work_keys_.push_back(key);
    works_.emplace_back();
    return static_cast<uint32_t>(works_.size() - 1);
  });
  return works_[index];
}

void Totals::add_work(uint32_t path, store::Work kind, uint32_t name, int64_t duration_ns, uint64_t bytes) {
  Total& total = work({path, name, kind});
  total.add(duration_ns);
  total.bytes += bytes;
}

void Totals::move_into(store::Store& store) {
  uint32_t histogram = 0;
  for (std::size_t index = 0; index < regions_.size(); ++index) {
    const Total& total = regions_[index];
    store.region_total.append({region_paths_[index], write_bins(store, total.bins, histogram), total.count,
                               total.total_ns, total.child_ns, total.min_ns, total.max_ns});
  }
  for (std::size_t index = 0; index < works_.size(); ++index) {
    const Total& total = works_[index];
    const Key& key = work_keys_[index];
    store.work_total.append({key.path, key.name, write_bins(store, total.bins, histogram),
                             static_cast<uint32_t>(key.kind), total.count, total.bytes, total.total_ns, total.min_ns,
                             total.max_ns});
  }
  *this = Totals();
}

std::size_t Totals::bytes() const noexcept {
  std::size_t bins = 0;
  for (const auto* totals : {&regions_, &works_}) {
    for (const Total& total : *totals) {
      bins += total.bins.size() * sizeof(uint64_t);
    }
  }
  return bins + (regions_.size() + works_.size()) * sizeof(Total);
}

}  // namespace gpuscope::attribution
