// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/correlations.h"

#include <gtest/gtest.h>

#include "gpuscope/store/schema.h"

namespace gpuscope::attribution {
namespace {

using Awaits = Correlations::Awaits;

uint32_t reference_of(const Correlations& correlations, uint32_t id) {
  return Correlations::decode(correlations.find(id));
}

TEST(Correlations, KnowNothingAtFirst) {
  const Correlations correlations;
  for (const uint32_t id : {0U, 1U, 4096U, UINT32_MAX}) {
    EXPECT_EQ(correlations.find(id), Correlations::kUnknown);
  }
}

TEST(Correlations, GiveBackWhatWasSet) {
  Correlations correlations;
  for (uint32_t id = 0; id < 100'000; ++id) {
    correlations.set(id, Correlations::encode(id * 3), Awaits::Kernel);
  }
  for (uint32_t id = 0; id < 100'000; ++id) {
    ASSERT_EQ(reference_of(correlations, id), id * 3);
  }
}

TEST(Correlations, TellNeighboursOfASetOneApart) {
  Correlations correlations;
  correlations.set(5000, Correlations::encode(1), Awaits::Nothing);
  EXPECT_EQ(correlations.find(4999), Correlations::kUnknown);
  EXPECT_EQ(correlations.find(5001), Correlations::kUnknown);
}

TEST(Correlations, CodeReferencesBelowTheReservedValues) {
  for (const uint32_t reference : {0U, 1U, Correlations::kMaxReference}) {
    EXPECT_EQ(Correlations::decode(Correlations::encode(reference)), reference);
  }
  EXPECT_EQ(Correlations::encode(Correlations::kMaxReference + 1), Correlations::kNowhere);
  EXPECT_EQ(Correlations::encode(store::kNone), Correlations::kNowhere);
}

TEST(Correlations, AreAwaitedOnce) {
  Correlations correlations;
  for (const Awaits awaited : {Awaits::Kernel, Awaits::Copy, Awaits::Graph}) {
    correlations.set(7, Correlations::encode(Correlations::kMaxReference), awaited);
    EXPECT_EQ(correlations.take(7).awaited, awaited);
    EXPECT_EQ(correlations.take(7).awaited, Awaits::Nothing);
    EXPECT_EQ(reference_of(correlations, 7), Correlations::kMaxReference);
  }
  EXPECT_EQ(correlations.take(8).awaited, Awaits::Nothing);
}

TEST(Correlations, CountWhatIsAwaited) {
  Correlations correlations;
  for (uint32_t id = 1; id <= 5; ++id) {
    correlations.set(id, Correlations::kNowhere, Awaits::Kernel);
  }
  correlations.set(6, Correlations::kNowhere, Awaits::Graph);
  correlations.set(7, Correlations::kNowhere, Awaits::Copy);
  correlations.set(7, Correlations::kNowhere, Awaits::Graph);
  correlations.take(1);
  correlations.take(1);
  EXPECT_EQ(correlations.awaited(Awaits::Kernel), 4U);
  EXPECT_EQ(correlations.awaited(Awaits::Graph), 2U);
  EXPECT_EQ(correlations.awaited(Awaits::Copy), 0U);
  correlations.set(2 + (1U << 21), Correlations::kNowhere, Awaits::Kernel);  // where the first ids were
  EXPECT_EQ(correlations.awaited(Awaits::Kernel), 1U);
  EXPECT_EQ(correlations.awaited(Awaits::Graph), 0U);
  correlations.end_window();
  EXPECT_EQ(correlations.awaited(Awaits::Kernel), 0U);
}

TEST(Correlations, ForgetIdsWhoseTurnCameRoundAgain) {
  Correlations correlations;
  constexpr uint32_t kRound = 4096 * 512;
  correlations.set(10, Correlations::encode(1), Awaits::Kernel);
  correlations.set(10 + kRound, Correlations::encode(2), Awaits::Nothing);
  EXPECT_EQ(correlations.find(10), Correlations::kUnknown);
  EXPECT_EQ(reference_of(correlations, 10 + kRound), 2U);
  EXPECT_EQ(correlations.find(11 + kRound), Correlations::kUnknown);
}

TEST(Correlations, GoOnWhenIdsWrap) {
  Correlations correlations;
  for (uint32_t id = UINT32_MAX - 10'000; id != 10'000; ++id) {
    correlations.set(id, Correlations::encode(id & 0xFFFF), Awaits::Nothing);
  }
  for (uint32_t id = UINT32_MAX - 10'000; id != 10'000; ++id) {
    ASSERT_EQ(reference_of(correlations, id), id & 0xFFFF);
  }
}

TEST(Correlations, BelongToNoWindowOnceItHasEnded) {
  Correlations correlations;
  correlations.set(1, Correlations::encode(5), Awaits::Kernel);
  correlations.set(2, Correlations::kNowhere, Awaits::Copy);
  correlations.end_window();
  EXPECT_EQ(correlations.find(1), Correlations::kOutside);
  EXPECT_EQ(correlations.find(2), Correlations::kOutside);
  EXPECT_EQ(correlations.find(3), Correlations::kUnknown);
  EXPECT_EQ(correlations.take(1).awaited, Awaits::Nothing);
}

TEST(Correlations, ChangeReferencesAndNothingElse) {
  Correlations correlations;
  correlations.set(1, Correlations::encode(5), Awaits::Kernel);
  correlations.set(2, Correlations::encode(6), Awaits::Copy);
  correlations.set(3, Correlations::kNowhere, Awaits::Nothing);
  correlations.set(4, Correlations::kOutside, Awaits::Nothing);
  correlations.change_references([](uint32_t reference) { return reference == 5 ? 50 : store::kNone; });
  EXPECT_EQ(reference_of(correlations, 1), 50U);
  EXPECT_EQ(correlations.find(2), Correlations::kNowhere);
  EXPECT_EQ(correlations.find(3), Correlations::kNowhere);
  EXPECT_EQ(correlations.find(4), Correlations::kOutside);
  EXPECT_EQ(correlations.take(1).awaited, Awaits::Kernel);
  EXPECT_EQ(correlations.take(2).awaited, Awaits::Copy);
}

}  // namespace
}  // namespace gpuscope::attribution
