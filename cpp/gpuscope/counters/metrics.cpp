// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/counters/metrics.h"

#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_result.h>
#include <cupti_target.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace gpuscope::counters {
namespace {

using driver::Cupti;

constexpr const char* kWhat = "reading hardware counters";

// CUPTI refuses structures that are larger than in its own version. Structures that grew have the size of CUDA 12.6,
// which later versions accept.
constexpr std::size_t kHostInitializeSize =
    offsetof(CUpti_Profiler_Host_Initialize_Params, pHostObject) + sizeof(CUpti_Profiler_Host_Object*);
constexpr std::size_t kPropertiesSize =
    offsetof(CUpti_Profiler_Host_GetMetricProperties_Params, metricType) + sizeof(CUpti_MetricType);

template <class Params>
Params sized(std::size_t size) {
  Params params{};
  params.structSize = size;
  return params;
}

const char* text_or_empty(const char* text) { return text != nullptr ? text : ""; }

std::string reason(const Cupti& cupti, const char* call, int code) {
  const std::string name = cupti.error_name(code) + " (" + std::to_string(code) + ")";
  switch (code) {
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
      return "the driver lets administrators alone read them, " + name;
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return "the host of this virtual machine does not permit it, " + name;
    case CUPTI_ERROR_HARDWARE_BUSY:
    case CUPTI_ERROR_INVALID_OPERATION:
    case CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED:
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      return "another tool seems to hold them, " + std::string(call) + " failed with " + name;
    case CUPTI_ERROR_INVALID_CHIP_NAME:
      return "this libcupti does not know the chip, " + name;
    default:
      return std::string(call) + " failed with " + name;
  }
}

const char* remedy(int code) {
  switch (code) {
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
      return "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN, or with "
             "CAP_PERFMON and a driver of R565 or later";
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return "ask for profiling to be enabled for the virtual GPU";
    case CUPTI_ERROR_HARDWARE_BUSY:
    case CUPTI_ERROR_INVALID_OPERATION:
    case CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED:
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      return "end ncu, nsys and other profilers, and pause DCGM with `dcgmi profile --pause`";
    case CUPTI_ERROR_INVALID_CHIP_NAME:
      return "install a newer nvidia-cuda-cupti";
    default:
      return "";
  }
}

}  // namespace

Refused::Refused(const Cupti& cupti, const char* call, driver::CuptiResult code)
    : NotAvailable(kWhat, reason(cupti, call, code), remedy(code)), code_(code) {}

void throw_missing(const Cupti& cupti, const char* call) {
  if (!cupti.library && cupti.get_version == nullptr) {
    throw base::NotAvailable(kWhat, "libcupti was not found", "install nvidia-cuda-cupti 13");
  }
  throw base::NotAvailable(kWhat, "libcupti " + cupti.library.path() + " has no " + call,
                           "use CUPTI of CUDA 12.6 or later");
}

Host::Host(const Cupti& cupti, Collection collection, const std::string& chip, std::span<const uint8_t> availability)
    : cupti_(cupti) {
  auto params = sized<CUpti_Profiler_Host_Initialize_Params>(kHostInitializeSize);
  params.profilerType = static_cast<CUpti_ProfilerType>(collection);
  params.pChipName = chip.c_str();
  params.pCounterAvailabilityImage = availability.empty() ? nullptr : availability.data();
  GPUSCOPE_PROFILER(cupti_, host_initialize, params);
  object_ = params.pHostObject;
}

Host::~Host() {
  auto params = sized<CUpti_Profiler_Host_Deinitialize_Params>(CUpti_Profiler_Host_Deinitialize_Params_STRUCT_SIZE);
  params.pHostObject = static_cast<CUpti_Profiler_Host_Object*>(object_);
  if (cupti_.host_deinitialize != nullptr) {
    cupti_.host_deinitialize(&params);
  }
}

std::vector<Metric> Host::metrics() const {
  std::vector<Metric> found;
  for (int type = 0; type < CUPTI_METRIC_TYPE__COUNT; ++type) {
    auto params =
        sized<CUpti_Profiler_Host_GetBaseMetrics_Params>(CUpti_Profiler_Host_GetBaseMetrics_Params_STRUCT_SIZE);
    params.pHostObject = static_cast<CUpti_Profiler_Host_Object*>(object_);
    params.metricType = static_cast<CUpti_MetricType>(type);
    GPUSCOPE_PROFILER(cupti_, host_base_metrics, params);
    for (std::size_t index = 0; index < params.numMetrics; ++index) {
      found.push_back({params.ppMetricNames[index], type});
    }
  }
  return found;
}

std::vector<std::string> Host::endings(const Metric& metric) const {
  auto params = sized<CUpti_Profiler_Host_GetSubMetrics_Params>(CUpti_Profiler_Host_GetSubMetrics_Params_STRUCT_SIZE);
  params.pHostObject = static_cast<CUpti_Profiler_Host_Object*>(object_);
  params.metricType = static_cast<CUpti_MetricType>(metric.type);
  params.pMetricName = metric.name.c_str();
  GPUSCOPE_PROFILER(cupti_, host_sub_metrics, params);
  return {params.ppSubMetrics, params.ppSubMetrics + params.numOfSubmetrics};
}

Properties Host::properties(const std::string& metric) const {
  auto params = sized<CUpti_Profiler_Host_GetMetricProperties_Params>(kPropertiesSize);
  params.pHostObject = static_cast<CUpti_Profiler_Host_Object*>(object_);
  params.pMetricName = metric.c_str();
  GPUSCOPE_PROFILER(cupti_, host_metric_properties, params);
  return {text_or_empty(params.pDescription), text_or_empty(params.pHwUnit), text_or_empty(params.pDimUnit)};
}

