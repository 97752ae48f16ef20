// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/timing/region_timer.h"

#include <bit>

#include "gpuscope/timing/context.h"

namespace gpuscope::timing {
namespace {

constexpr double kNsPerMs = 1e6;

}  // namespace

std::atomic<RegionTimer*>& RegionTimer::current() noexcept {
  static std::atomic<RegionTimer*> timer{nullptr};
  return timer;
}

driver::CuContext RegionTimer::recordable() const noexcept {
  driver::CuContext context = nullptr;
  int capturing = 0;
  const bool may_record = cuda_.context_get_current(&context) == 0 && context != nullptr &&
                          cuda_.stream_is_capturing(nullptr, &capturing) == 0 && capturing == 0;
  return may_record ? context : nullptr;
}

uint32_t RegionTimer::claim(driver::CuContext context, bool from_others) noexcept {
  for (uint32_t word = 0; word < used_.size(); ++word) {
    uint64_t passed = 0;  // pairs of other contexts
    uint64_t used = used_[word].load(std::memory_order_relaxed);
    while ((used | passed) != UINT64_MAX) {
      const auto bit = static_cast<uint32_t>(std::countr_one(used | passed));
      if (!used_[word].compare_exchange_weak(used, used | (uint64_t{1} << bit), std::memory_order_acquire)) {
        continue;
      }
      const uint32_t index = word * 64 + bit;
      Pair& pair = pairs_[index];
      if (pair.context == nullptr || pair.context == context) {
        return index;
      }
      if (from_others) {  // others' context may be gone, with the events
        pair = {};
        return index;
      }
      passed |= uint64_t{1} << bit;
      give_back(index);
      used = used_[word].load(std::memory_order_relaxed);
    }
  }
  return kNoPair;
}

uint32_t RegionTimer::begin() noexcept {
  const driver::CuContext context = recordable();
  if (context == nullptr) {
    return kNoPair;
  }
  uint32_t index = claim(context, false);
  if (index == kNoPair) {
    index = claim(context, true);
  }
  if (index == kNoPair) {
    return kNoPair;
  }
  Pair& pair = pairs_[index];
  pair.context = context;
  const RelaxedCapture relaxed(cuda_);
  if ((pair.start == nullptr && cuda_.event_create(&pair.start, 0) != 0) ||
      (pair.stop == nullptr && cuda_.event_create(&pair.stop, 0) != 0)) {
    give_back(index);
    return kNoPair;
  }
  if (cuda_.event_record(pair.start, nullptr) != 0) {
    pair = {};  // of a destroyed context, whose address another context has
    give_back(index);
    return kNoPair;
  }
  return index;
}

bool RegionTimer::end(uint32_t pair) noexcept {
  if (recordable() != nullptr && cuda_.event_record(pairs_[pair].stop, nullptr) == 0) {
    return true;
  }
  give_back(pair);
  return false;
}

void RegionTimer::take_all_back() noexcept {
  for (std::atomic<uint64_t>& used : used_) {
    used.store(0, std::memory_order_release);
  }
}

RegionTimer::Elapsed RegionTimer::read(uint32_t pair) noexcept {
  const driver::CuResult state = cuda_.event_query(pairs_[pair].stop);
  if (state == driver::kNotReady) {
    return {State::Running, 0};
  }
  float ms = 0;
  const bool done = state == 0 && cuda_.event_elapsed_time(&ms, pairs_[pair].start, pairs_[pair].stop) == 0;
  give_back(pair);
  return done ? Elapsed{State::Done, static_cast<int64_t>(static_cast<double>(ms) * kNsPerMs)}
              : Elapsed{State::Void, 0};
}

void RegionTimer::give_back(uint32_t pair) noexcept {
  used_[pair / 64].fetch_and(~(uint64_t{1} << (pair % 64)), std::memory_order_release);
}

}  // namespace gpuscope::timing
