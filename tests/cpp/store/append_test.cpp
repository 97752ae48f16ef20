// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "fakes/stores.h"
#include "gpuscope/store/schema.h"
#include "gpuscope/store/store.h"
#include "gpuscope/store/values.h"

namespace gpuscope::store {
namespace {

using Random = std::mt19937;

bool is_special(const TableInfo& table) { return table.role != Role::Event && table.role != Role::Dictionary; }

std::size_t rows_of(const std::map<std::string, std::size_t, std::less<>>& sizes, Target target) {
  switch (target) {
#define GPUSCOPE_SIZE(Type, table, ...) \
  case Target::Type:                    \
    return sizes.at(#table);
    GPUSCOPE_TABLES(GPUSCOPE_SIZE)
#undef GPUSCOPE_SIZE
    default:
      return 40;  // strings
  }
}

/// Any number of rows in every table but the totals', each reference to a row that is there or to none.
Store& fill(Store& store, Random& random) {
  const auto below = [&](std::size_t limit) { return random() % limit; };
  for (int text = 1; text < 40; ++text) {
    store.strings.intern("text " + std::to_string(below(60)) + "/" + std::to_string(text));
  }
  std::map<std::string, std::size_t, std::less<>> sizes;
  for (const TableInfo& table : kTables) {
    sizes[std::string(table.name)] = is_special(table) ? 0 : 1 + below(12);
  }
  store.each_table([&](auto& rows) {
    const std::size_t size = sizes.find(rows.kInfo.name)->second;
    rows.each_column([&](const ColumnInfo& column, auto& values) {
      using T = typename std::remove_cvref_t<decltype(values)>::value_type;
      const Meaning& reference = column.meaning;
      for (std::size_t row = 0; row < size; ++row) {
        const std::size_t limit = reference.target == rows.kInfo.target ? row : rows_of(sizes, reference.target);
        if (reference.target == Target::Nothing) {
          values.push_back(static_cast<T>(below(4)));
        } else if (limit == 0 || (reference.optional && below(4) == 0)) {
          values.push_back(static_cast<T>(kNone));
        } else {
          values.push_back(static_cast<T>(below(limit)));
        }
      }
    });
  });
  const std::size_t tables[] = {0, store.kernel.size(), store.memcpy.size(), store.memset.size()};
  for (std::size_t row = 0; row < store.graph_node.size(); ++row) {
    const std::size_t kind = 1 + below(3);
    store.graph_node.kind[row] = static_cast<uint16_t>(kind);
    store.graph_node.event[row] = static_cast<uint32_t>(below(tables[kind]));
  }
  for (std::size_t row = 0; row < store.path.size(); ++row) {
    const uint32_t parent = store.path.parent[row];
    store.path.depth[row] = parent == kNone ? 0 : store.path.depth[parent] + 1;
  }
  return store;
}

std::string describe(const Store& store, std::string_view wanted, std::size_t row);

std::string describe(const Store& store, Target target, std::size_t row) {
  if (row == kNone) {
    return "-";
  }
  switch (target) {
#define GPUSCOPE_DESCRIBE(Type, table, ...) \
  case Target::Type:                        \
    return describe(store, #table, row);
    GPUSCOPE_TABLES(GPUSCOPE_DESCRIBE)
#undef GPUSCOPE_DESCRIBE
    case Target::Strings:
      return "'" + std::string(store.strings[static_cast<uint32_t>(row)]) + "'";
    default:
      return std::to_string(row);
  }
}

/// A row with everything that it refers to, however far.
std::string describe(const Store& store, std::string_view wanted, std::size_t row) {
  std::string text;
  store.with_table(wanted, [&](const auto& rows) {
    const std::string_view table = rows.kInfo.name;
    EXPECT_LT(row, rows.size()) << table;
    rows.each_column([&](const ColumnInfo& column, const auto& values) {
      Target target = column.meaning.target;
      if (column.name == "event") {
        const Target works[] = {Target::Nothing, Target::Kernels, Target::Memcpys, Target::Memsets};
        target = works[store.graph_node.kind[row]];
      } else if (table == "payload" && column.name == "value" && store.payload.type[row] == 3) {
        target = Target::Strings;
      }
      text += std::string(column.name) + "=" + describe(store, target, static_cast<std::size_t>(values[row])) + " ";
    });
  });
  return "{" + text + "}";
}

using Contents = std::map<std::string, std::multiset<std::string>>;

void collect(const Store& store, Contents& contents) {
  store.each_table([&](const auto& rows) {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      contents[std::string(rows.kInfo.name)].insert(describe(store, rows.kInfo.name, row));
    }
  });
}

bool is_dictionary(std::string_view name) {
  return std::ranges::find(kTables, name, &TableInfo::name)->role == Role::Dictionary;
}

class RandomStores : public testing::TestWithParam<uint32_t> {};

TEST_P(RandomStores, KeepEveryRowAndNameWhenOneIsAppendedToAnother) {
  Random random(GetParam());
  Store stores[3];
  Store all;
  Contents expected;
  for (Store& store : stores) {
    collect(fill(store, random), expected);
    append(all, store);
  }
  Contents found;
  collect(all, found);
  for (auto& [table, rows] : expected) {
    if (is_dictionary(table)) {
      const std::set<std::string> each(rows.begin(), rows.end());
      EXPECT_EQ(found[table], std::multiset<std::string>(each.begin(), each.end())) << table;
    } else {
      EXPECT_EQ(found[table], rows) << table;
    }
  }
  EXPECT_EQ(find_bad_reference(all), "");
}

TEST_P(RandomStores, StayAsTheyAreWhenTheyAreAppendedToNothing) {
  Random random(GetParam());
  Store store;
  Store copy;
  append(copy, fill(store, random));
  store.each_table([&](const auto& rows) {
    const std::string_view table = rows.kInfo.name;
    if (is_dictionary(table)) {
      return;  // without doubles
    }
    for (std::size_t row = 0; row < rows.size(); ++row) {
      ASSERT_EQ(describe(copy, table, row), describe(store, table, row)) << table;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomStores, testing::Range(0U, 40U));

TEST(Append, AddsNoDictionaryRowTwice) {
  Store all;
  append(all, *fakes::make_small_store());
  append(all, *fakes::make_small_store());
  const auto once = fakes::make_small_store();
  EXPECT_EQ(all.path.size(), once->path.size());
  EXPECT_EQ(all.variant.size(), once->variant.size());
  EXPECT_EQ(all.track.size(), once->track.size());
  EXPECT_EQ(all.device.size(), once->device.size());
  EXPECT_EQ(all.kernel.size(), 2 * once->kernel.size());
}

TEST(Append, SumsTotalsOfOnePathWithTheirHistograms) {
  const auto make = [](int64_t duration_ns, uint64_t count) {
    fakes::StoreBuilder make;
    const uint32_t path = make.path("step");
    make.store().region_total.append(
        {path, 7, count, duration_ns * static_cast<int64_t>(count), 1, duration_ns, duration_ns, 0});
    make.store().histogram.append({7, histogram_bin(duration_ns), count});
    make.store().work_total.append({path, make.id("gemm"), kNone, 1, count, 10, duration_ns, duration_ns, duration_ns});
    return make.take();
  };
  Store all;
  append(all, *make(100, 3));
  append(all, *make(900, 2));
  append(all, *make(100, 1));
  ASSERT_EQ(all.region_total.size(), 1U);
  EXPECT_EQ(all.region_total.count[0], 6U);
  EXPECT_EQ(all.region_total.total_ns[0], 2200);
  EXPECT_EQ(all.region_total.child_ns[0], 3);
  EXPECT_EQ(all.region_total.min_ns[0], 100);
  EXPECT_EQ(all.region_total.max_ns[0], 900);
  ASSERT_EQ(all.histogram.size(), 2U);
  EXPECT_EQ(all.histogram.count[0], 4U);
  EXPECT_EQ(all.histogram.count[1], 2U);
  EXPECT_EQ(all.histogram.histogram[0], all.region_total.histogram[0]);
  EXPECT_EQ(all.histogram.histogram[1], all.region_total.histogram[0]);
  ASSERT_EQ(all.work_total.size(), 1U);
  EXPECT_EQ(all.work_total.bytes[0], 30U);
  EXPECT_EQ(all.work_total.histogram[0], kNone);
}

TEST(Append, KeepsTotalsOfDifferentPathsApart) {
  const auto make = [](const char* name) {
    fakes::StoreBuilder make;
    make.store().region_total.append({make.path(name), 0, 1, 5, 0, 5, 5, 0});
    make.store().histogram.append({0, 5, 1});
    return make.take();
  };
  Store all;
  append(all, *make("forward"));
  append(all, *make("backward"));
  ASSERT_EQ(all.region_total.size(), 2U);
  EXPECT_NE(all.region_total.histogram[0], all.region_total.histogram[1]);
  EXPECT_EQ(all.histogram.size(), 2U);
}

TEST(Append, AddsUpWhatTheAuditCounts) {
  const auto make = [](int64_t start_ns, const char* notes, const char* id) {
    auto store = std::make_unique<Store>();
    store->set_info("audit.launches", "10");
    store->set_info("audit.decode_lag_max_ns", std::to_string(start_ns));
    store->set_info("session.start_ns", std::to_string(start_ns));
    store->set_info("session.stop_ns", std::to_string(start_ns + 100));
    store->set_info("session.notes", notes);
    store->set_info("trace.id", id);
    return store;
  };
  Store all;
  append(all, *make(1000, "a\n", "first"));
  EXPECT_EQ(all.find_info("session.recorded_ns"), "");
  append(all, *make(5000, "a\nb", "second"));
  append(all, *make(9000, "c", "third"));
  EXPECT_EQ(all.find_info("audit.launches"), "30");
  EXPECT_EQ(all.find_info("audit.decode_lag_max_ns"), "9000");
  EXPECT_EQ(all.find_info("session.start_ns"), "1000");
  EXPECT_EQ(all.find_info("session.stop_ns"), "9100");
  EXPECT_EQ(all.find_info("session.recorded_ns"), "300");
  EXPECT_EQ(all.find_info("session.notes"), "a\nb\nc");
  EXPECT_EQ(all.find_info("trace.id"), "third");
}

TEST(Append, KeepsTheLargestOfWhatOneOfSomethingTook) {
  const auto make = [](const char* key, const char* value) {
    auto store = std::make_unique<Store>();
    store->set_info(key, value);
    return store;
  };
  for (const char* key : {"audit.launch_cost_ns", "audit.counter_interval_ns", "audit.device_samples_longest_ns",
                          "audit.flush_max_ns", "audit.calibration_ns"}) {
    Store all;
    append(all, *make(key, "70"));
    append(all, *make(key, "900"));
    append(all, *make(key, "80"));
    EXPECT_EQ(all.find_info(key), "900") << key;
  }
}

TEST(Append, LetsTheLastRowStandForTracksThatFindNoRoom) {
  Store first;
  Store second;
  for (uint32_t stream = 0; stream < 65536; ++stream) {
    first.track.append({0, 0, stream});
  }
  second.track.append({0, 0, 70'000});
  second.track.append({0, 0, 3});
  second.kernel.append({0, 1, 1, kNone, kNone, 0, 0});
  second.kernel.append({0, 1, 1, kNone, kNone, 1, 0});
  append(first, second);
  EXPECT_EQ(first.track.size(), 65536U);
  EXPECT_EQ(first.kernel.track[0], 65535);
  EXPECT_EQ(first.kernel.track[1], 3);
}

}  // namespace
}  // namespace gpuscope::store
