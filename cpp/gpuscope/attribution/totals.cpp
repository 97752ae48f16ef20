// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/totals.h"

#include <algorithm>

#include "gpuscope/store/values.h"

namespace gpuscope::attribution {
namespace {

uint32_t write_bins(store::Store& store, const Total& total, uint32_t& next) {
  for (uint32_t bin = 0; bin < total.bins.size(); ++bin) {
    if (total.bins[bin] != 0) {
      store.histogram.append({next, total.first_bin + bin, total.bins[bin]});
    }
  }
  return next++;
}

}  // namespace

std::size_t Total::add(int64_t duration_ns) {
  ++count;
  total_ns += duration_ns;
  min_ns = std::min(min_ns, duration_ns);
  max_ns = std::max(max_ns, duration_ns);
  const std::size_t before = bins.size();
  const uint32_t bin = store::histogram_bin(duration_ns);
  if (bins.empty()) {
    first_bin = bin;
  } else if (bin < first_bin) {
    bins.insert(bins.begin(), first_bin - bin, 0);
    first_bin = bin;
  }
  if (bin - first_bin >= bins.size()) {
    bins.resize(bin - first_bin + 1);
  }
  ++bins[bin - first_bin];
  return (bins.size() - before) * sizeof(uint64_t);
}

template <class F>
Total* Totals::find_or_make(base::FlatMap<uint32_t>& index, std::vector<Total>& totals, uint64_t key, F&& remember) {
  if (const uint32_t* found = index.find(key); found != nullptr) {
    return &totals[*found];
  }
  if (refuses_) {
    ++refused_;
    return nullptr;
  }
  remember();
  totals.emplace_back();
  index.set(key, static_cast<uint32_t>(totals.size() - 1));
  bytes_ += kTotalBytes;
  return &totals.back();
}

bool Totals::add_region(uint32_t path, int64_t duration_ns, int64_t child_ns, int64_t suspended_ns) {
  Total* total = find_or_make(region_index_, regions_, path, [&] { region_paths_.push_back(path); });
  if (total != nullptr) {
    bytes_ += total->add(duration_ns);
    total->child_ns += child_ns;
    total->suspended_ns += suspended_ns;
  }
  return total != nullptr;
}

Total* Totals::work(const Key& key) {
  // The packing is exact: 28 bits for the path (Dictionaries caps them at 20), 4 for the kind, 32 for the name.
  const uint64_t packed =
      (static_cast<uint64_t>(key.path & 0xFFFFFFF) << 36) | (static_cast<uint64_t>(key.kind) << 32) | key.name;
  return find_or_make(work_index_, works_, packed, [&] { work_keys_.push_back(key); });
}

void Totals::add_work(uint32_t path, store::Work kind, uint32_t name, int64_t duration_ns, uint64_t bytes) {
  Total* total = work({path, name, kind});
  if (total != nullptr) {
    bytes_ += total->add(duration_ns);
    total->bytes += bytes;
  }
}

void Totals::move_into(store::Store& store) {
  uint32_t histogram = 0;
  for (std::size_t index = 0; index < regions_.size(); ++index) {
    const Total& total = regions_[index];
    store.region_total.append({region_paths_[index], write_bins(store, total, histogram), total.count, total.total_ns,
                               total.child_ns, total.min_ns, total.max_ns, total.suspended_ns});
  }
  for (std::size_t index = 0; index < works_.size(); ++index) {
    const Total& total = works_[index];
    const Key& key = work_keys_[index];
    store.work_total.append({key.path, key.name, write_bins(store, total, histogram), static_cast<uint32_t>(key.kind),
                             total.count, total.bytes, total.total_ns, total.min_ns, total.max_ns});
  }
  *this = Totals();
}

}  // namespace gpuscope::attribution
