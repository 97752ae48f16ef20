// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/counters/pm_sampling.h"

#include <cupti_pmsampling.h>
#include <cupti_result.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/hooks.h"

namespace gpuscope::counters {
namespace {

using namespace std::chrono_literals;

// The interval between reads. A read is a call of CUPTI even for few samples. So the thread rests nine times as long as
// the read took, unless too many samples would arrive. It then uses a tenth of a core.
constexpr std::chrono::nanoseconds kLeastRest = 5ms;
constexpr std::chrono::nanoseconds kMostRest = 100ms;
constexpr int kSamplesOfARead = 50;
constexpr int kRestPerRead = 9;
constexpr std::size_t kHardwareBufferBytes = std::size_t{64} << 20;
// An image takes 51 KB (H100, 24 metrics), and 7 to 14 us to clear. It is reused until it may lack room for new
// samples, including those that arrive during decoding. Busy hosts may delay a thread by 50 ms.
constexpr uint32_t kSamplesOfImage = 2048;
constexpr std::size_t kMostImages = 2;
constexpr std::size_t kRoomPerSample = 2;
constexpr std::size_t kLeastRoom = 768;
// The interval grows if samples come faster than they are read, up to this limit: then an image covers two seconds.
constexpr int64_t kSlowestNs = 1'000'000;
// Decoded samples that were not taken: some seconds at 10 us.
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

/// Turing and GA100 can only use the system's clock for samples, and Turing only keeps the oldest.
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

void Samples::make_room(std::size_t more, std::size_t more_values) {
  const auto grow = [](auto& column, std::size_t count) {
    if (column.capacity() - column.size() < count) {
      column.reserve(std::max(column.size() + count, 2 * column.size()));
    }
  };
  grow(starts, more);
  grow(ends, more);
  grow(values, more_values);
}

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
  } catch (const base::Error&) {  // the object ends anyway
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
    image_bytes_ = size.counterDataSize;
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
  // The system's clock varies around 1 GHz. Samples have their own times.
  params.samplingInterval = static_cast<uint64_t>(interval_ns_);
  params.triggerMode =
      by_time ? CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_TIME_INTERVAL : CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_SYSCLK_INTERVAL;
  // CUPTI reports a full buffer only in this mode.
  params.hwBufferAppendMode = CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_OLDEST;
  GPUSCOPE_PROFILER(cupti_, pm_set_config, params);
}

void PmSampler::start() {
  if (running_) {
    return;
  }
  if (std::exchange(has_lost_, false)) {  // otherwise the buffer would be read again
    disable();
    interval_ns_ = std::max(interval_ns_, std::min(2 * interval_ns_, kSlowestNs));
    enable();
  }
  try {
    start_once();
  } catch (const Refused&) {
    disable();
    enable();
    start_once();
  }
  running_ = skips_ = true;
  last_end_ = 0;
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

bool PmSampler::follows(uint64_t start) const noexcept {
  const auto most = static_cast<uint64_t>(interval_ns_ / 2);
  return start + most >= last_end_ && start <= last_end_ + most;
}

std::size_t PmSampler::samples_of_image() noexcept { return kSamplesOfImage; }

void PmSampler::clear(Decoded& image) {
  image.first = 0;
  image.starts.clear();
  image.ends.clear();
  image.image.resize(image_bytes_);
  auto params = GPUSCOPE_PM_PARAMS(CounterDataImage_Initialize);
  params.counterDataSize = image.image.size();
  params.pCounterData = image.image.data();
  GPUSCOPE_PROFILER(cupti_, pm_data_initialize, params);
}

bool PmSampler::decode(Decoded& into) {
  auto decode = GPUSCOPE_PM_PARAMS(DecodeData);
  decode.pCounterDataImage = into.image.data();
  decode.counterDataImageSize = into.image.size();
  if (cupti_.pm_decode == nullptr) {
    throw_missing(cupti_, "pm_decode");
  }
  const int code = cupti_.pm_decode(&decode);
  if (code == CUPTI_ERROR_OUT_OF_MEMORY) {
    has_lost_ = true;
    return false;
  }
  if (code != 0) {
    throw Refused(cupti_, "pm_decode", code);
  }
  has_lost_ = has_lost_ || decode.overflow != 0 ||
              decode.decodeStopReason == CUPTI_PM_SAMPLING_DECODE_STOP_REASON_COUNTER_DATA_FULL;
  auto info = CUpti_PmSampling_GetCounterDataInfo_Params{};
  info.structSize = CUpti_PmSampling_GetCounterDataInfo_Params_STRUCT_SIZE;
  info.pCounterDataImage = into.image.data();
  info.counterDataImageSize = into.image.size();
  GPUSCOPE_PROFILER(cupti_, pm_data_info, info);
  std::size_t index = into.used();
  const bool skips = index < info.numCompletedSamples && std::exchange(skips_, false);
  into.first = skips ? 1 : into.first;
  for (; index < info.numCompletedSamples; ++index) {
    auto sample = GPUSCOPE_PM_PARAMS(CounterData_GetSampleInfo);
    sample.pCounterDataImage = into.image.data();
    sample.counterDataImageSize = into.image.size();
    sample.sampleIndex = index;
    GPUSCOPE_PROFILER(cupti_, pm_sample_info, sample);
    if (last_end_ != 0 && !follows(sample.startTimestamp)) {
      has_lost_ = true;
      break;
    }
    last_end_ = sample.endTimestamp;
    if (index >= into.first) {
      into.starts.push_back(sample.startTimestamp);
      into.ends.push_back(sample.endTimestamp);
    }
  }
  return !has_lost_;
}

void PmSampler::evaluate(const Decoded& decoded, Samples& into) {
  into.make_room(decoded.starts.size(), decoded.starts.size() * row_.size());
  for (std::size_t index = 0; index < decoded.starts.size(); ++index) {
    host_->evaluate(decoded.image, decoded.first + index, names_, row_);
    into.starts.push_back(decoded.starts[index]);
    into.ends.push_back(decoded.ends[index]);
    into.values.insert(into.values.end(), row_.begin(), row_.end());
  }
}

PmReader::PmReader(std::unique_ptr<PmSampler> sampler)
    : sampler_(std::move(sampler)), interval_ns_(sampler_->interval_ns()) {
  free_.reserve(kMostImages);  // so that returning an image never fails
  thread_ = base::start_thread("a sample of hardware counters", [this] { run(); });
}

PmReader::~PmReader() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PmReader::take(Samples& into) {
  into.clear();
  const std::lock_guard lock(mutex_);
  std::swap(samples_, into);
}

void PmReader::ask(Change change) {
  {
    const std::lock_guard lock(mutex_);
    const bool is_done = change == Change::Start ? is_active_ : change == Change::Stop && !is_active_;
    if (is_over_ || is_done) {
      return;
    }
    asked_ = change;
  }
  changed_.notify_all();
}

void PmReader::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return asked_ == Change::None && (!is_over_ || (decoded_.empty() && !evaluates_)); });
}

