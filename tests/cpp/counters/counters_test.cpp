// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fakes/profilers.h"
#include "gpuscope/counters/metrics.h"
#include "gpuscope/counters/pm_sampling.h"
#include "gpuscope/counters/range_profiler.h"

namespace gpuscope::counters {
namespace {

using fakes::Profilers;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::string> kThree = {"sm__cycles.sum", "dram__bytes.sum", "lts__sectors.sum"};

template <class Error, class F>
std::string message_of(F&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

Choice choose(Profilers& fake, const std::vector<std::string>& wanted) {
  return choose_single_pass(fake.table(), Collection::Sampling, "FAKE100", {}, wanted);
}

TEST(Metrics, AreTakenInTurnAsLongAsTheyFitIntoOnePass) {
  Profilers& fake = Profilers::reset();
  fake.counters["sm__cycles.sum"].share = 0.6;
  fake.counters["dram__bytes.sum"].share = 0.5;
  const Choice choice = choose(fake, kThree);
  EXPECT_THAT(choice.metrics, ElementsAre("sm__cycles.sum", "lts__sectors.sum"));
  EXPECT_THAT(choice.too_many, ElementsAre("dram__bytes.sum"));
  EXPECT_TRUE(choice.unknown.empty());
  EXPECT_FALSE(choice.image.empty());
  EXPECT_EQ(fake.hosts, 0);
}

TEST(Metrics, ThatFitTogetherAreAskedForTogether) {
  Profilers& fake = Profilers::reset();
  EXPECT_EQ(choose(fake, kThree).metrics, kThree);
  EXPECT_EQ(fake.calls_of("host_initialize"), 1);
  EXPECT_EQ(choose(fake, {"sm__cycles.sum", "nonsense.sum", "dram__bytes.sum"}).metrics.size(), 2U);
  EXPECT_EQ(fake.calls_of("host_initialize"), 1 + 1 + 3 + 1);  // all, each alone, those that are known
}

TEST(Metrics, UnknownOnesSpoilNoneOfTheOthers) {
  const Choice choice = choose(Profilers::reset(), {"nonsense.sum", "sm__cycles.sum", "dram__bytes"});
  EXPECT_THAT(choice.metrics, ElementsAre("sm__cycles.sum"));
  EXPECT_THAT(choice.unknown, ElementsAre("nonsense.sum", "dram__bytes"));
}

TEST(Metrics, AreListedWithWhatCuptiSaysOfThem) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  const Host host(cupti, Collection::Ranges, "FAKE100", {});
  const std::vector<Metric> metrics = host.metrics();
  ASSERT_EQ(metrics.size(), 2U);
  EXPECT_EQ(metrics[0].name, "dram__bytes");
  EXPECT_THAT(host.endings(metrics[0]), ElementsAre(".sum", ".avg"));
  EXPECT_EQ(host.properties("dram__bytes").description, "what it counts");
  EXPECT_EQ(host.properties("dram__bytes").unit, "");
  EXPECT_THROW(host.properties("nonsense"), Refused);
  EXPECT_THAT(supported_chips(cupti), ElementsAre("FAKE100", "OLD75"));
}

TEST(Refusals, SayTheReasonAndWhatWouldChangeIt) {
  Profilers& fake = Profilers::reset();
  const auto message = [&](const std::string& member, int code) {
    fake.codes = {{member, code}};
    const driver::Cupti cupti = fake.table();
    return message_of<base::NotAvailable>([&] { const PmSampler sampler(cupti, {kThree}, 0); });
  };
  const std::string privileges = message("pm_availability", CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  EXPECT_THAT(privileges, HasSubstr("administrators alone"));
  EXPECT_THAT(privileges, HasSubstr("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"));
  EXPECT_THAT(privileges, HasSubstr("NVreg_RestrictProfilingToAdminUsers=0"));
  EXPECT_THAT(privileges, HasSubstr("CAP_PERFMON"));
  const std::string busy = message("pm_enable", CUPTI_ERROR_HARDWARE_BUSY);
  EXPECT_THAT(busy, HasSubstr("another tool"));
  EXPECT_THAT(busy, HasSubstr("dcgmi profile --pause"));
  EXPECT_THAT(message("host_initialize", CUPTI_ERROR_INVALID_CHIP_NAME), HasSubstr("newer nvidia-cuda-cupti"));
  EXPECT_EQ(fake.enabled, 0);
  EXPECT_EQ(fake.hosts, 0);
}

TEST(Refusals, ALibraryWithoutTheFunctionsIsNamed) {
  driver::Cupti old = Profilers::reset().table();
  old.pm_enable = nullptr;
  EXPECT_THAT(message_of<base::NotAvailable>([&] { const PmSampler sampler(old, {kThree}, 0); }),
              HasSubstr("has no pm_enable; use CUPTI of CUDA 12.6 or later"));
  EXPECT_THAT(message_of<base::NotAvailable>([] { chip_of(driver::Cupti{}, 0); }), HasSubstr("libcupti was not found"));
}

/// All that the GPU has written, evaluated; whether that is all.
bool decode(PmSampler& sampler, Samples& into) {
  Decoded decoded;
  sampler.clear(decoded);
  const bool complete = sampler.decode(decoded);
  sampler.evaluate(decoded, into);
  return complete;
}

TEST(CounterSamples, HaveRoomForWholeOnesOrStayAsTheyAre) {
  Samples samples;
  samples.make_room(100, 300);
  EXPECT_GE(samples.starts.capacity(), 100U);
  EXPECT_GE(samples.ends.capacity(), 100U);
  EXPECT_GE(samples.values.capacity(), 300U);
  EXPECT_THROW(samples.make_room(1, samples.values.max_size() + 1), std::length_error);
  EXPECT_EQ(samples.size(), 0U);
}

TEST(PmSampler, HandsOverSamplesButTheFirst) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampler sampler(cupti, {.metrics = {"sm__cycles.sum", "dram__bytes.sum"}, .interval_ns = 50'000}, 0);
  EXPECT_EQ(fake.interval_ns, 50'000U);
  EXPECT_EQ(fake.trigger, CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_TIME_INTERVAL);
  EXPECT_EQ(fake.append_mode, CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_OLDEST);  // else losses are silent
  sampler.start();
  for (uint64_t sample = 0; sample < 6; ++sample) {
    fake.write(100 * sample, 100 * sample + 100);
  }
  Samples samples;
  EXPECT_TRUE(decode(sampler, samples));
  EXPECT_THAT(samples.starts, ElementsAre(100, 200, 300, 400, 500));
  EXPECT_THAT(samples.ends, ElementsAre(200, 300, 400, 500, 600));
  EXPECT_THAT(samples.values, ElementsAre(1001, 2001, 1002, 2002, 1003, 2003, 1004, 2004, 1005, 2005));
  fake.write(600, 700);
  EXPECT_TRUE(decode(sampler, samples));
  EXPECT_EQ(samples.size(), 6U);
}

TEST(PmSampler, SaysThatSamplesWereLost) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampler sampler(cupti, {kThree}, 0);
  sampler.start();
  fake.overflows = 1;
  Samples samples;
  EXPECT_FALSE(decode(sampler, samples));
  sampler.stop();
  sampler.start();
  EXPECT_TRUE(decode(sampler, samples));
  fake.codes = {{"pm_decode", CUPTI_ERROR_OUT_OF_MEMORY}};
  EXPECT_FALSE(decode(sampler, samples));
  fake.codes = {{"pm_decode", CUPTI_ERROR_UNKNOWN}};
  EXPECT_THROW(decode(sampler, samples), Refused);
}

TEST(PmSampler, AFullImageIsALoss) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampler sampler(cupti, {kThree}, 0);
  sampler.start();
  fake.image_samples = 4;
  for (uint64_t sample = 0; sample < 6; ++sample) {
    fake.write(100'000 * sample, 100'000 * sample + 100'000);
  }
  Samples samples;
  EXPECT_FALSE(decode(sampler, samples));
  EXPECT_THAT(samples.starts, ElementsAre(100'000, 200'000, 300'000));
}

TEST(PmSampler, TakesNoSamplesThatDoNotFollowUponOneAnother) {
  for (const uint64_t start : {uint64_t{1'700'000}, uint64_t{100'000}}) {  // some are missing; older ones come again
    Profilers& fake = Profilers::reset();
    const driver::Cupti cupti = fake.table();
    PmSampler sampler(cupti, {kThree}, 0);
    sampler.start();
    fake.write(0, 100'000);
    fake.write(100'000, 200'000);
    fake.write(203'000, 301'000);  // not to the nanosecond
    fake.write(start, start + 100'000);
    Samples samples;
    EXPECT_FALSE(decode(sampler, samples));
    EXPECT_THAT(samples.starts, ElementsAre(100'000, 203'000));
    sampler.stop();
    sampler.start();
    EXPECT_EQ(fake.calls_of("pm_enable"), 2);  // what is left in the buffer is given up with it
    EXPECT_EQ(fake.enabled, 1);
  }
}

TEST(PmSampler, AsksForAllOrForAsManyAsFit) {
  Profilers& fake = Profilers::reset();
  fake.counters["dram__bytes.sum"].share = 0.95;
  const driver::Cupti cupti = fake.table();
  EXPECT_THAT(PmSampler(cupti, {kThree}, 0).choice().metrics, ElementsAre("sm__cycles.sum", "lts__sectors.sum"));
  EXPECT_THAT(message_of<base::InvalidArgument>([&] {
                const PmSampler all(cupti, {kThree, true}, 0);
              }),
              HasSubstr("without dram__bytes.sum they fit"));
  EXPECT_THAT(message_of<base::InvalidArgument>([&] {
                const PmSampler all(cupti, {{"nonsense"}, true}, 0);
              }),
              HasSubstr("nonsense"));
  EXPECT_THROW(PmSampler(cupti, {{"nonsense"}}, 0), base::NotAvailable);
  EXPECT_EQ(fake.enabled, 0);
}

TEST(PmSampler, ChipsWithoutAClockForItCountTheSystems) {
  Profilers& fake = Profilers::reset();
  fake.chip = "GA100";
  const driver::Cupti cupti = fake.table();
  const PmSampler sampler(cupti, {kThree}, 0);
  EXPECT_EQ(fake.trigger, CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_SYSCLK_INTERVAL);
}

void finish(PmSampling& sampling, bool last = false) {
  sampling.begin_finish(last);
  sampling.wait_finished();
}

TEST(PmSampling, ReadsInTheBackgroundAndLeavesNothingBehind) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  {
    PmSampling sampling(cupti, {kThree});
    sampling.begin();
    for (uint64_t sample = 0; sample < 4; ++sample) {
      fake.write(sample, sample + 1);
    }
    fake.wait_decoded();
    fake.write(10, 11);
    fake.write(11, 12);
    finish(sampling);
    std::vector<Samples> all;
    sampling.take(all);
    EXPECT_THAT(all.at(0).starts, ElementsAre(1, 2, 3, 10, 11));
    EXPECT_EQ(fake.started, 0);
    sampling.begin();
    EXPECT_EQ(fake.started, 1);
    EXPECT_EQ(sampling.take_overflows(), 0U);
    EXPECT_EQ(sampling.why_ended(), "");
  }
  EXPECT_EQ(fake.started, 0);
  EXPECT_EQ(fake.enabled, 0);
  EXPECT_EQ(fake.hosts, 0);
}

TEST(PmSampling, ReadsADeviceWhileAnotherTakesLong) {
  Profilers& fake = Profilers::reset();
  std::latch may_decode(1);
  static std::latch* gate;
  gate = &may_decode;
  static decltype(driver::Cupti::pm_decode) fake_decode;
  driver::Cupti cupti = fake.table();
  fake_decode = cupti.pm_decode;
  cupti.pm_decode = [](void* params) {
    const auto* of = static_cast<const CUpti_PmSampling_DecodeData_Params*>(params)->pPmSamplingObject;
    if (static_cast<const void*>(of) == &Profilers::instance().pending[1]) {
      gate->wait();
    }
    return fake_decode(params);
  };
  PmSampling sampling(cupti, {.metrics = kThree, .devices = {0, 1}});
  sampling.begin();
  for (const std::size_t device : {0, 1}) {
    fake.write(0, 1, device);
    fake.write(10 * device + 1, 10 * device + 2, device);
  }
  fake.wait_decoded(0);
  {
    const std::lock_guard lock(fake.mutex);
    EXPECT_EQ(fake.pending[1].size(), 2U);
  }
  may_decode.count_down();
  finish(sampling);
  std::vector<Samples> all;
  sampling.take(all);
  EXPECT_THAT(all.at(0).starts, ElementsAre(1));
  EXPECT_THAT(all.at(1).starts, ElementsAre(11));
}

TEST(PmSampling, GoesOnAfterAFullBuffer) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  sampling.begin();
  {
    const std::lock_guard lock(fake.mutex);
    fake.overflows = 1;
  }
  finish(sampling);
  sampling.begin();
  finish(sampling);
  sampling.begin();
  EXPECT_EQ(sampling.take_overflows(), 1U);
  EXPECT_EQ(fake.started, 1);
}

TEST(PmSampling, HasLongerSamplesAfterALossUpToAMillisecond) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {.metrics = kThree, .interval_ns = 300'000});
  EXPECT_EQ(sampling.interval_ns(), 300'000);
  for (const uint64_t interval_ns : {600'000U, 1'000'000U, 1'000'000U}) {
    sampling.begin();
    {
      const std::lock_guard lock(fake.mutex);
      fake.overflows = 1;
    }
    finish(sampling);
    sampling.begin();
    EXPECT_EQ(fake.interval_ns, interval_ns);
    EXPECT_EQ(sampling.interval_ns(), interval_ns);
  }
  PmSampling slow(cupti, {.metrics = kThree, .interval_ns = 3'000'000});
  slow.begin();
  {
    const std::lock_guard lock(fake.mutex);
    fake.overflows = 1;
  }
  finish(slow);
  slow.begin();
  EXPECT_EQ(slow.interval_ns(), 3'000'000);  // as was asked for, and no shorter
}

TEST(PmSampling, SamplesNothingButWindows) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  EXPECT_EQ(fake.calls_of("pm_start"), 0);
  for (int window = 1; window <= 3; ++window) {
    sampling.begin();
    EXPECT_EQ(fake.started, 1);
    finish(sampling);
    EXPECT_EQ(fake.started, 0);
    EXPECT_EQ(fake.calls_of("pm_start"), window);
  }
  EXPECT_EQ(fake.calls_of("pm_enable"), 1);
}

TEST(PmSampling, StartsNothingAfterTheLastWindow) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  sampling.begin();
  fake.write(0, 1);
  fake.write(1, 2);
  finish(sampling, true);
  std::vector<Samples> all;
  sampling.take(all);
  EXPECT_THAT(all.at(0).starts, ElementsAre(1));
  EXPECT_EQ(fake.calls_of("pm_start"), 1);
  EXPECT_EQ(fake.started, 0);
  EXPECT_EQ(fake.enabled, 0);
  EXPECT_EQ(sampling.why_ended(), "");
  const int decoded = fake.calls_of("pm_decode");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(fake.calls_of("pm_decode"), decoded);
  finish(sampling, true);  // does not wait for ever
}

TEST(PmSampling, IsMadeAnewOnceWhereItMayNotGoOn) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  sampling.begin();
  fake.write(0, 1);
  fake.write(1, 2);
  {
    const std::lock_guard lock(fake.mutex);
    fake.codes_once = {{"pm_start", CUPTI_ERROR_UNKNOWN}};
  }
  finish(sampling);
  sampling.begin();
  EXPECT_EQ(sampling.why_ended(), "");
  EXPECT_EQ(fake.calls_of("pm_enable"), 2);
  EXPECT_EQ(fake.calls_of("pm_set_config"), 2);
  EXPECT_EQ(fake.enabled, 1);
  EXPECT_EQ(fake.started, 1);
  fake.write(2, 3);
  fake.write(3, 4);
  finish(sampling, true);
  std::vector<Samples> all;
  sampling.take(all);
  EXPECT_THAT(all.at(0).starts, ElementsAre(1, 3));
}

TEST(PmSampling, SamplesStayWhereItMayNotGoOn) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  sampling.begin();
  fake.write(0, 1);
  fake.write(1, 2);
  {
    const std::lock_guard lock(fake.mutex);
    fake.codes = {{"pm_start", CUPTI_ERROR_UNKNOWN}};
    fake.overflows = 1;
  }
  finish(sampling);
  sampling.begin();
  EXPECT_THAT(sampling.why_ended(), HasSubstr("pm_start failed"));
  EXPECT_EQ(fake.calls_of("pm_start"), 3);
  std::vector<Samples> all;
  sampling.take(all);
  EXPECT_THAT(all.at(0).starts, ElementsAre(1));
}

TEST(PmSampling, EndsWithTheReasonWhenCuptiRefusesToGoOn) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  sampling.begin();
  {
    const std::lock_guard lock(fake.mutex);
    fake.codes = {{"pm_decode", CUPTI_ERROR_UNKNOWN}};
  }
  finish(sampling);
  EXPECT_THAT(sampling.why_ended(), HasSubstr("pm_decode failed"));
  finish(sampling);  // does not wait for ever
}

TEST(PmSampling, EndsWithTheReasonWhenItCannotBegin) {
  for (const char* const step : {"pm_data_initialize", "pm_start"}) {
    Profilers& fake = Profilers::reset();
    const driver::Cupti cupti = fake.table();
    fake.codes = {{step, CUPTI_ERROR_UNKNOWN}};
    PmSampling sampling(cupti, {kThree});
    sampling.begin();  // does not wait for ever
    finish(sampling);
    EXPECT_THAT(sampling.why_ended(), HasSubstr(std::string(step) + " failed"));
  }
}

TEST(PmSampling, EndsWithTheReasonWhenSamplesCannotBeEvaluated) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  sampling.begin();
  {
    const std::lock_guard lock(fake.mutex);
    fake.codes = {{"host_evaluate", CUPTI_ERROR_UNKNOWN}};
  }
  fake.write(0, 1);
  fake.write(1, 2);
  finish(sampling);
  EXPECT_THAT(sampling.why_ended(), HasSubstr("host_evaluate failed"));
}

TEST(PmSampling, DecodesOnWhileSamplesWaitToBeEvaluated) {
  Profilers& fake = Profilers::reset();
  std::latch may_evaluate(1);
  static std::latch* gate;
  gate = &may_evaluate;
  static decltype(driver::Cupti::host_evaluate) fake_evaluate;
  driver::Cupti cupti = fake.table();
  fake_evaluate = cupti.host_evaluate;
  cupti.host_evaluate = [](void* params) {
    gate->wait();
    return fake_evaluate(params);
  };
  // Of samples this long none more come while a busy machine holds the threads up, so that two images are enough.
  PmSampling sampling(cupti, {.metrics = kThree, .interval_ns = 3'600'000'000'000});
  sampling.begin();
  for (uint64_t sample = 0; sample < 2500; ++sample) {  // two images
    fake.write(sample, sample + 1);
    if (sample % 500 == 0) {
      fake.wait_decoded();
    }
  }
  fake.wait_decoded();
  std::vector<Samples> all;
  sampling.take(all);
  EXPECT_EQ(all.at(0).size(), 0U);
  may_evaluate.count_down();
  finish(sampling);
  sampling.take(all);
  EXPECT_EQ(all.at(0).size(), 2499U);
  EXPECT_EQ(sampling.take_overflows(), 0U);
}

TEST(RangeProfiler, HasTheWorkRepeatedUntilAllIsCollected) {
  Profilers& fake = Profilers::reset();
  fake.counters["sm__cycles.sum"].share = 1.5;
  const driver::Cupti cupti = fake.table();
  {
    RangeProfiler profiler(cupti, nullptr, 0, {"sm__cycles.sum", "dram__bytes.sum"});
    EXPECT_EQ(profiler.passes(), 2U);
    profiler.begin_pass();
    EXPECT_TRUE(profiler.end_pass());
    profiler.begin_pass();
    EXPECT_FALSE(profiler.end_pass());
    EXPECT_THAT(profiler.read(), ElementsAre(1000, 2000));
    fake.ranges = 0;
    EXPECT_THROW(profiler.read(), base::NotAvailable);
  }
  EXPECT_EQ(fake.enabled, 0);
  EXPECT_EQ(fake.hosts, 0);
}

TEST(RangeProfiler, EndsInTheMiddleOfAPass) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  {
    RangeProfiler profiler(cupti, nullptr, 0, {"sm__cycles.sum"});
    profiler.begin_pass();
  }
  EXPECT_EQ(fake.started, 0);
  EXPECT_EQ(fake.enabled, 0);
  EXPECT_EQ(fake.calls_of("range_pop"), 1);
}

TEST(RangeProfiler, NamesAMetricThatTheChipDoesNotHave) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  EXPECT_THAT(message_of<base::InvalidArgument>([&] { const RangeProfiler profiler(cupti, nullptr, 0, {"nonsense"}); }),
              HasSubstr("'nonsense', which FAKE100 does not have"));
  fake.codes = {{"range_enable", CUPTI_ERROR_INSUFFICIENT_PRIVILEGES}};
  EXPECT_THROW(RangeProfiler(cupti, nullptr, 0, kThree), Refused);
  EXPECT_EQ(fake.hosts, 0);
}

}  // namespace
}  // namespace gpuscope::counters
