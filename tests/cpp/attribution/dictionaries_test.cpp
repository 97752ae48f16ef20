// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/dictionaries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "fakes/dictionaries.h"
#include "gpuscope/base/strings.h"

// A test names only the fields that it is about; the others are 0.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace gpuscope::attribution {
namespace {

using store::kNone;

TEST(Dictionaries, GiveOneIdToOneThing) {
  Dictionaries dictionaries;
  const uint32_t root = dictionaries.path(kNone, dictionaries.string("root"));
  const uint32_t child = dictionaries.path(root, dictionaries.string("child"));
  EXPECT_EQ(dictionaries.path(kNone, dictionaries.string("root")), root);
  EXPECT_EQ(dictionaries.path(root, dictionaries.string("child")), child);
  EXPECT_NE(dictionaries.path(kNone, dictionaries.string("child")), child);
  EXPECT_EQ(dictionaries.track(0, 1, 7), dictionaries.track(0, 1, 7));
  EXPECT_EQ(dictionaries.variant({.name = 3}), dictionaries.variant({.name = 3}));
}

TEST(Dictionaries, TellDevicesContextsAndStreamsApart) {
  Dictionaries dictionaries;
  std::set<uint16_t> tracks;
  for (uint32_t device = 0; device < 8; ++device) {
    for (uint32_t context = 1; context < 9; ++context) {
      for (uint32_t stream = 0; stream < 16; ++stream) {
        tracks.insert(dictionaries.track(device, context, stream));
      }
    }
  }
  EXPECT_EQ(tracks.size(), 8U * 8 * 16);
}

TEST(Dictionaries, TellConfigurationsApartByEveryField) {
  Dictionaries dictionaries;
  std::set<uint32_t> variants{dictionaries.variant({})};
  for (std::size_t field = 0; field < sizeof(store::Variants::Row) / sizeof(uint32_t); ++field) {
    store::Variants::Row row{};
    reinterpret_cast<uint32_t*>(&row)[field] = 1;
    variants.insert(dictionaries.variant(row));
  }
  EXPECT_EQ(variants.size(), 15U);
}

TEST(Dictionaries, NamePathsFromTheirRoots) {
  Dictionaries dictionaries;
  uint32_t path = kNone;
  for (uint32_t depth = 0; depth < 3; ++depth) {
    path = dictionaries.path(path, dictionaries.string(std::to_string(depth)));
  }
  const store::Store store = fakes::copy_of(dictionaries);
  EXPECT_EQ(store.path.depth[path], 2U);
  EXPECT_EQ(store.strings[store.path.name[store.path.parent[path]]], "1");
}

TEST(Dictionaries, ReadANameAgainOnceItsPointersAreForgotten) {
  Dictionaries dictionaries;
  std::string name = "first";
  const uint32_t first = dictionaries.pinned(name.c_str());
  name.replace(0, 5, "other");
  EXPECT_EQ(dictionaries.pinned(name.c_str()), first);
  dictionaries.forget_pointers();
  EXPECT_EQ(dictionaries.text(dictionaries.pinned(name.c_str())), "other");
}

TEST(Dictionaries, NameAKernelWithoutAName) {
  Dictionaries dictionaries;
  EXPECT_EQ(dictionaries.text(dictionaries.pinned(nullptr)), "(no name)");
}

TEST(Dictionaries, TellFailedAndCapturedCallsApart) {
  Dictionaries dictionaries;
  std::set<uint16_t> calls;
  for (const bool captured : {false, true}) {
    for (const int32_t result : {0, 1, -1}) {
      calls.insert(dictionaries.call("cuLaunchKernel", store::CallKind::Launch, captured, result, 307));
    }
  }
  EXPECT_EQ(calls.size(), 6U);
  EXPECT_EQ(dictionaries.call("cuLaunchKernel", store::CallKind::Launch, false, 0, 307),
            dictionaries.call("cuLaunchKernel", store::CallKind::Launch, false, 0, 307));
}

TEST(Dictionaries, KnowANameByIdsOfSeveralPeriods) {
  base::Names& names = base::Names::process();
  Dictionaries dictionaries;
  const uint32_t first = names.intern_for_period("step");
  const uint32_t kept = names.intern("step");
  const uint32_t string = dictionaries.region_name(first);
  names.begin_period();
  const uint32_t second = names.intern_for_period("step");
  EXPECT_NE(first, second);
  EXPECT_EQ(dictionaries.region_name(second), string);
  EXPECT_EQ(dictionaries.region_name(first), string);
  EXPECT_EQ(dictionaries.region_name(kept), string);
}

TEST(Dictionaries, RefuseNewNamesWhenTheyAreToldTo) {
  Dictionaries dictionaries;
  const uint32_t known = dictionaries.path(kNone, dictionaries.string("known"));
  dictionaries.refuse_more(true);
  EXPECT_EQ(dictionaries.path(kNone, dictionaries.string("known")), known);
  EXPECT_FALSE(dictionaries.is_unnamed(dictionaries.path_name(known)));
  const uint32_t refused = dictionaries.path(known, dictionaries.string("new"));
  EXPECT_EQ(dictionaries.path(kNone, dictionaries.string("another")), refused);
  EXPECT_EQ(dictionaries.text(dictionaries.path_name(refused)), "(more names)");
  EXPECT_TRUE(dictionaries.is_unnamed(dictionaries.path_name(refused)));
}

TEST(Renewal, KeepsWhatIsReferredToAndAllThatItRefersTo) {
  Dictionaries old;
  old.path(kNone, old.string("dropped"));
  const uint32_t outer = old.path(kNone, old.string("outer"));
  const uint32_t inner = old.path(outer, old.string("inner"));
  old.variant({.name = old.string("dropped kernel")});
  const uint32_t variant = old.variant({.name = old.string("kernel"), .grid_x = 4});
  old.call("cuDropped", store::CallKind::Other, false, 0, 1);
  const uint16_t call = old.call("cuLaunchKernel", store::CallKind::Launch, false, 0, 307);
  old.thread(1, "dropped");
  const uint16_t thread = old.thread(2, "worker");
  old.track(0, 1, 7);
  const uint16_t track = old.track(0, 1, 9);
  using store::Target;
  Renewal renewal(old);
  renewal.keep(Target::Paths, inner);
  renewal.keep(Target::Variants, variant);
  renewal.keep(Target::Calls, call);
  renewal.keep(Target::Threads, thread);
  renewal.keep(Target::Tracks, track);
  renewal.keep(Target::Paths, kNone);
  Dictionaries fresh = renewal.take();
  EXPECT_EQ(renewal.find(Target::Paths, inner), 1U);
  EXPECT_EQ(renewal.find(Target::Paths, kNone), kNone);
  EXPECT_EQ(fresh.path(fresh.path(kNone, fresh.string("outer")), fresh.string("inner")), 1U);
  EXPECT_EQ(fresh.variant({.name = fresh.string("kernel"), .grid_x = 4}), renewal.find(Target::Variants, variant));
  EXPECT_EQ(fresh.call("cuLaunchKernel", store::CallKind::Launch, false, 0, 307), renewal.find(Target::Calls, call));
  EXPECT_EQ(fresh.track(0, 1, 9), renewal.find(Target::Tracks, track));
  const store::Store store = fakes::copy_of(fresh);
  EXPECT_EQ(store.path.size(), 2U);
  EXPECT_EQ(store.variant.size(), 1U);
  EXPECT_EQ(store.call.size(), 1U);
  EXPECT_EQ(store.thread.size(), 1U);
  EXPECT_EQ(store.track.size(), 1U);
  EXPECT_EQ(store.strings[store.thread.name[renewal.find(Target::Threads, thread)]], "worker");
  EXPECT_EQ(store.strings.size(), 6U) << "two regions, a kernel, a call, a thread, and nothing";
}

TEST(Dictionaries, StopGrowingWithEndlessNames) {
  Dictionaries dictionaries;
  const uint32_t known = dictionaries.string("known");
  for (uint32_t number = 0; number < (1U << 20) + 100; ++number) {
    dictionaries.string(std::to_string(number));
  }
  EXPECT_EQ(dictionaries.text(dictionaries.string("one more")), "(more names)");
  EXPECT_EQ(dictionaries.string("known"), known);
}

TEST(Dictionaries, StopGrowingWithEndlessConfigurations) {
  Dictionaries dictionaries;
  const uint32_t known = dictionaries.variant({.name = 5, .grid_x = 7});
  for (uint32_t grid = 0; grid < (1U << 20) + 100; ++grid) {
    dictionaries.variant({.name = 1, .grid_x = grid});
  }
  const uint32_t folded = dictionaries.variant({.name = 9, .grid_x = 1});
  EXPECT_EQ(dictionaries.variant({.name = 9, .grid_x = 2}), folded);
  EXPECT_EQ(dictionaries.variant({.name = 5, .grid_x = 7}), known);
}

TEST(Dictionaries, StopGrowingWithEndlessThreads) {
  Dictionaries dictionaries;
  for (uint64_t thread = 0; thread < 70'000; ++thread) {
    dictionaries.thread(thread, "worker");
  }
  const store::Store store = fakes::copy_of(dictionaries);
  ASSERT_EQ(store.thread.size(), 65'536U);
  EXPECT_EQ(store.thread.system_id[65'534], 65'534U);
  EXPECT_EQ(store.strings[store.thread.name[65'535]], "(more threads)");
}

TEST(Dictionaries, StopGrowingWithEndlessStreams) {
  Dictionaries dictionaries;
  EXPECT_FALSE(dictionaries.is_short_of_ids());
  for (uint32_t stream = 0; stream < 70'000; ++stream) {
    EXPECT_EQ(dictionaries.track(0, 1, stream), std::min(stream, 65'535U));
  }
  EXPECT_TRUE(dictionaries.is_short_of_ids());
  EXPECT_EQ(dictionaries.track(0, 1, 7), 7U);
  const store::Store store = fakes::copy_of(dictionaries);
  ASSERT_EQ(store.track.size(), 65'536U);
  EXPECT_EQ(store.track.stream[65'534], 65'534U);
  EXPECT_EQ(store.track.stream[65'535], store::kNone);
}

}  // namespace
}  // namespace gpuscope::attribution
