// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/counters/metrics.h"
#include "gpuscope/counters/range_profiler.h"
#include "gpuscope/driver/devices.h"
#include "gpuscope/session/session.h"
#include "gpuscope/timing/context.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

using counters::Collection;

/// Opens the libraries with the GIL, then calls `work` without it.
template <class F>
auto without_gil(F&& work) {
  session::Vendor& libraries = vendor();
  const py::gil_scoped_release unlocked;
  return work(libraries);
}

Collection collection(bool sampling) { return sampling ? Collection::Sampling : Collection::Ranges; }

std::string chip_of_device(int device) {
  return without_gil([&](session::Vendor& libraries) {
    driver::find_device(libraries.cuda, device);  // initializes the driver
    return counters::chip_of(libraries.collector.cupti(), device);
  });
}

std::vector<std::string> supported_chips() {
  return without_gil([](session::Vendor& libraries) { return counters::supported_chips(libraries.collector.cupti()); });
}

/// Name, CUpti_MetricType, unit of the chip, unit of the values, description.
using Listed = std::tuple<std::string, int, std::string, std::string, std::string>;

std::vector<Listed> list_counters(const std::string& chip, bool sampling) {
  return without_gil([&](session::Vendor& libraries) {
    const counters::Host host(libraries.collector.cupti(), collection(sampling), chip, {});
    std::vector<Listed> listed;
    for (const counters::Metric& metric : host.metrics()) {
      counters::Properties about;
      try {
        about = host.properties(metric.name);
      } catch (const counters::Refused&) {  // CUPTI lists some metrics that it does not describe
      }
      listed.emplace_back(metric.name, metric.type, about.hardware, about.unit, about.description);
    }
    return listed;
  });
}

std::vector<std::string> counter_endings(const std::string& chip, bool sampling, const std::string& name, int type) {
  return without_gil([&](session::Vendor& libraries) {
    return counters::Host(libraries.collector.cupti(), collection(sampling), chip, {}).endings({name, type});
  });
}

using Chosen = std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<std::string>>;

Chosen choose_counters(const std::string& chip, bool sampling, const std::vector<std::string>& wanted) {
  return without_gil([&](session::Vendor& libraries) {
    counters::Choice choice =
        counters::choose_single_pass(libraries.collector.cupti(), collection(sampling), chip, {}, wanted);
    return Chosen{std::move(choice.metrics), std::move(choice.unknown), std::move(choice.too_many)};
  });
}

/// The range profiler of a device's primary context. CUDA's runtime and all frameworks use this context.
class RangeCounters {
 public:
  RangeCounters(session::Vendor& libraries, int device, const std::vector<std::string>& metrics)
      : context_(libraries.cuda, device) {
    if (session::Session::active()) {
      throw base::InvalidArgument("counters are measured while a profiler runs: stop it first");
    }
    const timing::PrimaryContext::Current current(context_);
    profiler_ =
        std::make_unique<counters::RangeProfiler>(libraries.collector.cupti(), context_.handle(), device, metrics);
    passes_ = profiler_->passes();
    chip_ = profiler_->chip();
  }
  ~RangeCounters() { close(); }
  RangeCounters(const RangeCounters&) = delete;
  RangeCounters& operator=(const RangeCounters&) = delete;

  void begin_pass() {
    const timing::PrimaryContext::Current current(context_);
    GPUSCOPE_CUDA(context_.cuda(), context_synchronize);
    profiler().begin_pass();
  }
  bool end_pass() {
    const timing::PrimaryContext::Current current(context_);
    GPUSCOPE_CUDA(context_.cuda(), context_synchronize);
    return profiler().end_pass();
  }
  std::vector<double> read() {
    const timing::PrimaryContext::Current current(context_);
    return profiler().read();
  }
  /// Releases the counters, also in the middle of a pass. Idempotent.
  void close() noexcept {
    context_.release_in([this](const driver::Cuda& cuda) {
      if (profiler_ != nullptr && cuda.context_synchronize != nullptr) {
        cuda.context_synchronize();  // a range ends when its GPU work has ended
      }
      profiler_.reset();
    });
    (void)profiler_.release();  // no CUPTI calls for a context that was reset
  }
  std::size_t passes() const noexcept { return passes_; }
  std::string chip() const { return chip_; }

 private:
  counters::RangeProfiler& profiler() {
    if (profiler_ == nullptr) {
      throw base::InvalidArgument("the counters were closed");
    }
    return *profiler_;
  }

  timing::PrimaryContext context_;
  std::size_t passes_ = 0;
  std::string chip_;
  std::unique_ptr<counters::RangeProfiler> profiler_;
};

}  // namespace

void bind_counters(py::module_& module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  module.def("counter_chip", &chip_of_device, py::arg("device") = 0,
             "The chip of a device, as CUPTI calls it: \"GH100\".");
  module.def("counter_chips", &supported_chips, "The chips that this libcupti knows the hardware counters of.");
  module.def(
      "list_counters", &list_counters, py::arg("chip"), py::kw_only(), py::arg("sampling"),
      "Metrics of a chip, without endings: name, type (0 counter, 1 ratio, 2 throughput), unit of the chip, unit "
      "of the values, description.");
  module.def("counter_endings", &counter_endings, py::arg("chip"), py::kw_only(), py::arg("sampling"), py::arg("name"),
             py::arg("kind"), "What may follow that name: \".sum\", ...");
  module.def("choose_counters", &choose_counters, py::arg("chip"), py::kw_only(), py::arg("sampling"),
             py::arg("wanted"),
             "The first of these metrics that fit into one pass; those that the chip does not have; the others.");
  py::class_<RangeCounters>(module, "RangeCounters", "Exact values of metrics over work that is repeated.")
      .def(py::init([](int device, const std::vector<std::string>& metrics) {
             return without_gil([&](session::Vendor& libraries) {
               return std::make_unique<RangeCounters>(libraries, device, metrics);
             });
           }),
           py::arg("device"), py::arg("metrics"))
      .def("begin_pass", &RangeCounters::begin_pass, Unlocked(), "Waits for the device; what runs from now on counts.")
      .def("end_pass", &RangeCounters::end_pass, Unlocked(),
           "Waits for the device; whether the work must be repeated once more.")
      .def("read", &RangeCounters::read, Unlocked(), "After the last pass: values in the order of the metrics.")
      .def("close", &RangeCounters::close, Unlocked(),
           "Gives the counters back, also in the middle of a pass; nothing more can be measured with these.")
      .def_property_readonly("passes", &RangeCounters::passes, "How often the work is repeated.")
      .def_property_readonly("chip", &RangeCounters::chip, "The chip, as CUPTI calls it.");
}

}  // namespace gpuscope::bindings
