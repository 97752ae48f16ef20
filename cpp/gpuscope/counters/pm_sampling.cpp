// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/counters/pm_sampling.h"

#include <cupti_pmsampling.h>
#include <cupti_result.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "gpuscope/base/clock.h"

namespace gpuscope::counters {
namespace {

using namespace std::chrono_literals;

// How long samples may lie before they are read. Reading costs a call of CUPTI even where there are few, so that the
// thread rests for nine times what it took: a tenth of a core, unless the GPU's buffer was seen to fill up meanwhile.
constexpr std::chrono::nanoseconds kLeastRest = 5ms;
constexpr std::chrono::nanoseconds kMostRest = 100ms;
// And no longer than so many samples take: a call that had 500 to read took so long that samples were lost meanwhile
// (H100, 24 metrics every 100 us: 0.59 of the time was sampled, and all of it with 50).
constexpr int kSamplesOfARead = 50;
constexpr int kRestPerRead = 9;
constexpr std::size_t kHardwareBufferBytes = std::size_t{64} << 20;
constexpr uint32_t kSamplesOfImage = 1024;
// What is decoded and not taken: some seconds at 10 us.
constexpr std::size_t kMostWaiting = std::size_t{1} << 19;

template <class Params>
Params sized(std::size_t size, void* object) {
  Params params{};
  params.structSize = size;
  params.pPmSamplingObject = static_cast<CUpti_PmSampling_Object*>(object);
  return params;
}

#define GPUSCOPE_PM_PARAMS(Name) \
  sized<CUpti_PmSampling_##Name##_Params>(CUpti_PmSampling_##Name##_Params_STRUCT_SIZE, object_)

/// Turing and GA100 have no clock for samples but the system's, and Turing keeps the oldest only.
bool has_time_trigger(const std::string& chip) { return !chip.starts_with("TU") && chip != "GA100"; }

Bytes read_availability(const driver::Cupti& cupti, int device) {
  CUpti_PmSampling_GetCounterAvailability_Params params{};
  params.structSize = CUpti_PmSampling_GetCounterAvailability_Params_STRUCT_SIZE;
  params.deviceIndex = static_cast<std::size_t>(device);
  GPUSCOPE_PROFILER(cupti, pm_availability, params);
  Bytes image(params.counterAvailabilityImageSize);
  params.pCounterAvailabilityImage = image.data();
  GPUSCOPE_PROFILER(cupti, pm_availability, params);
  return image;
}

Properties describe(const Host& host, const std::string& metric) {
  try {
    return host.properties(metric);
  } catch (const Refused&) {
    return {};
  }
}

int64_t ns_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace

PmSampler::PmSampler(const driver::Cupti& cupti, const Request& request, int device)
    : cupti_(cupti),
      device_(device),
      interval_ns_(request.interval_ns),
      chip_(chip_of(cupti, device)),
      availability_(read_availability(cupti, device)) {
  choice_ = choose_single_pass(cupti_, Collection::Sampling, chip_, availability_, request.metrics);
  if (request.in_full && !choice_.unknown.empty()) {
    throw base::InvalidArgument("counters has " + listed(choice_.unknown) + ", which " + chip_ +
                                " cannot sample; `gpuscope counters` lists what it can");
  }
  if (request.in_full && !choice_.too_many.empty()) {
    throw base::InvalidArgument("counters has more than " + chip_ + " samples at a time: without " +
                                listed(choice_.too_many) + " they fit");
  }
  if (choice_.metrics.empty()) {
    throw base::NotAvailable("sampling of hardware counters", "none of those asked for exists on " + chip_, "");
  }
  names_ = pointers(choice_.metrics);
  row_.resize(names_.size());
  host_ = std::make_unique<Host>(cupti_, Collection::Sampling, chip_, availability_);
  host_->configure(choice_.metrics, &choice_.image);
  for (const std::string& metric : choice_.metrics) {
    const Properties properties = describe(*host_, metric);
    sampled_.push_back({metric, properties.unit, properties.description});
  }
  enable();
}

PmSampler::~PmSampler() { close(); }

void PmSampler::close() noexcept {
  try {
    stop();
  } catch (const base::Error&) {  // it ends with what follows
  }
  disable();
}

void PmSampler::enable() {
  CUpti_PmSampling_Enable_Params enable{};
  enable.structSize = CUpti_PmSampling_Enable_Params_STRUCT_SIZE;
  enable.deviceIndex = static_cast<std::size_t>(device_);
  GPUSCOPE_PROFILER(cupti_, pm_enable, enable);
  object_ = enable.pPmSamplingObject;
  try {
    set_config();
    auto size = GPUSCOPE_PM_PARAMS(GetCounterDataSize);
    size.pMetricNames = names_.data();
    size.numMetrics = names_.size();
    size.maxSamples = kSamplesOfImage;
    GPUSCOPE_PROFILER(cupti_, pm_data_size, size);
    data_.assign(size.counterDataSize, 0);
    initialize_data();
  } catch (...) {
    disable();
    throw;
  }
}

void PmSampler::disable() noexcept {
  auto params = GPUSCOPE_PM_PARAMS(Disable);
  if (std::exchange(object_, nullptr) != nullptr && cupti_.pm_disable != nullptr) {
    cupti_.pm_disable(&params);
  }
}

void PmSampler::set_config() {
  const bool by_time = has_time_trigger(chip_);
  auto params = GPUSCOPE_PM_PARAMS(SetConfig);
  params.configSize = choice_.image.size();
  params.pConfig = choice_.image.data();
  params.hardwareBufferSize = kHardwareBufferBytes;
  // The system's clock varies around 1 GHz; samples have times of their own.
  params.samplingInterval = static_cast<uint64_t>(interval_ns_);
  params.triggerMode =
      by_time ? CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_TIME_INTERVAL : CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_SYSCLK_INTERVAL;
  // A full buffer is said only where the oldest samples are kept.
  params.hwBufferAppendMode = CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_OLDEST;
  GPUSCOPE_PROFILER(cupti_, pm_set_config, params);
}

void PmSampler::initialize_data() {
  auto params = GPUSCOPE_PM_PARAMS(CounterDataImage_Initialize);
  params.counterDataSize = data_.size();
  params.pCounterData = data_.data();
  GPUSCOPE_PROFILER(cupti_, pm_data_initialize, params);
}

void PmSampler::start() {
  if (running_) {
    return;
  }
  try {
    start_once();
  } catch (const Refused&) {
    disable();
    enable();
    start_once();
  }
  running_ = skips_ = true;
}

void PmSampler::start_once() {
  auto params = GPUSCOPE_PM_PARAMS(Start);
  GPUSCOPE_PROFILER(cupti_, pm_start, params);
}

void PmSampler::stop() {
  if (std::exchange(running_, false)) {
    auto params = GPUSCOPE_PM_PARAMS(Stop);
    GPUSCOPE_PROFILER(cupti_, pm_stop, params);
  }
}

bool PmSampler::decode(Samples& into) {
  bool complete = true;
  for (bool more = true; more;) {
    auto decode = GPUSCOPE_PM_PARAMS(DecodeData);
    decode.pCounterDataImage = data_.data();
    decode.counterDataImageSize = data_.size();
    if (cupti_.pm_decode == nullptr) {
      throw_missing(cupti_, "pm_decode");
    }
    const int code = cupti_.pm_decode(&decode);
    if (code == CUPTI_ERROR_OUT_OF_MEMORY) {
      return false;
    }
    if (code != 0) {
      throw Refused(cupti_, "pm_decode", code);
    }
    complete = complete && decode.overflow == 0;
    auto info = CUpti_PmSampling_GetCounterDataInfo_Params{};
    info.structSize = CUpti_PmSampling_GetCounterDataInfo_Params_STRUCT_SIZE;
    info.pCounterDataImage = data_.data();
    info.counterDataImageSize = data_.size();
    GPUSCOPE_PROFILER(cupti_, pm_data_info, info);
    for (std::size_t index = 0; index < info.numCompletedSamples; ++index) {
      auto sample = GPUSCOPE_PM_PARAMS(CounterData_GetSampleInfo);
      sample.pCounterDataImage = data_.data();
      sample.counterDataImageSize = data_.size();
      sample.sampleIndex = index;
      GPUSCOPE_PROFILER(cupti_, pm_sample_info, sample);
      if (std::exchange(skips_, false)) {
        continue;
      }
      host_->evaluate(data_, index, names_, row_);
      into.starts.push_back(sample.startTimestamp);
      into.ends.push_back(sample.endTimestamp);
      into.values.insert(into.values.end(), row_.begin(), row_.end());
    }
    initialize_data();
    more = info.numCompletedSamples != 0 &&
           decode.decodeStopReason == CUPTI_PM_SAMPLING_DECODE_STOP_REASON_COUNTER_DATA_FULL;
  }
  return complete;
}

PmSampling::PmSampling(const driver::Cupti& cupti, const Request& request) {
  const auto began = std::chrono::steady_clock::now();
  for (const int device : request.devices) {
    samplers_.push_back(std::make_unique<PmSampler>(cupti, request, device));
  }
  most_rest_ = std::max<std::chrono::nanoseconds>(
      kLeastRest, std::min<std::chrono::nanoseconds>(kMostRest, request.interval_ns * 1ns * kSamplesOfARead));
  fresh_.resize(samplers_.size());
  decoded_.resize(samplers_.size());
  for (const auto& sampler : samplers_) {
    sampler->start();
  }
  times_.start_ns = ns_since(began);
  thread_ = std::thread([this] { run(); });
}

PmSampling::~PmSampling() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PmSampling::take(std::vector<Samples>& into) {
  for (Samples& samples : into) {
    samples.clear();
  }
  into.resize(samplers_.size());
  const std::lock_guard lock(mutex_);
  decoded_.swap(into);
}

void PmSampling::finish_samples(bool last) {
  std::unique_lock lock(mutex_);
  if (is_over_) {
    return;
  }
  finish_ = last ? Finish::End : Finish::GoOn;
  changed_.notify_all();
  changed_.wait(lock, [this] { return finish_ == Finish::No; });
}

PmSampling::Times PmSampling::times() {
  const std::lock_guard lock(mutex_);
  return times_;
}

std::string PmSampling::why_ended() {
  const std::lock_guard lock(mutex_);
  return why_ended_;
}

void PmSampling::decode_all() {
  for (std::size_t index = 0; index < samplers_.size(); ++index) {
    if (!samplers_[index]->decode(fresh_[index])) {
      overflows_.fetch_add(1, std::memory_order_relaxed);
      most_rest_ = std::max(kLeastRest, most_rest_ / 2);
      samplers_[index]->stop();  // a buffer that was full takes nothing more
    }
  }
}

void PmSampling::hand_over() {
  const std::lock_guard lock(mutex_);
  for (std::size_t index = 0; index < samplers_.size(); ++index) {
    Samples& from = fresh_[index];
    Samples& to = decoded_[index];
    if (to.size() + from.size() > kMostWaiting) {
      overflows_.fetch_add(1, std::memory_order_relaxed);
    } else {
      to.starts.insert(to.starts.end(), from.starts.begin(), from.starts.end());
      to.ends.insert(to.ends.end(), from.ends.begin(), from.ends.end());
      to.values.insert(to.values.end(), from.values.begin(), from.values.end());
    }
    from.clear();
  }
}

std::string PmSampling::read(Finish finish) {
  std::string why;
  // What one step cannot do keeps the others from nothing: the samples so far are handed over whatever is refused.
  const auto timed = [&why](auto&& step) {
    const auto began = std::chrono::steady_clock::now();
    try {
      step();
    } catch (const std::exception& error) {
      why = why.empty() ? error.what() : why;
    }
    return ns_since(began);
  };
  const auto each = [this](auto&& step) {
    for (const auto& sampler : samplers_) {
      step(*sampler);
    }
  };
  Times times;
  if (finish != Finish::No) {
    times.stop_ns = timed([&] { each([](PmSampler& sampler) { sampler.stop(); }); });
  }
  times.decode_ns = timed([this] { decode_all(); });
  timed([this] { hand_over(); });
  if (finish == Finish::End) {
    times.disable_ns = timed([&] { each([](PmSampler& sampler) { sampler.close(); }); });
  } else if (why.empty()) {
    timed([&] { each([](PmSampler& sampler) { sampler.start(); }); });
  }
  if (finish != Finish::No) {
    const std::lock_guard lock(mutex_);
    times.start_ns = times_.start_ns;
    times_ = times;
  }
  return why;
}

void PmSampling::run() noexcept {
  pthread_setname_np(pthread_self(), "gpuscope-pm");
  base::prepare_to_throw();
  std::chrono::nanoseconds rest = kLeastRest;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (is_over_) {
      changed_.wait(lock, [this] { return ends_; });
      break;
    }
    changed_.wait_for(lock, rest, [this] { return ends_ || finish_ != Finish::No; });
    if (ends_) {
      break;
    }
    const Finish finish = finish_;
    lock.unlock();
    const auto began = std::chrono::steady_clock::now();
    const int64_t cpu_ns = base::thread_cpu_ns();
    std::string why = read(finish);
    if (finish == Finish::No) {  // `times` has what ending takes
      cpu_ns_.fetch_add(base::thread_cpu_ns() - cpu_ns, std::memory_order_relaxed);
      rest = std::clamp<std::chrono::nanoseconds>(kRestPerRead * (std::chrono::steady_clock::now() - began), kLeastRest,
                                                  most_rest_);
    }
    lock.lock();
    is_over_ = finish == Finish::End || !why.empty();
    why_ended_ = std::move(why);
    finish_ = finish == finish_ || is_over_ ? Finish::No : finish_;
    changed_.notify_all();
  }
  is_over_ = true;
  finish_ = Finish::No;
  lock.unlock();
  changed_.notify_all();
  samplers_.clear();
}

}  // namespace gpuscope::counters
