// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/xid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "fakes/nvml.h"

namespace gpuscope::nvml {
namespace {

driver::NvmlDevice device(uintptr_t number) { return reinterpret_cast<driver::NvmlDevice>(number + 1); }

/// The driver's side: sets, what is registered, and events that wait.
struct Events {
  static Events& instance() {
    static Events state;
    return state;
  }
  int create_code = 0;
  int register_code = 0;
  int wait_code = 0;  // once
  int alive = 0;
  std::set<driver::NvmlDevice> registered;
  std::deque<driver::NvmlEvent> waiting;

  void tell(uintptr_t gpu, unsigned long long xid) {
    waiting.push_back({.device = device(gpu), .type = 0x8, .data = xid});
  }
};

class XidReaders : public testing::Test {
 protected:
  XidReaders() {
    Events::instance() = {};
    nvml_.event_set_create = [](driver::NvmlEventSet* set) {
      *set = reinterpret_cast<driver::NvmlEventSet>(uintptr_t{1});
      Events::instance().alive += Events::instance().create_code == 0 ? 1 : 0;
      return Events::instance().create_code;
    };
    nvml_.event_set_free = [](driver::NvmlEventSet) {
      Events::instance().registered.clear();
      return --Events::instance().alive;
    };
    nvml_.register_events = [](driver::NvmlDevice device, unsigned long long types, driver::NvmlEventSet) {
      EXPECT_EQ(types, 0x8U);
      Events::instance().registered.insert(device);
      return Events::instance().register_code;
    };
    nvml_.event_set_wait = [](driver::NvmlEventSet, driver::NvmlEvent* event, unsigned) {
      Events& events = Events::instance();
      if (events.wait_code != 0) {
        return std::exchange(events.wait_code, 0);
      }
      if (events.waiting.empty()) {
        return 10;
      }
      *event = events.waiting.front();
      events.waiting.pop_front();
      return 0;
    };
  }

  Events& events_ = Events::instance();
  driver::Nvml nvml_ = fakes::Nvml::reset().table();
};

TEST_F(XidReaders, CountErrorsByGpuAndNumberAndSayWhenTheLastOneWas) {
  XidReader reader(nvml_);
  reader.watch(0, device(0));
  reader.watch(1, device(1));
  events_.tell(1, 31);
  reader.read(100);
  events_.tell(1, 31);
  events_.tell(1, 79);
  reader.read(200);
  EXPECT_TRUE(reader.counts(0).value().empty());
  const std::vector<XidCount> counts = reader.counts(1).value();
  ASSERT_EQ(counts.size(), 2U);
  EXPECT_EQ(std::tie(counts[0].xid, counts[0].count, counts[0].last_ns), std::make_tuple(31U, 2U, 200));
  EXPECT_EQ(std::tie(counts[1].xid, counts[1].count), std::make_tuple(79U, 1U));
  EXPECT_EQ(reader.why(1), "");
}

TEST_F(XidReaders, RegisterAGpuOnce) {
  XidReader reader(nvml_);
  reader.watch(0, device(0));
  events_.registered.clear();
  reader.watch(0, device(0));
  EXPECT_TRUE(events_.registered.empty());
}

TEST_F(XidReaders, TellOfAGpuThatIsLostAndRegisterItAgainWhenItComesBack) {
  XidReader reader(nvml_);
  reader.watch(0, device(0));
  events_.tell(0, 79);
  reader.read(1);
  reader.watch(0, nullptr);
  EXPECT_EQ(reader.counts(0).value().at(0).xid, 79U);
  events_.registered.clear();
  reader.watch(0, device(7));
  EXPECT_TRUE(events_.registered.contains(device(7)));
  events_.tell(7, 79);
  reader.read(2);
  EXPECT_EQ(reader.counts(0).value().at(0).count, 2U);
}

TEST_F(XidReaders, BeginAnewWithTheGpusThatAreThereWhenTheDriverGivesUpTheSet) {
  XidReader reader(nvml_);
  reader.watch(0, device(0));
  events_.tell(0, 13);
  reader.read(1);
  events_.wait_code = 15;
  reader.read(2);
  EXPECT_EQ(events_.alive, 0);
  reader.watch(0, device(0));
  events_.tell(0, 13);
  reader.read(3);
  EXPECT_EQ(events_.alive, 1);
  EXPECT_EQ(reader.counts(0).value().at(0).count, 2U);
}

TEST_F(XidReaders, SayWhyErrorsAreNotTold) {
  events_.register_code = fakes::Nvml::kNotSupported;
  XidReader reader(nvml_);
  reader.watch(0, device(0));
  EXPECT_EQ(reader.counts(0), std::nullopt);
  EXPECT_EQ(reader.why(0), "Not Supported");
  EXPECT_EQ(reader.why(1), "the GPU is not there");
}

TEST_F(XidReaders, SayWhyThereIsNothingInOldDriversOrWithoutASet) {
  events_.create_code = 4;
  {
    XidReader reader(nvml_);
    reader.watch(0, device(0));
    EXPECT_EQ(reader.why(0), "Unknown Error");
  }
  EXPECT_EQ(events_.alive, 0);
  nvml_.event_set_wait = nullptr;
  XidReader reader(nvml_);
  reader.watch(0, device(0));
  reader.read(1);
  EXPECT_THAT(reader.why(0), testing::HasSubstr("cannot tell"));
}

TEST_F(XidReaders, ComeToAnEndWhereErrorsNeverDo) {
  nvml_.event_set_wait = [](driver::NvmlEventSet, driver::NvmlEvent* event, unsigned) {
    *event = {.device = device(0), .type = 0x8, .data = 94};
    return 0;
  };
  XidReader reader(nvml_);
  reader.watch(0, device(0));
  reader.read(1);
  EXPECT_EQ(reader.counts(0).value().at(0).count, 256U);
}

TEST_F(XidReaders, LeaveOtherEventsAndGpusThatNobodyAskedFor) {
  XidReader reader(nvml_);
  reader.watch(0, device(0));
  events_.waiting.push_back({.device = device(0), .type = 0x1, .data = 5});
  events_.tell(3, 79);
  reader.read(1);
  EXPECT_TRUE(reader.counts(0).value().empty());
}

TEST_F(XidReaders, FreeTheirSet) {
  { XidReader(nvml_).watch(0, device(0)); }
  EXPECT_EQ(events_.alive, 0);
}

}  // namespace
}  // namespace gpuscope::nvml