PmReader::Times PmReader::times() {
  const std::lock_guard lock(mutex_);
  return times_;
}

std::string PmReader::why_ended() {
  const std::lock_guard lock(mutex_);
  return why_ended_;
}

void PmReader::take_image() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !free_.empty() || images_ < kMostImages; });
    if (free_.empty()) {
      ++images_;
    } else {
      image_ = std::move(free_.back());
      free_.pop_back();
    }
  }
  sampler_->clear(image_);
}

void PmReader::hand_over() {
  {
    const std::lock_guard lock(mutex_);
    decoded_.push_back(std::move(image_));
    image_ = {};
  }
  changed_.notify_all();
}

bool PmReader::has_room() const noexcept {
  // Since the last decoding began: samples that came during it may not be decoded yet.
  const auto come = static_cast<std::size_t>(ns_since(decode_began_) / interval_ns());
  return image_.used() + kRoomPerSample * come + kLeastRoom <= PmSampler::samples_of_image();
}

void PmReader::decode(bool is_last) {
  if (image_.used() != 0 && !has_room()) {
    hand_over();
  }
  if (image_.image.empty()) {
    take_image();
  }
  decode_began_ = std::chrono::steady_clock::now();
  bool complete = false;
  try {
    complete = sampler_->decode(image_);
  } catch (...) {
    hand_over();  // samples that were decoded earlier
    throw;
  }
  if (is_last || !complete) {
    hand_over();
  }
  if (!complete) {
    overflows_.fetch_add(1, std::memory_order_relaxed);
    sampler_->stop();
  }
}

