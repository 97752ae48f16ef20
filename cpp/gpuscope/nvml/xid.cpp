// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/nvml/xid.h"

#include <utility>

#include "gpuscope/nvml/device.h"

namespace gpuscope::nvml {
namespace {

// nvml.h
constexpr unsigned long long kXidCriticalError = 0x8;
constexpr int kTimeout = 10;

constexpr unsigned kWaitMs = 0;   // events are returned at once, on an H200 too
constexpr int kMostEvents = 256;  // per call: a GPU that fails repeatedly must not delay the others

}  // namespace

XidReader::XidReader(const driver::Nvml& nvml) : nvml_(nvml) {}

XidReader::~XidReader() { drop_set(); }

bool XidReader::has_set() {
  if (set_ != nullptr) {
    return true;
  }
  if (nvml_.event_set_create == nullptr || nvml_.event_set_free == nullptr || nvml_.event_set_wait == nullptr ||
      nvml_.register_events == nullptr) {
    set_why_ = kNoFunction;
  } else if (const int code = nvml_.event_set_create(&set_); code != 0) {
    set_ = nullptr;
    set_why_ = nvml_.error_text(code);
  }
  return set_ != nullptr;
}

void XidReader::drop_set() {
  if (set_ != nullptr) {
    nvml_.event_set_free(std::exchange(set_, nullptr));
  }
  for (auto& [gpu, watched] : gpus_) {
    watched.device = nullptr;  // to be registered again
  }
}

void XidReader::watch(unsigned gpu, driver::NvmlDevice device) {
  Watched& watched = gpus_[gpu];
  if (device == watched.device) {
    return;
  }
  watched.device = device;
  if (device == nullptr) {
    return;
  }
  if (!has_set()) {
    watched.why = set_why_;
    return;
  }
  const int code = nvml_.register_events(device, kXidCriticalError, set_);
  watched.why = code == 0 ? "" : nvml_.error_text(code);
  watched.was_told = watched.was_told || code == 0;
}

void XidReader::read(int64_t now_ns) {
  for (int number = 0; set_ != nullptr && number < kMostEvents; ++number) {
    driver::NvmlEvent event;
    const int code = nvml_.event_set_wait(set_, &event, kWaitMs);
    if (code == kTimeout) {
      return;
    }
    if (code != 0) {  // the driver was unloaded or a GPU is lost: start again with the remaining GPUs
      drop_set();
      return;
    }
    if ((event.type & kXidCriticalError) == 0) {
      continue;
    }
    for (auto& [gpu, watched] : gpus_) {
      if (watched.device == event.device) {
        XidCount& counted = watched.counts[event.data];
        counted = {event.data, counted.count + 1, now_ns};
      }
    }
  }
}

std::optional<std::vector<XidCount>> XidReader::counts(unsigned gpu) const {
  const auto found = gpus_.find(gpu);
  if (found == gpus_.end() || !found->second.was_told) {
    return std::nullopt;
  }
  std::vector<XidCount> counts;
  for (const auto& [xid, counted] : found->second.counts) {
    counts.push_back(counted);
  }
  return counts;
}

std::string XidReader::why(unsigned gpu) const {
  const auto found = gpus_.find(gpu);
  if (found == gpus_.end() || (!found->second.was_told && found->second.why.empty())) {
    return "the GPU is not there";
  }
  return found->second.was_told ? "" : found->second.why;
}

}  // namespace gpuscope::nvml
