// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/clock_map.h"

#include <cstdlib>

#include "gpuscope/base/clock.h"

namespace gpuscope::session {
namespace {

// Two clocks of one epoch differ by the wall clock's slewing since start; different epochs differ by far more.
constexpr int64_t kSameEpochNs = 1'000'000;

}  // namespace

ClockMap ClockMap::detect(const driver::Cupti& cupti) {
  const base::Clock& clock = base::Clock::process();
  uint64_t stamp = 0;
  const uint64_t before = base::ticks();
  if (cupti.get_timestamp == nullptr || cupti.get_timestamp(&stamp) != driver::kCuptiSuccess) {
    return {};
  }
  const uint64_t after = base::ticks();
  const int64_t now_ns = clock.to_ns(before + (after - before) / 2);
  if (std::llabs(static_cast<int64_t>(stamp) - now_ns) < kSameEpochNs) {
    return {};
  }
  if (std::llabs(clock.to_ns(stamp) - now_ns) < kSameEpochNs) {  // what torch.profiler registers
    return {[&clock](uint64_t at) { return clock.to_ns(at); },
            "another CUPTI client stamps records with raw counter ticks"};
  }
  const int64_t offset_ns = now_ns - static_cast<int64_t>(stamp);
  return {[offset_ns](uint64_t at) { return static_cast<int64_t>(at) + offset_ns; },
          "another CUPTI client stamps records with a clock of its own, read as ns from a shifted epoch"};
}

}  // namespace gpuscope::session
