// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/counters/range_profiler.h"

#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>

#include <utility>

namespace gpuscope::counters {
namespace {

// The sizes of CUDA 12.6: earlier versions refuse later members.
constexpr std::size_t kAvailabilitySize =
    offsetof(CUpti_Profiler_GetCounterAvailability_Params, pCounterAvailabilityImage) + sizeof(uint8_t*);
constexpr std::size_t kRangeEnableSize =
    offsetof(CUpti_RangeProfiler_Enable_Params, pRangeProfilerObject) + sizeof(CUpti_RangeProfiler_Object*);

template <class Params>
Params sized_for(std::size_t size, void* object) {
  Params params{};
  params.structSize = size;
  params.pRangeProfilerObject = static_cast<CUpti_RangeProfiler_Object*>(object);
  return params;
}

#define GPUSCOPE_RANGE_PARAMS(Name) \
  sized_for<CUpti_RangeProfiler_##Name##_Params>(CUpti_RangeProfiler_##Name##_Params_STRUCT_SIZE, object_)

Bytes read_range_availability(const driver::Cupti& cupti, driver::CuContext context) {
  CUpti_Profiler_GetCounterAvailability_Params params{};
  params.structSize = kAvailabilitySize;
  params.ctx = context;
  GPUSCOPE_PROFILER(cupti, range_availability, params);
  Bytes image(params.counterAvailabilityImageSize);
  params.pCounterAvailabilityImage = image.data();
  GPUSCOPE_PROFILER(cupti, range_availability, params);
  return image;
}

}  // namespace

RangeProfiler::RangeProfiler(const driver::Cupti& cupti, driver::CuContext context, int device,
                             std::vector<std::string> metrics)
    : cupti_(cupti), chip_(chip_of(cupti, device)), metrics_(std::move(metrics)), names_(pointers(metrics_)) {
  const Bytes availability = read_range_availability(cupti_, context);
  for (const std::string& metric : metrics_) {
    if (!Host(cupti_, Collection::Ranges, chip_, availability).configure({&metric, 1})) {
      throw base::InvalidArgument("metrics has '" + metric + "', which " + chip_ +
                                  " does not have; `gpuscope counters` lists what it has");
    }
  }
  host_ = std::make_unique<Host>(cupti_, Collection::Ranges, chip_, availability);
  if (!host_->configure(metrics_, &image_)) {
    throw base::InvalidArgument("metrics has some that " + chip_ +
                                " cannot collect together; measure those of pcie__ and nvl in a call of their own");
  }
  passes_ = passes_of(cupti_, image_);

  auto enable = sized_for<CUpti_RangeProfiler_Enable_Params>(kRangeEnableSize, nullptr);
  enable.ctx = context;
  GPUSCOPE_PROFILER(cupti_, range_enable, enable);
  object_ = enable.pRangeProfilerObject;
  try {
    set_up();
  } catch (...) {
    release();
    throw;
  }
}

RangeProfiler::~RangeProfiler() {
  if (in_range_) {
    auto pop = GPUSCOPE_RANGE_PARAMS(PopRange);
    cupti_.range_pop(&pop);
  }
  if (running_) {
    auto stop = GPUSCOPE_RANGE_PARAMS(Stop);
    cupti_.range_stop != nullptr ? cupti_.range_stop(&stop) : 0;
  }
  release();
}

void RangeProfiler::release() noexcept {
  auto disable = GPUSCOPE_RANGE_PARAMS(Disable);
  cupti_.range_disable != nullptr ? cupti_.range_disable(&disable) : 0;
}

void RangeProfiler::set_up() {
  auto size = GPUSCOPE_RANGE_PARAMS(GetCounterDataSize);
  size.pMetricNames = names_.data();
  size.numMetrics = names_.size();
  size.maxNumOfRanges = 1;
  size.maxNumRangeTreeNodes = 1;
  GPUSCOPE_PROFILER(cupti_, range_data_size, size);
  data_.assign(size.counterDataSize, 0);
  auto initialize = GPUSCOPE_RANGE_PARAMS(CounterDataImage_Initialize);
  initialize.counterDataSize = data_.size();
  initialize.pCounterData = data_.data();
  GPUSCOPE_PROFILER(cupti_, range_data_initialize, initialize);
  auto config = GPUSCOPE_RANGE_PARAMS(SetConfig);
  config.configSize = image_.size();
  config.pConfig = image_.data();
  config.counterDataImageSize = data_.size();
  config.pCounterDataImage = data_.data();
  config.range = CUPTI_UserRange;
  config.replayMode = CUPTI_UserReplay;
  config.maxRangesPerPass = 1;
  config.numNestingLevels = 1;
  config.minNestingLevel = 1;
  config.passIndex = 0;
  config.targetNestingLevel = 1;
  GPUSCOPE_PROFILER(cupti_, range_set_config, config);
}

void RangeProfiler::begin_pass() {
  auto start = GPUSCOPE_RANGE_PARAMS(Start);
  GPUSCOPE_PROFILER(cupti_, range_start, start);
  running_ = true;
  auto push = GPUSCOPE_RANGE_PARAMS(PushRange);
  push.pRangeName = "gpuscope";
  GPUSCOPE_PROFILER(cupti_, range_push, push);
  in_range_ = true;
}

bool RangeProfiler::end_pass() {
  auto pop = GPUSCOPE_RANGE_PARAMS(PopRange);
  GPUSCOPE_PROFILER(cupti_, range_pop, pop);
  in_range_ = false;
  auto stop = GPUSCOPE_RANGE_PARAMS(Stop);
  GPUSCOPE_PROFILER(cupti_, range_stop, stop);
  running_ = false;
  return stop.isAllPassSubmitted == 0;
}

std::vector<double> RangeProfiler::read() {
  auto decode = GPUSCOPE_RANGE_PARAMS(DecodeData);
  GPUSCOPE_PROFILER(cupti_, range_decode, decode);
  CUpti_RangeProfiler_GetCounterDataInfo_Params info{};
  info.structSize = CUpti_RangeProfiler_GetCounterDataInfo_Params_STRUCT_SIZE;
  info.pCounterDataImage = data_.data();
  info.counterDataImageSize = data_.size();
  GPUSCOPE_PROFILER(cupti_, range_data_info, info);
  if (info.numTotalRanges != 1 || decode.numOfRangeDropped != 0) {
    throw base::NotAvailable("the value of the metrics",
                             "CUPTI has " + std::to_string(info.numTotalRanges) + " ranges of it and dropped " +
                                 std::to_string(decode.numOfRangeDropped),
                             "");
  }
  std::vector<double> values(metrics_.size());
  host_->evaluate(data_, 0, names_, values);
  return values;
}

}  // namespace gpuscope::counters
