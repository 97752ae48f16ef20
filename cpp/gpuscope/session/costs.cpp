// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/costs.h"

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/event_log.h"
#include "gpuscope/driver/devices.h"
#include "gpuscope/timing/context.h"

namespace gpuscope::session {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kEventsOfACall = 2;  // its beginning and its end
constexpr int64_t kEventsOfARegion = 2;

constexpr int kBatches = 7;
constexpr int kEventsOfABatch = 500;  // all batches fit a chunk of a log
constexpr int kCallsOfABatch = 32;    // a queue takes 1,024; long batches gave half the cost per call (H100)
constexpr int kWarmUp = 16;
constexpr auto kQueryInterval = std::chrono::microseconds(50);
constexpr unsigned kNoTiming = 2;  // CU_EVENT_DISABLE_TIMING
constexpr int kNotReady = 600;

constexpr const char* kEmpty =
    "\n.visible .global .align 8 .b8 gpuscope_place[8];\n.visible .entry gpuscope_empty() { ret; }\n";

template <class Times>
double median(Times& times) {
  const auto middle = times.begin() + times.size() / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

/// Memory written between two timed calls, so that the CPU's caches look as in a program. Back-to-back, launches and
/// copies lost only 0.4 us each to CUPTI, but 0.8 and 1.2 us among torch's operators (H100, Xeon).
class Between {
 public:
  void write() noexcept {
    constexpr std::size_t kLine = 64 / sizeof(uint64_t);
    for (std::size_t at = 0; at < memory_.size(); at += kLine) {
      const_cast<volatile uint64_t&>(memory_[at]) = at;
    }
  }

 private:
  std::vector<uint64_t> memory_ = std::vector<uint64_t>((std::size_t{512} << 10) / sizeof(uint64_t));
};

/// The median time of a call in batches, in ns, with other memory accesses in between. Excludes `after`. Throws
/// NotAvailable if the calls of a batch take longer than `limit`.
template <class F, class G>
double median_time(Between& between, F&& call, G&& after, std::chrono::nanoseconds limit) {
  std::vector<double> times;
  for (int batch = 0; batch < kBatches; ++batch) {
    std::chrono::nanoseconds spent{};
    for (int made = 0; made < kCallsOfABatch; ++made) {
      between.write();
      const auto began = Clock::now();
      call();
      const std::chrono::nanoseconds took = Clock::now() - began;
      times.push_back(static_cast<double>(took.count()));
      spent += took;
      if (spent > limit) {
        throw base::NotAvailable("the cost of a launch", "the driver was busy with other work", "");
      }
    }
    after();
  }
  return median(times);
}

/// The first device with a primary context: CUDA's runtime and all frameworks use it.
int device_in_use(const driver::Cuda& cuda) {
  int count = 0;
  if (cuda.launch_kernel == nullptr || cuda.device_get_count == nullptr || cuda.device_get_count(&count) != 0) {
    throw base::NotAvailable("the cost of a launch", "the driver is not in use", "");
  }
  const std::vector<int> found = driver::devices_in_use(cuda);
  if (found.empty()) {
    throw base::NotAvailable("the cost of a launch", "the program has no primary context", "");
  }
  return found.front();
}

}  // namespace

Overhead overhead_of(const attribution::Counters& counters, const Costs& costs) noexcept {
  const auto count = [](uint64_t value) { return static_cast<double>(value); };
  const uint64_t recorded = counters.launches + counters.copies;
  const uint64_t others = counters.callbacks > recorded ? counters.callbacks - recorded : 0;
  const double events =
      count(counters.callbacks) * kEventsOfACall + count(counters.region_events) + count(counters.function_events);
  return {.own_ns = static_cast<int64_t>(events * costs.event_ns) +
                    static_cast<int64_t>(counters.work_ns + counters.function_work_ns),
          .cupti_ns = static_cast<int64_t>(count(counters.launches) * costs.launch_ns +
                                           count(counters.copies) * costs.copy_ns + count(others) * costs.call_ns)};
}

EventCosts event_costs_of(const attribution::Counters& counters, const Costs& costs) noexcept {
  const double own_ns = kEventsOfACall * costs.event_ns;
  const auto events = static_cast<double>(counters.region_events);
  const double regions = static_cast<double>(counters.region_events) / static_cast<double>(kEventsOfARegion);
  const double of_regions_ns = events * costs.event_ns + static_cast<double>(counters.work_ns);
  return {.launch_ns = static_cast<int64_t>(own_ns + costs.launch_ns),
          .copy_ns = static_cast<int64_t>(own_ns + costs.copy_ns),
          .call_ns = static_cast<int64_t>(own_ns + costs.call_ns),
          .region_ns = regions > 0 ? static_cast<int64_t>(of_regions_ns / regions) : 0};
}

double measure_event() noexcept {
  static_assert(kBatches * kEventsOfABatch < static_cast<int>(base::EventChunk::kCapacity));
  try {
    base::EventLog log;
    std::array<double, kBatches> times{};
    for (double& each : times) {
      const auto began = Clock::now();
      for (int made = 0; made < kEventsOfABatch; ++made) {
        log.append(base::ticks(), 1, base::Op::Enter);
      }
      const std::chrono::nanoseconds took = Clock::now() - began;
      each = static_cast<double>(took.count()) / kEventsOfABatch;
    }
    return median(times);
  } catch (const std::exception&) {  // no memory
    return Costs{}.event_ns;
  }
}

struct LaunchProbe::Work {
  timing::PrimaryContext context;
  std::optional<timing::Module> module;
  driver::CuFunction function = nullptr;
  driver::CuPointer place = 0;
  driver::CuStream stream = nullptr;
  driver::CuEvent event = nullptr;

