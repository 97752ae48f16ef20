// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <semaphore>
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
  const bool complete = sampler.decode(decoded);
  sampler.evaluate(decoded, into);
  return complete;
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

TEST(PmSampling, ReadsInTheBackgroundAndLeavesNothingBehind) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  {
    PmSampling sampling(cupti, {kThree});
    for (uint64_t sample = 0; sample < 4; ++sample) {
      fake.write(sample, sample + 1);
    }
    std::vector<Samples> all;
    std::size_t count = 0;
    while (count < 3) {
      sampling.take(all);
      count += all.at(0).size();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(count, 3U);
    fake.write(10, 11);
    fake.write(11, 12);
    sampling.finish_samples(false);
    sampling.take(all);
    EXPECT_THAT(all.at(0).starts, ElementsAre(10, 11));
    EXPECT_EQ(fake.calls_of("pm_start"), 2);
    EXPECT_EQ(sampling.take_overflows(), 0U);
    EXPECT_EQ(sampling.why_ended(), "");
  }
  EXPECT_EQ(fake.started, 0);
  EXPECT_EQ(fake.enabled, 0);
  EXPECT_EQ(fake.hosts, 0);
}

TEST(PmSampling, ReadsADeviceWhileAnotherTakesLong) {
  Profilers& fake = Profilers::reset();
  static std::binary_semaphore is_over{0};
  static decltype(driver::Cupti::pm_decode) fake_decode;
  driver::Cupti cupti = fake.table();
  fake_decode = cupti.pm_decode;
  cupti.pm_decode = [](void* params) {
    const auto* of = static_cast<const CUpti_PmSampling_DecodeData_Params*>(params)->pPmSamplingObject;
    if (static_cast<const void*>(of) == &Profilers::instance().pending[1]) {
      is_over.acquire();
      is_over.release();
    }
    return fake_decode(params);
  };
  PmSampling sampling(cupti, {.metrics = kThree, .devices = {0, 1}});
  for (const std::size_t device : {0, 1}) {
    fake.write(0, 1, device);
    fake.write(10 * device + 1, 10 * device + 2, device);
  }
  std::vector<Samples> all;
  do {
    sampling.take(all);
  } while (all.at(0).size() == 0);
  EXPECT_THAT(all.at(0).starts, ElementsAre(1));
  EXPECT_EQ(all.at(1).size(), 0U);
  is_over.release();
  sampling.finish_samples(false);
  sampling.take(all);
  EXPECT_EQ(all.at(0).size(), 0U);
  EXPECT_THAT(all.at(1).starts, ElementsAre(11));
}

TEST(PmSampling, GoesOnAfterAFullBuffer) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  {
    const std::lock_guard lock(fake.mutex);
    fake.overflows = 1;
  }
  sampling.finish_samples(false);
  sampling.finish_samples(false);
  EXPECT_EQ(sampling.take_overflows(), 1U);
  EXPECT_EQ(fake.started, 1);
}

TEST(PmSampling, StartsNothingAfterTheLastWindow) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  fake.write(0, 1);
  fake.write(1, 2);
  sampling.finish_samples(true);
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
  sampling.finish_samples(true);  // does not wait for ever
}

TEST(PmSampling, IsMadeAnewOnceWhereItMayNotGoOn) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  fake.write(0, 1);
  fake.write(1, 2);
  {
    const std::lock_guard lock(fake.mutex);
    fake.codes_once = {{"pm_start", CUPTI_ERROR_UNKNOWN}};
  }
  sampling.finish_samples(false);
  EXPECT_EQ(sampling.why_ended(), "");
  EXPECT_EQ(fake.calls_of("pm_enable"), 2);
  EXPECT_EQ(fake.calls_of("pm_set_config"), 2);
  EXPECT_EQ(fake.enabled, 1);
  EXPECT_EQ(fake.started, 1);
  fake.write(2, 3);
  fake.write(3, 4);
  sampling.finish_samples(true);
  std::vector<Samples> all;
  sampling.take(all);
  EXPECT_THAT(all.at(0).starts, ElementsAre(1, 3));
}

TEST(PmSampling, SamplesStayWhereItMayNotGoOn) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  fake.write(0, 1);
  fake.write(1, 2);
  {
    const std::lock_guard lock(fake.mutex);
    fake.codes = {{"pm_start", CUPTI_ERROR_UNKNOWN}};
    fake.overflows = 1;
  }
  sampling.finish_samples(false);
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
  {
    const std::lock_guard lock(fake.mutex);
    fake.codes = {{"pm_decode", CUPTI_ERROR_UNKNOWN}};
  }
  sampling.finish_samples(false);
  EXPECT_THAT(sampling.why_ended(), HasSubstr("pm_decode failed"));
  sampling.finish_samples(false);  // does not wait for ever
}

TEST(PmSampling, EndsWithTheReasonWhenSamplesCannotBeEvaluated) {
  Profilers& fake = Profilers::reset();
  const driver::Cupti cupti = fake.table();
  PmSampling sampling(cupti, {kThree});
  {
    const std::lock_guard lock(fake.mutex);
    fake.codes = {{"host_evaluate", CUPTI_ERROR_UNKNOWN}};
  }
  fake.write(0, 1);
  fake.write(1, 2);
  sampling.finish_samples(false);
  EXPECT_THAT(sampling.why_ended(), HasSubstr("host_evaluate failed"));
}

TEST(PmSampling, DecodesOnWhileSamplesWaitToBeEvaluated) {
  Profilers& fake = Profilers::reset();
  static std::binary_semaphore may_evaluate{0};
  static decltype(driver::Cupti::host_evaluate) fake_evaluate;
  driver::Cupti cupti = fake.table();
  fake_evaluate = cupti.host_evaluate;
  cupti.host_evaluate = [](void* params) {
    may_evaluate.acquire();
    may_evaluate.release();
    return fake_evaluate(params);
  };
  PmSampling sampling(cupti, {kThree});
  for (uint64_t sample = 0; sample < 30; ++sample) {
    fake.write(sample, sample + 1);
  }
  const auto has_pending = [&fake] {
    const std::lock_guard lock(fake.mutex);
    return !fake.pending[0].empty();
  };
  while (has_pending()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<Samples> all;
  sampling.take(all);
  EXPECT_EQ(all.at(0).size(), 0U);
  may_evaluate.release();
  sampling.finish_samples(false);
  sampling.take(all);
  EXPECT_EQ(all.at(0).size(), 29U);
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
