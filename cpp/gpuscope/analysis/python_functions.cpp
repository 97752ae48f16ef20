// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <tuple>
#include <unordered_map>

#include "gpuscope/analysis/instances.h"

namespace gpuscope::analysis {
namespace {

using store::kNone;
using store::Store;

enum class What : uint8_t { Function, Region, Call };

struct Item {
  uint16_t thread;
  What what;
  uint32_t row;
  int64_t start_ns;
  int64_t end_ns;
};

template <class Table, class Take>
void add(std::vector<Item>& items, const Table& table, What what, Take&& take) {
  for (uint32_t row = 0; row < table.size(); ++row) {
    if (take(row)) {
      items.push_back(
          {table.thread[row], what, row, table.start_ns[row], table.start_ns[row] + table.duration_ns[row]});
    }
  }
}

/// The items of all threads, by thread and start, outer before inner.
std::vector<Item> sorted_items(const Store& store) {
  std::vector<Item> items;
  items.reserve(store.python_function.size() + store.region.size() + store.api.size());
  add(items, store.python_function, What::Function, [](uint32_t) { return true; });
  add(items, store.region, What::Region, [&](uint32_t row) { return (store.region.flags[row] & store::kAsync) == 0; });
  add(items, store.api, What::Call, [](uint32_t) { return true; });
  std::ranges::sort(items, {}, [](const Item& item) {
    return std::tuple(item.thread, item.start_ns, -item.end_ns, item.what, item.row);
  });
  return items;
}

class Nester {
 public:
  explicit Nester(const Store& store) : store_(store) {
    const std::size_t functions = store.python_function.size();
    found_.self_cpu_ns.resize(functions);
    found_.total_cpu_ns.resize(functions);
    found_.caller.resize(functions, kNone);
    found_.region.resize(functions, kNone);
    found_.region_self_cpu_ns.resize(store.region.size());
    found_.region_caller.resize(store.region.size(), kNone);
    found_.call_caller.resize(store.api.size(), kNone);
  }

  void take(const Item& item) {
    // Items that end within this item do not contain it: a region begun by `__enter__` lasts longer.
    while (!open_.empty() && (open_.back().thread != item.thread || open_.back().end_ns <= item.start_ns ||
                              open_.back().end_ns < item.end_ns)) {
      leave(item);
    }
    const bool in_function = !open_.empty() && open_.back().what == What::Function;
    const uint32_t around = open_.empty() ? kNone : open_.back().row;
    if (!open_.empty()) {
      self_cpu_ns(open_.back()) -= item.end_ns - item.start_ns;
    }
    switch (item.what) {
      case What::Function: {
        (in_function ? found_.caller : found_.region)[item.row] = around;
        const bool is_outermost = open_names_[store_.python_function.name[item.row]]++ == 0;
        found_.total_cpu_ns[item.row] = is_outermost ? item.end_ns - item.start_ns : 0;
        break;
      }
      case What::Region:
        found_.region_caller[item.row] = in_function ? around : kNone;
        break;
      case What::Call:
        found_.call_caller[item.row] = in_function ? around : kNone;
        return;  // contains nothing
    }
    self_cpu_ns(item) += item.end_ns - item.start_ns;
    open_.push_back(item);
  }

  FunctionNesting finish() { return std::move(found_); }

 private:
  void leave(const Item& next) {
    const Item left = open_.back();
    open_.pop_back();
    if (left.what == What::Function) {
      --open_names_[store_.python_function.name[left.row]];
    }
    // An item that began inside and outlasts it takes the time from here on.
    if (left.thread == next.thread && left.end_ns > next.start_ns) {
      self_cpu_ns(left) -= left.end_ns - next.start_ns;
      if (!open_.empty()) {
        self_cpu_ns(open_.back()) += left.end_ns - next.start_ns;
      }
    }
  }

  /// Of a function or a region.
  int64_t& self_cpu_ns(const Item& item) {
    return (item.what == What::Function ? found_.self_cpu_ns : found_.region_self_cpu_ns)[item.row];
  }

  const Store& store_;
  FunctionNesting found_;
  std::vector<Item> open_;                             // outermost first
  std::unordered_map<uint32_t, uint32_t> open_names_;  // number of open functions per name
};

}  // namespace

FunctionNesting nest_functions(const Store& store) {
  Nester nester(store);
  for (const Item& item : sorted_items(store)) {
    nester.take(item);
  }
  return nester.finish();
}

}  // namespace gpuscope::analysis