  Work(const driver::Cuda& cuda, int ordinal) : context(cuda, ordinal) {}
  ~Work() {
    context.release_in([this](const driver::Cuda& cuda) {
      if (event != nullptr) {
        cuda.event_destroy(event);
      }
      if (stream != nullptr) {
        cuda.stream_destroy(stream);
      }
    });
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  void make() {
    const driver::Cuda& cuda = context.cuda();
    const timing::PrimaryContext::Current current(context);
    if (timing::is_capturing(cuda, nullptr)) {
      throw base::NotAvailable("the cost of a launch", "a stream of the program is captured", "");
    }
    module.emplace(context, kEmpty);
    function = module->function("gpuscope_empty");
    place = module->variable("gpuscope_place");
    GPUSCOPE_CUDA(cuda, stream_create, &stream, timing::kNonBlocking);
    GPUSCOPE_CUDA(cuda, event_create, &event, kNoTiming);
  }

  void copy() const {
    const uint64_t nothing = 0;
    GPUSCOPE_CUDA(context.cuda(), copy_to_device, place, &nothing, sizeof(nothing), stream);
  }
  void launch() const { module->launch(function, 1, 1, reinterpret_cast<uint64_t>(stream), nullptr); }
  bool wait(std::chrono::nanoseconds limit) const {
    const driver::Cuda& cuda = context.cuda();
    GPUSCOPE_CUDA(cuda, event_record, event, stream);
    const auto began = Clock::now();
    int code = kNotReady;
    while ((code = cuda.event_query(event)) == kNotReady && Clock::now() - began < limit) {
      std::this_thread::sleep_for(kQueryInterval);
    }
    if (code != 0 && code != kNotReady) {
      throw base::CudaError("cuEventQuery", code, cuda.error_name(code));
    }
    return code == 0;
  }
};

LaunchProbe::LaunchProbe(const driver::Cuda& cuda, std::chrono::nanoseconds limit) : limit_(limit) {
  const timing::RelaxedCapture relaxed(cuda);  // another thread may begin to capture
  work_ = std::make_unique<Work>(cuda, device_in_use(cuda));
  work_->make();
}

LaunchProbe::~LaunchProbe() {
  if (work_ != nullptr) {
    const driver::Cuda cuda = work_->context.cuda();  // which goes with it
    const timing::RelaxedCapture relaxed(cuda);
    work_.reset();
  }
}

LaunchProbe::Times LaunchProbe::measure() {
  const driver::Cuda& cuda = work_->context.cuda();
  const timing::RelaxedCapture relaxed(cuda);
  const timing::PrimaryContext::Current current(work_->context);
  const auto wait = [this] {
    if (!work_->wait(limit_)) {
      static auto* const left_behind = new std::vector<std::unique_ptr<Work>>;  // permanent: destruction would wait
      left_behind->push_back(std::move(work_));
      throw base::NotAvailable("the cost of a launch", "the GPU was busy with other work", "");
    }
  };
  for (int launched = 0; launched < kWarmUp; ++launched) {
    work_->launch();
  }
  wait();
  Between between;
  const auto time_of = [&](auto&& call) { return median_time(between, call, wait, limit_ / kBatches); };
  return {.launch_ns = time_of([this] { work_->launch(); }),
          .copy_ns = time_of([this] { work_->copy(); }),
          .call_ns = time_of([&] { cuda.stream_synchronize(work_->stream); })};
}

}  // namespace gpuscope::session
