// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/gpm.h"

#include "gpuscope/nvml/device.h"

namespace gpuscope::nvml {
namespace {

constexpr int64_t kShortestSpanNs = 100'000'000;       // between two samples, as required by nvml.h
constexpr int64_t kShortestStepNs = 45'000'000;        // so that four samples span more than that
constexpr int64_t kLongestSpanNs = 7'200'000'000'000;  // GPUs are sampled at least every hour
constexpr int64_t kPatienceNs = 2'000'000'000;         // utilization lags by up to 1 s

struct GpmFigure {
  const char* name;
  unsigned id;
  double unit;
  std::optional<double> GpmState::*member;
};
#define GPUSCOPE_GPM_ROW(figure, id, unit) GpmFigure{#figure, id, unit, &GpmState::figure},
constexpr std::array kGpmFigures{GPUSCOPE_GPM_FIGURES(GPUSCOPE_GPM_ROW)};
#undef GPUSCOPE_GPM_ROW

}  // namespace

GpmReader::GpmReader(const driver::Nvml& nvml, driver::NvmlDevice device, std::optional<unsigned> instance)
    : nvml_(nvml), device_(device), instance_(instance) {
  if (nvml_.gpm_support == nullptr || (instance_ && nvml_.gpm_mig_sample_get == nullptr) ||
      nvml_.gpm_sample_alloc == nullptr || nvml_.gpm_sample_free == nullptr || nvml_.gpm_sample_get == nullptr ||
      nvml_.gpm_metrics == nullptr) {
    refuse(kNoFunction);
    return;
  }
  driver::NvmlGpmSupport support;
  if (const int code = nvml_.gpm_support(device_, &support); code != 0) {
    refuse(nvml_.error_text(code));
  } else if (support.is_supported == 0) {
    refuse("this GPU counts it in no way that NVML reads: Hopper and later do");
  } else {
    metrics_ = std::make_unique<driver::NvmlGpmMetrics>();
  }
  for (GpmSample& sample : samples_) {
    driver::NvmlGpmSample data = nullptr;
    if (is_refused_) {
      return;
    }
    if (const int code = nvml_.gpm_sample_alloc(&data); code != 0) {
      refuse(nvml_.error_text(code));
      return;
    }
    sample.data = {data, FreeGpmSample{nvml_.gpm_sample_free}};
  }
}

void GpmReader::refuse(const std::string& reason) {
  is_refused_ = true;
  for (const GpmFigure& figure : kGpmFigures) {
    state_.*figure.member = std::nullopt;
    state_.why[figure.name] = reason;
  }
}

int GpmReader::take(driver::NvmlGpmSample sample) const {
  return instance_ ? nvml_.gpm_mig_sample_get(device_, *instance_, sample) : nvml_.gpm_sample_get(device_, sample);
}

const GpmSample* GpmReader::before(int64_t now_ns) const {
  const GpmSample* found = nullptr;
  for (const GpmSample& sample : samples_) {
    const int64_t age_ns = now_ns - sample.ns;
    const bool fits = sample.ns != 0 && age_ns >= kShortestSpanNs && age_ns <= kLongestSpanNs;
    if (fits && (found == nullptr || sample.ns > found->ns)) {
      found = &sample;
    }
  }
  return found;
}

const GpmState& GpmReader::read(int64_t now_ns, bool is_busy) {
  if (is_refused_ || (samples_[newest_].ns != 0 && now_ns - samples_[newest_].ns < kShortestStepNs)) {
    return state_;
  }
  newest_ = (newest_ + 1) % samples_.size();
  GpmSample& newest = samples_[newest_];
  newest.ns = 0;
  if (const int code = take(newest.data.get()); code != 0) {
    refuse(nvml_.error_text(code));
    is_refused_ = is_refusal(code);
    return state_;
  }
  newest.ns = now_ns;
  if (const GpmSample* from = before(now_ns); from != nullptr) {
    evaluate(*from, newest);
    distrust_zeros(now_ns, is_busy);
  } else if (state_.why.empty() && !state_.sm_active_ratio) {
    refuse("it is a mean over 0.1 s or more, which have not passed yet");
    is_refused_ = false;
  }
  return state_;
}

void GpmReader::evaluate(const GpmSample& from, const GpmSample& to) {
  metrics_->count = kGpmFigures.size();
  metrics_->before = from.data.get();
  metrics_->after = to.data.get();
  for (std::size_t index = 0; index < kGpmFigures.size(); ++index) {
    metrics_->metrics[index] = {};
    metrics_->metrics[index].id = kGpmFigures[index].id;
  }
  if (const int code = nvml_.gpm_metrics(metrics_.get()); code != 0) {
    refuse(nvml_.error_text(code));
    is_refused_ = is_refusal(code);
    return;
  }
  state_.why.clear();
  for (std::size_t index = 0; index < kGpmFigures.size(); ++index) {
    const driver::NvmlGpmMetric& metric = metrics_->metrics[index];
    const GpmFigure& figure = kGpmFigures[index];
    const bool is_told = metric.code == 0 && metric.value >= 0;  // and no NaN
    state_.*figure.member = is_told ? std::optional(metric.value * figure.unit) : std::nullopt;
    if (!is_told) {
      state_.why[figure.name] = metric.code != 0 ? nvml_.error_text(metric.code) : "NVML gave no number";
    }
  }
}

// The counters stop when another profiler takes them, and after some errors. An unexplained zero must not be shown.
void GpmReader::distrust_zeros(int64_t now_ns, bool is_busy) {
  if (!is_busy || state_.sm_active_ratio.value_or(1) > 0) {
    zero_since_ns_.reset();
    return;
  }
  if (now_ns - zero_since_ns_.value_or(now_ns) >= kPatienceNs) {
    refuse("the counters read 0 while kernels run: another profiler may have them, or they have stopped");
    is_refused_ = false;
  }
  zero_since_ns_ = zero_since_ns_.value_or(now_ns);
}

}  // namespace gpuscope::nvml
