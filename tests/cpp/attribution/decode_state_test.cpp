// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/decode_state.h"

#include <gtest/gtest.h>

#include <thread>

namespace gpuscope::attribution {
namespace {

TEST(Switches, AreOnUntilTheyAreTurned) {
  SwitchTimes unused;
  EXPECT_FALSE(unused.off_at(0));
  unused.turn(true, 5);
  EXPECT_FALSE(unused.off_at(10));
  EXPECT_EQ(unused.off_until(100).times, 0U);
}

TEST(Switches, AreOffFromTheMomentOfTheTurnUntilThatOfTheNext) {
  SwitchTimes one;
  one.turn(false, 10);
  EXPECT_FALSE(one.off_at(9));
  EXPECT_TRUE(one.off_at(10));
  EXPECT_TRUE(one.off_at(1'000'000));
  one.turn(true, 20);
  EXPECT_TRUE(one.off_at(19));
  EXPECT_FALSE(one.off_at(20));
}

TEST(Switches, TakeASecondTurnToTheSameSideForOne) {
  SwitchTimes one;
  one.turn(false, 10);
  one.turn(false, 15);
  one.turn(true, 20);
  one.turn(true, 25);
  EXPECT_FALSE(one.off_at(22));
  EXPECT_EQ(one.off_until(100).times, 1U);
  EXPECT_EQ(one.off_until(100).duration_ns, 10);
}

TEST(Switches, CountTheTimeOffUpToTheEndOfTheWindow) {
  SwitchTimes one;
  one.turn(false, 10);
  one.turn(true, 20);
  one.turn(false, 30);
  EXPECT_EQ(one.off_until(35).times, 2U);
  EXPECT_EQ(one.off_until(35).duration_ns, 15);
  EXPECT_EQ(one.off_until(25).times, 1U);
}

TEST(Switches, KnowEveryOneOfManyTurns) {
  SwitchTimes many;
  for (int64_t turn = 0; turn < 10'000; ++turn) {
    many.turn(turn % 2 == 1, turn * 10);
  }
  for (int64_t turn = 0; turn < 10'000; ++turn) {
    ASSERT_EQ(many.off_at(turn * 10 + 5), turn % 2 == 0) << turn;
  }
  EXPECT_EQ(many.off_until(INT64_MAX).times, 5000U);
  many.reset();
  EXPECT_FALSE(many.off_at(5));
}

TEST(Switches, CanBeAskedWhileTheyTurn) {
  SwitchTimes shared;
  std::atomic<bool> done{false};
  std::thread asks([&] {
    while (!done.load()) {
      const bool turned = shared.off_at(15);  // until it is turned again, at 10
      EXPECT_TRUE(shared.off_at(5) || !turned);
    }
  });
  for (int64_t turn = 0; turn < 50'000; ++turn) {
    shared.turn(turn % 2 == 1, turn * 10);
  }
  done.store(true);
  asks.join();
}

}  // namespace
}  // namespace gpuscope::attribution
