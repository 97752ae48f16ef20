// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cupti_pmsampling.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>
#include <cupti_target.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpuscope/driver/libraries.h"

namespace gpuscope::fakes {

/// CUPTI's profilers of a chip with the metrics that a test gives it. Each takes a share of a pass; an image of counter
/// data holds the numbers of its samples, and the value of a metric is its base value and the sample's number. Like
/// CUPTI it accepts structures of its own size alone, and a host object that has refused something refuses all that
/// follows. Any thread; reset between tests.
struct Profilers {
  struct Counter {
    double base = 0;
    double share = 0.1;  // of a pass
  };
  struct HostObject {
    std::vector<std::string> metrics;
    bool spoilt = false;
  };

  static Profilers& reset() {
    Profilers& state = instance();
    const std::lock_guard lock(state.mutex);
    state.chip = "FAKE100";
    state.counters = {{"sm__cycles.sum", {1000}}, {"dram__bytes.sum", {2000}}, {"lts__sectors.sum", {3000}}};
    state.codes.clear();
    state.codes_once.clear();
    state.calls.clear();
    state.hosts = 0;
    state.trigger = 0;
    state.interval_ns = 0;
    state.append_mode = -1;
    state.enabled = state.started = 0;
    state.pending.fill({});
    state.next_sample = 0;
    state.image_samples = 2048;
    state.overflows = 0;
    state.passes_left = 0;
    state.ranges = 1;
    return state;
  }
  static Profilers& instance() {
    static Profilers state;
    return state;
  }

  std::mutex mutex;
  std::string chip;
  std::map<std::string, Counter> counters;
  std::map<std::string, int> codes;       // what functions return, by their member's name
  std::map<std::string, int> codes_once;  // the same, of the next call alone
  std::map<std::string, int> calls;
  int hosts = 0;  // that are alive
  int trigger = 0;
  int append_mode = -1;
  uint64_t interval_ns = 0;
  int enabled = 0, started = 0;
  struct Sample {
    uint64_t start, end;
    int number;
  };
  std::array<std::vector<Sample>, 2> pending;  // in the hardware's buffer, of each device
  int next_sample = 0;
  std::size_t image_samples = 2048;  // that an image has room for, however many were asked for
  int overflows = 0;                 // decodings that say so
  int passes_left = 0;
  std::size_t ranges = 1;

  /// The GPU writes a sample.
  void write(uint64_t start, uint64_t end, std::size_t device = 0) {
    const std::lock_guard lock(mutex);
    pending.at(device).push_back({start, end, next_sample++});
  }
  /// Until CUPTI has decoded what a device has written.
  void wait_decoded(std::size_t device = 0) {
    std::unique_lock lock(mutex);
    while (!pending.at(device).empty()) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock.lock();
    }
  }
  int calls_of(const std::string& name) {
    const std::lock_guard lock(mutex);
    return calls[name];
  }

  driver::Cupti table();
  /// Another table with these functions.
  driver::Cupti in(driver::Cupti other) {
    const driver::Cupti from = table();
#define GPUSCOPE_COPY(symbol, member, ...) other.member = from.member;
    GPUSCOPE_CUPTI_PROFILER_FUNCTIONS(GPUSCOPE_COPY)
#undef GPUSCOPE_COPY
    return other;
  }

 private:
  // Counter data: the number of samples, then each.
  struct Image {
    uint64_t samples;
    std::array<Sample, 2048> sample;
  };
  int enter(const char* name) {
    ++calls[name];
    if (const auto once = codes_once.extract(name); !once.empty()) {
      return once.mapped();
    }
    const auto found = codes.find(name);
    return found != codes.end() ? found->second : 0;
  }
  template <class Params, class F>
  static int with(const char* name, void* params, std::size_t size, F&& work) {
    Profilers& state = instance();
    const std::lock_guard lock(state.mutex);
    if (const int code = state.enter(name); code != 0) {
      return code;
    }
    auto* typed = static_cast<Params*>(params);
    if (typed->structSize != size) {
      return CUPTI_ERROR_INVALID_PARAMETER;
    }
    return work(state, *typed);
  }
  std::size_t passes(const std::vector<std::string>& metrics) const {
    double share = 0;
    for (const std::string& metric : metrics) {
      share += counters.at(metric).share;
    }
    return static_cast<std::size_t>(share + 0.999999);
  }
};

// Sizes are those of CUDA 12.8, whichever headers this is compiled with: a libcupti refuses larger ones than its own.
#define GPUSCOPE_FAKE(member, Params, size, ...)                                            \
  table.member = [](void* given) {                                                          \
    return with<Params>(#member, given, size, [](Profilers& state, Params& params) -> int { \
      static_cast<void>(state);                                                             \
      static_cast<void>(params);                                                            \
      __VA_ARGS__                                                                           \
      return 0;                                                                             \
    });                                                                                     \
  };