// Under the lock.
void PmReader::add(const Samples& samples) {
  if (samples_.size() + samples.size() > kMostWaiting) {
    overflows_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  samples_.make_room(samples.size(), samples.values.size());
  samples_.starts.insert(samples_.starts.end(), samples.starts.begin(), samples.starts.end());
  samples_.ends.insert(samples_.ends.end(), samples.ends.begin(), samples.ends.end());
  samples_.values.insert(samples_.values.end(), samples.values.begin(), samples.values.end());
}

void PmReader::evaluate() noexcept {
  pthread_setname_np(pthread_self(), "gpuscope-pm-2");
  base::prepare_to_throw();
  Samples fresh;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !decoded_.empty() || has_decoded_all_; });
    if (decoded_.empty()) {
      return;
    }
    Decoded image = std::move(decoded_.front());
    decoded_.pop_front();
    evaluates_ = true;
    lock.unlock();
    const int64_t cpu_ns = base::thread_cpu_ns();
    std::string why;
    try {
      sampler_->evaluate(image, fresh);
    } catch (const std::exception& error) {
      why = error.what();
    }
    cpu_ns_.fetch_add(base::thread_cpu_ns() - cpu_ns, std::memory_order_relaxed);
    lock.lock();
    evaluates_ = false;
    try {
      add(fresh);
    } catch (const std::exception& error) {
      why = error.what();
    }
    if (!why.empty()) {
      why_not_evaluated_ = std::move(why);
    }
    fresh.clear();
    free_.push_back(std::move(image));
    changed_.notify_all();
  }
}

std::string PmReader::read(Change change) {
  std::string why;
  // A failed step must not prevent the others: the samples so far are always evaluated.
  const auto timed = [&why](auto&& step) {
    const auto began = std::chrono::steady_clock::now();
    try {
      step();
    } catch (const std::exception& error) {
      why = why.empty() ? error.what() : why;
    }
    return ns_since(began);
  };
  Times times = this->times();
  const bool stops = change == Change::Stop || change == Change::End;
  if (is_active_) {  // no other thread changes it
    if (stops) {
      times.stop_ns = timed([this] { sampler_->stop(); });
    }
    times.decode_ns = timed([this, stops] { decode(stops); });
    if (stops) {
      times.decode_ns += timed([this] {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return decoded_.empty() && !evaluates_; });
      });
    }
    const std::lock_guard lock(mutex_);
    why = why.empty() ? why_not_evaluated_ : why;
  }
  if (change == Change::End) {
    times.disable_ns = timed([this] { sampler_->close(); });
  } else if (!stops && why.empty()) {
    decode_began_ = change == Change::Start ? std::chrono::steady_clock::now() : decode_began_;
    const int64_t took_ns = timed([this] { sampler_->start(); });
    times.start_ns = change == Change::Start ? took_ns : times.start_ns;
    interval_ns_.store(sampler_->interval_ns(), std::memory_order_relaxed);
  }
  const std::lock_guard lock(mutex_);
  times_ = times;
  return why;
}

