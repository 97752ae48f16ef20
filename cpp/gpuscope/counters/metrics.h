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

/// A function of CUPTI's profilers refused: which one, why, and the fix.
class Refused : public base::NotAvailable {
 public:
  Refused(const driver::Cupti& cupti, const char* call, driver::CuptiResult code);
  driver::CuptiResult code() const noexcept { return code_; }

 private:
  driver::CuptiResult code_;
};

/// Throws NotAvailable: this libcupti has no such function.
[[noreturn]] void throw_missing(const driver::Cupti& cupti, const char* call);

// Calls a function of the profilers with one of CUPTI's structures. Throws the errors above.
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

/// The collecting profiler. The two have different metrics.
enum class Collection : int { Ranges = 0, Sampling = 1 };  // CUpti_ProfilerType

/// A counter, ratio or throughput of a chip, by base name: `dram__bytes_read` has the roll-up `.sum`.
struct Metric {
  std::string name;
  int type = 0;  // CUpti_MetricType: counter, ratio, throughput
};

/// The properties of a metric, by its name with or without roll-up. Texts are "" if CUPTI has none.
struct Properties {
  std::string description;
  std::string hardware;  // the unit of the chip
  std::string unit;      // of the values
};

/// CUPTI's host-side object for one chip: names, configurations and values. Needs no GPU with CUPTI 13.0. An added
/// metric stays in the configuration. After a refused metric, the object accepts no more (CUPTI 13.0). So each
/// configuration has its own object: 4 ms.
///
/// One thread at a time.
class Host {
 public:
  /// `chip`: such as "GH100". `availability`: the image of the counters that this GPU permits, empty if unknown. Throws
  /// NotAvailable.
  Host(const driver::Cupti& cupti, Collection collection, const std::string& chip,
       std::span<const uint8_t> availability);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  std::vector<Metric> metrics() const;
  /// The possible suffixes of a metric: ".sum", ".avg.pct_of_peak_sustained_elapsed", ...
  std::vector<std::string> endings(const Metric& metric) const;
  Properties properties(const std::string& metric) const;

  /// Whether all metrics can be configured together. Stores the result in `image`, if given.
  bool configure(std::span<const std::string> metrics, Bytes* image = nullptr);
  /// The values of one range or sample of a counter data image, in the order of the metrics.
  void evaluate(std::span<const uint8_t> data, std::size_t index, std::span<const char* const> metrics,
                std::span<double> values) const;

 private:
  const driver::Cupti& cupti_;
  void* object_ = nullptr;
};

/// How often the work must be repeated for a configuration.
std::size_t passes_of(const driver::Cupti& cupti, Bytes& image);

/// The chips that this libcupti supports. Throws NotAvailable.
std::vector<std::string> supported_chips(const driver::Cupti& cupti);
/// The chip of a CUDA device, such as "GH100". Initialises CUPTI's profilers. Throws NotAvailable.
std::string chip_of(const driver::Cupti& cupti, int device);

/// Metrics that are collected in one pass, and why the others are not.
struct Choice {
  std::vector<std::string> metrics;
  std::vector<std::string> unknown;   // to this chip
  std::vector<std::string> too_many;  // would take another pass
  Bytes image;                        // the configuration
};

/// Tries each metric in order, and keeps it if the kept ones fit into one pass. Throws NotAvailable.
Choice choose_single_pass(const driver::Cupti& cupti, Collection collection, const std::string& chip,
                          std::span<const uint8_t> availability, std::span<const std::string> wanted);

/// CUPTI takes lists of names as pointers.
std::vector<const char*> pointers(std::span<const std::string> names);

}  // namespace gpuscope::counters
