// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/driver/libraries.h"

namespace gpuscope::counters {

/// A function of CUPTI's profilers refused: which, why, and the step that would change it.
class Refused : public base::NotAvailable {
 public:
  Refused(const driver::Cupti& cupti, const char* call, driver::CuptiResult code);
  driver::CuptiResult code() const noexcept { return code_; }

 private:
  driver::CuptiResult code_;
};

/// Throws NotAvailable: this libcupti has no such function.
[[noreturn]] void throw_missing(const driver::Cupti& cupti, const char* call);

// Calls a function of the profilers with one of CUPTI's structures. Throws what stands above.
#define GPUSCOPE_PROFILER(cupti, member, params)                                   \
  do {                                                                             \
    if ((cupti).member == nullptr) {                                               \
      ::gpuscope::counters::throw_missing(cupti, #member);                         \
    }                                                                              \
    if (const int gpuscope_code = (cupti).member(&(params)); gpuscope_code != 0) { \
      throw ::gpuscope::counters::Refused(cupti, #member, gpuscope_code);          \
    }                                                                              \
  } while (false)

using Bytes = std::vector<uint8_t>;

/// Who collects: the metrics of the two differ.
enum class Collection : int { Ranges = 0, Sampling = 1 };  // CUpti_ProfilerType

/// What a chip can count, under the name that its roll-ups and submetrics hang on: `dram__bytes_read` has `.sum`.
struct Metric {
  std::string name;
  int type = 0;  // CUpti_MetricType: counter, ratio, throughput
};

/// What a metric is about, by its name with or without roll-up. Texts are "" where CUPTI has none.
struct Properties {
  std::string description;
  std::string hardware;  // the unit of the chip
  std::string unit;      // of the values
};

/// CUPTI's host-side object for one chip: names, configurations and values; no GPU needed with CUPTI 13.0. A metric
/// that was added stays in the configuration, and after one that was refused the object makes no more (seen with
/// CUPTI 13.0), so each configuration has an object of its own: 4 ms.
///
/// One thread at a time.
class Host {
 public:
  /// `chip` as "GH100"; `availability`: the image of what this GPU permits, none where it is not known. Throws
  /// NotAvailable.
  Host(const driver::Cupti& cupti, Collection collection, const std::string& chip,
       std::span<const uint8_t> availability);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  std::vector<Metric> metrics() const;
  /// What may follow the name of a metric: ".sum", ".avg.pct_of_peak_sustained_elapsed", ...
  std::vector<std::string> endings(const Metric& metric) const;
  Properties properties(const std::string& metric) const;

  /// Whether all of these can be configured together; in `image`, when it is given, the result.
  bool configure(std::span<const std::string> metrics, Bytes* image = nullptr);
  /// The values of one range or sample of an image of counter data, in the order of the metrics.
  void evaluate(std::span<const uint8_t> data, std::size_t index, std::span<const char* const> metrics,
                std::span<double> values) const;

 private:
  const driver::Cupti& cupti_;
  void* object_ = nullptr;
};

/// How often the work must be repeated for a configuration.
std::size_t passes_of(const driver::Cupti& cupti, Bytes& image);

/// The chips that this libcupti knows. Throws NotAvailable.
std::vector<std::string> supported_chips(const driver::Cupti& cupti);
/// The chip of a device of CUDA, as "GH100". Initialises CUPTI's profilers. Throws NotAvailable.
std::string chip_of(const driver::Cupti& cupti, int device);

/// Metrics that are collected in one pass, and why the others are not.
struct Choice {
  std::vector<std::string> metrics;
  std::vector<std::string> unknown;   // to this chip
  std::vector<std::string> too_many;  // would take another pass
  Bytes image;                        // the configuration
};

/// The first of these that fit into one pass, each taken or left in turn. Throws NotAvailable.
Choice choose_single_pass(const driver::Cupti& cupti, Collection collection, const std::string& chip,
                          std::span<const uint8_t> availability, std::span<const std::string> wanted);

/// For CUPTI's lists of names, which it takes as pointers.
std::vector<const char*> pointers(std::span<const std::string> names);

}  // namespace gpuscope::counters