void PmReader::run() noexcept {
  pthread_setname_np(pthread_self(), "gpuscope-pm");
  base::prepare_to_throw();
  std::chrono::nanoseconds rest = kLeastRest;
  std::thread evaluator;
  Decoded first;
  std::string why_not;
  try {
    evaluator = base::start_thread("a sample of hardware counters", [this] { evaluate(); });
    sampler_->clear(first);  // allocates its memory while no thread waits for it
  } catch (const std::exception& error) {
    why_not = error.what();
  }
  std::unique_lock lock(mutex_);
  is_over_ = !why_not.empty();
  why_ended_ = std::move(why_not);
  asked_ = is_over_ ? Change::None : asked_;
  free_.push_back(std::move(first));
  images_ = 1;
  changed_.notify_all();
  while (true) {
    const auto is_asked = [this] { return ends_ || (asked_ != Change::None && !is_over_); };
    if (is_active_) {
      changed_.wait_for(lock, rest, is_asked);
    } else {
      changed_.wait(lock, is_asked);
    }
    if (ends_) {
      break;
    }
    const Change change = asked_;
    lock.unlock();
    const auto began = std::chrono::steady_clock::now();
    const int64_t cpu_ns = base::thread_cpu_ns();
    std::string why = read(change);
    if (change == Change::None) {  // `times` counts the other changes
      cpu_ns_.fetch_add(base::thread_cpu_ns() - cpu_ns, std::memory_order_relaxed);
      const std::chrono::nanoseconds interval(interval_ns());
      const auto most = std::clamp<std::chrono::nanoseconds>(interval * kSamplesOfARead, kLeastRest, kMostRest);
      rest = std::clamp<std::chrono::nanoseconds>(kRestPerRead * (std::chrono::steady_clock::now() - began), kLeastRest,
                                                  most);
    }
    lock.lock();
    is_over_ = change == Change::End || !why.empty();
    is_active_ = !is_over_ && (change == Change::None || change == Change::Start);
    why_ended_ = std::move(why);
    asked_ = change == asked_ || is_over_ ? Change::None : asked_;
    changed_.notify_all();
  }
  is_active_ = false;
  is_over_ = true;
  asked_ = Change::None;
  has_decoded_all_ = true;
  lock.unlock();
  changed_.notify_all();
  if (evaluator.joinable()) {
    evaluator.join();
  }
  sampler_->close();
}

PmSampling::PmSampling(const driver::Cupti& cupti, const Request& request) {
  const auto began = std::chrono::steady_clock::now();
  readers_.reserve(request.devices.size());
  for (const int device : request.devices) {
    readers_.push_back(std::make_unique<PmReader>(std::make_unique<PmSampler>(cupti, request, device)));
  }
  make_ns_ = ns_since(began);
}

void PmSampling::begin() {
  wait_finished();
  for (const auto& reader : readers_) {
    reader->ask(PmReader::Change::Start);
  }
  wait_finished();
}

void PmSampling::begin_finish(bool last) {
  for (const auto& reader : readers_) {
    reader->ask(last ? PmReader::Change::End : PmReader::Change::Stop);
  }
}

void PmSampling::wait_finished() {
  for (const auto& reader : readers_) {
    reader->wait();
  }
}

void PmSampling::take(std::vector<Samples>& into) {
  into.resize(readers_.size());
  for (std::size_t index = 0; index < readers_.size(); ++index) {
    readers_[index]->take(into[index]);
  }
}

PmSampling::Times PmSampling::times() {
  Times longest;
  longest.make_ns = make_ns_;
  for (const auto& reader : readers_) {
    const PmReader::Times times = reader->times();
    for (const auto step : {&PmReader::Times::start_ns, &PmReader::Times::stop_ns, &PmReader::Times::decode_ns,
                            &PmReader::Times::disable_ns}) {
      longest.steps.*step = std::max(longest.steps.*step, times.*step);
    }
  }
  return longest;
}

int64_t PmSampling::interval_ns() const noexcept {
  int64_t longest = 0;
  for (const auto& reader : readers_) {
    longest = std::max(longest, reader->interval_ns());
  }
  return longest;
}

uint64_t PmSampling::take_overflows() noexcept {
  uint64_t overflows = 0;
  for (const auto& reader : readers_) {
    overflows += reader->take_overflows();
  }
  return overflows;
}

int64_t PmSampling::take_cpu_time() noexcept {
  int64_t cpu_ns = 0;
  for (const auto& reader : readers_) {
    cpu_ns += reader->take_cpu_time();
  }
  return cpu_ns;
}

std::string PmSampling::why_ended() {
  for (const auto& reader : readers_) {
    if (std::string why = reader->why_ended(); !why.empty()) {
      return why;
    }
  }
  return "";
}

}  // namespace gpuscope::counters