bool Host::configure(std::span<const std::string> metrics, Bytes* image) {
  std::vector<const char*> names = pointers(metrics);
  auto add =
      sized<CUpti_Profiler_Host_ConfigAddMetrics_Params>(CUpti_Profiler_Host_ConfigAddMetrics_Params_STRUCT_SIZE);
  add.pHostObject = static_cast<CUpti_Profiler_Host_Object*>(object_);
  add.ppMetricNames = names.data();
  add.numMetrics = names.size();
  if (cupti_.host_add_metrics == nullptr) {
    throw_missing(cupti_, "host_add_metrics");
  }
  if (cupti_.host_add_metrics(&add) != 0) {
    return false;
  }
  if (image == nullptr) {
    return true;
  }
  auto size =
      sized<CUpti_Profiler_Host_GetConfigImageSize_Params>(CUpti_Profiler_Host_GetConfigImageSize_Params_STRUCT_SIZE);
  size.pHostObject = add.pHostObject;
  GPUSCOPE_PROFILER(cupti_, host_config_image_size, size);
  image->assign(size.configImageSize, 0);
  auto get = sized<CUpti_Profiler_Host_GetConfigImage_Params>(CUpti_Profiler_Host_GetConfigImage_Params_STRUCT_SIZE);
  get.pHostObject = add.pHostObject;
  get.configImageSize = image->size();
  get.pConfigImage = image->data();
  GPUSCOPE_PROFILER(cupti_, host_config_image, get);
  return true;
}

void Host::evaluate(std::span<const uint8_t> data, std::size_t index, std::span<const char* const> metrics,
                    std::span<double> values) const {
  auto params =
      sized<CUpti_Profiler_Host_EvaluateToGpuValues_Params>(CUpti_Profiler_Host_EvaluateToGpuValues_Params_STRUCT_SIZE);
  params.pHostObject = static_cast<CUpti_Profiler_Host_Object*>(object_);
  params.pCounterDataImage = data.data();
  params.counterDataImageSize = data.size();
  params.rangeIndex = index;
  params.ppMetricNames = const_cast<const char**>(metrics.data());  // CUPTI only reads them
  params.numMetrics = metrics.size();
  params.pMetricValues = values.data();
  GPUSCOPE_PROFILER(cupti_, host_evaluate, params);
}

std::size_t passes_of(const Cupti& cupti, Bytes& image) {
  auto params = sized<CUpti_Profiler_Host_GetNumOfPasses_Params>(CUpti_Profiler_Host_GetNumOfPasses_Params_STRUCT_SIZE);
  params.configImageSize = image.size();
  params.pConfigImage = image.data();
  GPUSCOPE_PROFILER(cupti, host_passes, params);
  return params.numOfPasses;
}

std::vector<std::string> supported_chips(const Cupti& cupti) {
  auto params =
      sized<CUpti_Profiler_Host_GetSupportedChips_Params>(CUpti_Profiler_Host_GetSupportedChips_Params_STRUCT_SIZE);
  GPUSCOPE_PROFILER(cupti, host_supported_chips, params);
  return {params.ppChipNames, params.ppChipNames + params.numChips};
}

std::string chip_of(const Cupti& cupti, int device) {
  auto initialize = sized<CUpti_Profiler_Initialize_Params>(CUpti_Profiler_Initialize_Params_STRUCT_SIZE);
  GPUSCOPE_PROFILER(cupti, profiler_initialize, initialize);
  auto params = sized<CUpti_Device_GetChipName_Params>(CUpti_Device_GetChipName_Params_STRUCT_SIZE);
  params.deviceIndex = static_cast<std::size_t>(device);
  GPUSCOPE_PROFILER(cupti, chip_name, params);
  return text_or_empty(params.pChipName);
}

Choice choose_single_pass(const Cupti& cupti, Collection collection, const std::string& chip,
                          std::span<const uint8_t> availability, std::span<const std::string> wanted) {
  const auto can_configure = [&](std::span<const std::string> metrics, Bytes* image) {
    return Host(cupti, collection, chip, availability).configure(metrics, image);
  };
  Choice choice;
  // First all together: each configuration needs a host object (4 ms).
  const auto takes_all = [&](std::vector<std::string> metrics) {
    if (metrics.empty() || !can_configure(metrics, &choice.image) || passes_of(cupti, choice.image) != 1) {
      return false;
    }
    choice.metrics = std::move(metrics);
    return true;
  };
  std::vector<std::string> known(wanted.begin(), wanted.end());
  if (takes_all(known)) {
    return choice;
  }
  const auto is_unknown = [&](const std::string& metric) { return !can_configure({&metric, 1}, nullptr); };
  std::copy_if(known.begin(), known.end(), std::back_inserter(choice.unknown), is_unknown);
  std::erase_if(known, [&](const std::string& metric) { return std::ranges::count(choice.unknown, metric) != 0; });
  if (takes_all(known)) {
    return choice;
  }
  choice.image.clear();
  for (const std::string& metric : known) {
    choice.metrics.push_back(metric);
    Bytes image;
    if (can_configure(choice.metrics, &image) && passes_of(cupti, image) == 1) {
      choice.image = std::move(image);
    } else {  // some cannot be configured together
      choice.metrics.pop_back();
      choice.too_many.push_back(metric);
    }
  }
  return choice;
}

std::vector<const char*> pointers(std::span<const std::string> names) {
  std::vector<const char*> texts;
  texts.reserve(names.size());
  for (const std::string& name : names) {
    texts.push_back(name.c_str());
  }
  return texts;
}

}  // namespace gpuscope::counters
