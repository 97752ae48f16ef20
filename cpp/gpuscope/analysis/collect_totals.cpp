// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/analysis/collect.h"

namespace gpuscope::analysis {
namespace {

/// The histogram table by histogram.
class Histograms {
 public:
  explicit Histograms(const store::Histograms& table) {
    for (std::size_t row = 0; row < table.size(); ++row) {
      bins_[table.histogram[row]].push_back({table.bin[row], table.count[row]});
    }
  }
  std::vector<BinCount> of(uint32_t histogram) const {
    const auto found = bins_.find(histogram);
    return found == bins_.end() ? std::vector<BinCount>{} : found->second;
  }

 private:
  std::unordered_map<uint32_t, std::vector<BinCount>> bins_;
};

/// Totals by kind and name with the bins behind them.
class Totals {
 public:
  explicit Totals(Summary& summary) : summary_(summary) {}

  void add(Kind kind, uint32_t name, uint64_t bytes, const Durations& durations, const std::vector<BinCount>& bins) {
    Entry& entry = entries_[{kind, name}];
    entry.total.kind = kind;
    entry.total.name = name;
    entry.total.bytes += bytes;
    merge(entry.total.durations, durations);
    entry.bins.insert(entry.bins.end(), bins.begin(), bins.end());
  }
  void finish() {
    for (auto& [key, entry] : entries_) {
      fill_quantiles(entry.total.durations, entry.bins);
      summary_.totals.push_back(entry.total);
    }
  }

 private:
  struct Entry {
    NameStat total{};
    std::vector<BinCount> bins;
  };
  Summary& summary_;
  std::map<std::pair<Kind, uint32_t>, Entry> entries_;
};

}  // namespace

void collect_totals(const store::Store& store, const CallPaths& paths, DisplayNames& names, Summary& summary) {
  const Histograms histograms(store.histogram);
  Totals totals(summary);

  for (std::size_t row = 0; row < store.region_total.size(); ++row) {
    const auto region = store.region_total[row];
    if (paths.valid(region.path) == store::kNone) {
      continue;
    }
    PathStat& stat = summary.paths[region.path];
    stat.cpu = {.count = region.count, .total_ns = region.total_ns, .min_ns = region.min_ns, .max_ns = region.max_ns};
    stat.self_cpu_ns = std::max<int64_t>(0, region.total_ns - region.child_ns);
    std::vector<BinCount> bins = histograms.of(region.histogram);
    fill_quantiles(stat.cpu, bins);
    totals.add(Kind::Region, summary.path_names[region.path], 0, stat.cpu, bins);
  }
  for (std::size_t row = 0; row < store.work_total.size(); ++row) {
    const auto work = store.work_total[row];
    const auto kind = static_cast<Kind>(work.kind);
    const uint32_t name = kind == Kind::Kernel ? names.of_kernel(work.name) : names.of_string(work.name);
    Durations durations{.count = work.count, .total_ns = work.total_ns, .min_ns = work.min_ns, .max_ns = work.max_ns};
    std::vector<BinCount> bins = histograms.of(work.histogram);
    fill_quantiles(durations, bins);
    totals.add(kind, name, work.bytes, durations, bins);
    summary.work.push_back({kind, name, paths.valid(work.path), store::kNone, work.bytes, durations});
  }
  totals.finish();
}

}  // namespace gpuscope::analysis