inline driver::Cupti Profilers::table() {
  driver::Cupti table;
  table.version = 130000;
  table.get_version = [](uint32_t* version) {
    *version = 130000;
    return 0;
  };
  table.get_result_string = [](int code, const char** text) {
    *text = code == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_FAKE";
    return 0;
  };
  GPUSCOPE_FAKE(profiler_initialize, CUpti_Profiler_Initialize_Params, 16)
  GPUSCOPE_FAKE(chip_name, CUpti_Device_GetChipName_Params, 32, params.pChipName = state.chip.c_str();)
  GPUSCOPE_FAKE(
      host_initialize, CUpti_Profiler_Host_Initialize_Params, 48,
      if (params.pChipName != state.chip) { return CUPTI_ERROR_INVALID_CHIP_NAME; } ++state.hosts;
      params.pHostObject = reinterpret_cast<CUpti_Profiler_Host_Object*>(new HostObject);)
  GPUSCOPE_FAKE(host_deinitialize, CUpti_Profiler_Host_Deinitialize_Params, 24, --state.hosts;
                delete reinterpret_cast<HostObject*>(params.pHostObject);)
  GPUSCOPE_FAKE(host_supported_chips, CUpti_Profiler_Host_GetSupportedChips_Params, 32,
                static const char* const kChips[] = {"FAKE100", "OLD75"};
                params.numChips = 2; params.ppChipNames = kChips;)
  GPUSCOPE_FAKE(host_base_metrics, CUpti_Profiler_Host_GetBaseMetrics_Params, 48,
                static const char* kNames[] = {"dram__bytes", "sm__cycles"};
                params.ppMetricNames = kNames;
                params.numMetrics = params.metricType == CUPTI_METRIC_TYPE_COUNTER ? 2 : 0;)
  GPUSCOPE_FAKE(host_sub_metrics, CUpti_Profiler_Host_GetSubMetrics_Params, 56,
                static const char* kEndings[] = {".sum", ".avg"};
                params.ppSubMetrics = kEndings; params.numOfSubmetrics = 2;)
  GPUSCOPE_FAKE(
      host_metric_properties, CUpti_Profiler_Host_GetMetricProperties_Params, 60,
      if (std::strstr(params.pMetricName, "__") == nullptr) {
        return CUPTI_ERROR_INVALID_METRIC_NAME;
      } params.pDescription = "what it counts";
      params.pHwUnit = "dram"; params.pDimUnit = nullptr;)
  GPUSCOPE_FAKE(
      host_add_metrics, CUpti_Profiler_Host_ConfigAddMetrics_Params, 40,
      auto* host = reinterpret_cast<HostObject*>(params.pHostObject);
      for (std::size_t index = 0; index < params.numMetrics && !host->spoilt; ++index) {
        host->spoilt = state.counters.count(params.ppMetricNames[index]) == 0;
        host->metrics.emplace_back(params.ppMetricNames[index]);
      } if (host->spoilt) { return CUPTI_ERROR_INVALID_PARAMETER; })
  GPUSCOPE_FAKE(host_config_image_size, CUpti_Profiler_Host_GetConfigImageSize_Params, 32,
                params.configImageSize = sizeof(std::size_t);)
  GPUSCOPE_FAKE(host_config_image, CUpti_Profiler_Host_GetConfigImage_Params, 40,
                const std::size_t passes = state.passes(reinterpret_cast<HostObject*>(params.pHostObject)->metrics);
                std::memcpy(params.pConfigImage, &passes, sizeof(passes));)
  GPUSCOPE_FAKE(host_passes, CUpti_Profiler_Host_GetNumOfPasses_Params, 40,
                std::memcpy(&params.numOfPasses, params.pConfigImage, sizeof(std::size_t));)
  GPUSCOPE_FAKE(
      host_evaluate, CUpti_Profiler_Host_EvaluateToGpuValues_Params, 72,
      const auto* image = reinterpret_cast<const Image*>(params.pCounterDataImage);
      for (std::size_t index = 0; index < params.numMetrics; ++index) {
        params.pMetricValues[index] =
            state.counters.at(params.ppMetricNames[index]).base + image->sample[params.rangeIndex].number;
      })

  GPUSCOPE_FAKE(pm_availability, CUpti_PmSampling_GetCounterAvailability_Params, 40,
                params.counterAvailabilityImageSize = 16;)
  GPUSCOPE_FAKE(
      pm_enable, CUpti_PmSampling_Enable_Params, 32, ++state.enabled;
      params.pPmSamplingObject = reinterpret_cast<CUpti_PmSampling_Object*>(&state.pending.at(params.deviceIndex));)
  GPUSCOPE_FAKE(pm_disable, CUpti_PmSampling_Disable_Params, 24, --state.enabled;)
  GPUSCOPE_FAKE(pm_set_config, CUpti_PmSampling_SetConfig_Params, 64, state.trigger = params.triggerMode;
                state.interval_ns = params.samplingInterval; state.append_mode = params.hwBufferAppendMode;)
  GPUSCOPE_FAKE(pm_start, CUpti_PmSampling_Start_Params, 24, ++state.started;)
  GPUSCOPE_FAKE(pm_stop, CUpti_PmSampling_Stop_Params, 24, --state.started;)
  GPUSCOPE_FAKE(pm_data_size, CUpti_PmSampling_GetCounterDataSize_Params, 56, params.counterDataSize = sizeof(Image);)
  GPUSCOPE_FAKE(pm_data_initialize, CUpti_PmSampling_CounterDataImage_Initialize_Params, 40,
                std::memset(params.pCounterData, 0, params.counterDataSize);)
  GPUSCOPE_FAKE(
      pm_decode, CUpti_PmSampling_DecodeData_Params, 45,
      auto* image = reinterpret_cast<Image*>(params.pCounterDataImage);
      auto& pending = *reinterpret_cast<std::vector<Sample>*>(params.pPmSamplingObject);
      while (image->samples < state.image_samples && !pending.empty()) {
        image->sample[image->samples++] = pending.front();
        pending.erase(pending.begin());
      } params.decodeStopReason = image->samples == state.image_samples
                                      ? CUPTI_PM_SAMPLING_DECODE_STOP_REASON_COUNTER_DATA_FULL
                                      : CUPTI_PM_SAMPLING_DECODE_STOP_REASON_END_OF_RECORDS;
      params.overflow = state.overflows > 0 ? 1 : 0; state.overflows = std::max(0, state.overflows - 1);)
  GPUSCOPE_FAKE(pm_data_info, CUpti_PmSampling_GetCounterDataInfo_Params, 56,
                params.numCompletedSamples = reinterpret_cast<const Image*>(params.pCounterDataImage)->samples;)
  GPUSCOPE_FAKE(
      pm_sample_info, CUpti_PmSampling_CounterData_GetSampleInfo_Params, 64,
      const Sample& sample = reinterpret_cast<const Image*>(params.pCounterDataImage)->sample[params.sampleIndex];
      params.startTimestamp = sample.start; params.endTimestamp = sample.end;)

  GPUSCOPE_FAKE(range_availability, CUpti_Profiler_GetCounterAvailability_Params, 40,
                params.counterAvailabilityImageSize = 16;)
  GPUSCOPE_FAKE(range_enable, CUpti_RangeProfiler_Enable_Params, 32, ++state.enabled;
                params.pRangeProfilerObject = reinterpret_cast<CUpti_RangeProfiler_Object*>(&state);)
  GPUSCOPE_FAKE(range_disable, CUpti_RangeProfiler_Disable_Params, 24, --state.enabled;)
  GPUSCOPE_FAKE(range_set_config, CUpti_RangeProfiler_SetConfig_Params, 90, std::size_t passes = 0;
                std::memcpy(&passes, params.pConfig, sizeof(passes)); state.passes_left = static_cast<int>(passes);)
  GPUSCOPE_FAKE(range_start, CUpti_RangeProfiler_Start_Params, 24, ++state.started;)
  GPUSCOPE_FAKE(range_stop, CUpti_RangeProfiler_Stop_Params, 41, --state.started;
                params.isAllPassSubmitted = --state.passes_left <= 0 ? 1 : 0;)
  GPUSCOPE_FAKE(range_push, CUpti_RangeProfiler_PushRange_Params, 32)
  GPUSCOPE_FAKE(range_pop, CUpti_RangeProfiler_PopRange_Params, 24)
  GPUSCOPE_FAKE(range_decode, CUpti_RangeProfiler_DecodeData_Params, 32)
  GPUSCOPE_FAKE(range_data_size, CUpti_RangeProfiler_GetCounterDataSize_Params, 64,
                params.counterDataSize = sizeof(Image);)
  GPUSCOPE_FAKE(range_data_initialize, CUpti_RangeProfiler_CounterDataImage_Initialize_Params, 40,
                std::memset(params.pCounterData, 0, params.counterDataSize);)
  GPUSCOPE_FAKE(range_data_info, CUpti_RangeProfiler_GetCounterDataInfo_Params, 40,
                params.numTotalRanges = state.ranges;)
  return table;
}

#undef GPUSCOPE_FAKE

}  // namespace gpuscope::fakes
