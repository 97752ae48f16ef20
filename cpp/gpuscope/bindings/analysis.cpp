// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "gpuscope/analysis/instances.h"
#include "gpuscope/analysis/summary.h"
#include "gpuscope/analysis/work_names.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/store/labels.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

template <class T>
using Numbers = py::array_t<T, py::array::c_style | py::array::forcecast>;

/// The name of each row of the variant table.
std::vector<std::string> kernel_names(const store::Store& store, bool shorten) {
  std::vector<std::string> by_id(store.strings.size());
  std::vector<std::string> names;
  names.reserve(store.variant.size());
  for (std::size_t row = 0; row < store.variant.size(); ++row) {
    const uint32_t id = store.variant.name[row] < by_id.size() ? store.variant.name[row] : 0;
    if (by_id[id].empty()) {
      by_id[id] = base::to_utf8(base::demangle(store.strings[id]));
      if (shorten) {
        by_id[id] = base::short_name(by_id[id]);
      }
    }
    names.push_back(by_id[id]);
  }
  return names;
}

/// One column of an Instances as a read-only array on its memory, which it keeps alive.
template <auto Column>
py::array column(const py::object& owner) {
  const auto& values = owner.cast<const analysis::Instances&>().*Column;
  using T = typename std::remove_cvref_t<decltype(values)>::value_type;
  py::array_t<T> array(static_cast<py::ssize_t>(values.size()), values.data(), owner);
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

std::vector<analysis::Durations> measure_groups(const Numbers<int64_t>& durations_ns, const Numbers<uint32_t>& group,
                                                std::size_t count) {
  const std::span<const int64_t> durations(durations_ns.data(), static_cast<std::size_t>(durations_ns.size()));
  const std::span<const uint32_t> groups(group.data(), static_cast<std::size_t>(group.size()));
  if (durations.size() != groups.size()) {
    throw base::InvalidArgument("group has " + std::to_string(groups.size()) +
                                " entries; accepted is one for each of " + std::to_string(durations.size()) +
                                " durations");
  }
  if (!groups.empty() && std::ranges::max(groups) >= count) {
    throw base::InvalidArgument("group holds " + std::to_string(std::ranges::max(groups)) +
                                "; accepted are numbers below count, " + std::to_string(count));
  }
  const py::gil_scoped_release release;
  return analysis::measure_groups(durations, groups, count);
}

}  // namespace

void bind_analysis(py::module_& module) {
  using analysis::Durations, analysis::Instances, analysis::NameStat, analysis::PathStat, analysis::Summary,
      analysis::WorkStat;

  py::class_<Durations>(module, "Durations", "What a set of durations comes to, in ns.")
      .def_readonly("count", &Durations::count)
      .def_readonly("total_ns", &Durations::total_ns)
      .def_readonly("min_ns", &Durations::min_ns)
      .def_readonly("max_ns", &Durations::max_ns)
      .def_readonly("p50_ns", &Durations::p50_ns)
      .def_readonly("p95_ns", &Durations::p95_ns)
      .def_readonly("p99_ns", &Durations::p99_ns);
  py::class_<PathStat>(module, "PathStat", "The regions of one call path; times in ns.")
      .def_readonly("cpu", &PathStat::cpu)
      .def_readonly("self_cpu_ns", &PathStat::self_cpu_ns)
      .def_readonly("self_device_ns", &PathStat::self_device_ns)
      .def_readonly("device_ns", &PathStat::device_ns);
  py::class_<WorkStat>(module, "WorkStat", "Work of one name on one call path; times in ns.")
      .def_property_readonly("kind", [](const WorkStat& stat) { return static_cast<int>(stat.kind); })
      .def_readonly("name", &WorkStat::name)
      .def_readonly("path", &WorkStat::path)
      .def_readonly("capture", &WorkStat::capture)
      .def_readonly("bytes", &WorkStat::bytes)
      .def_readonly("durations", &WorkStat::durations);
  py::class_<NameStat>(module, "NameStat", "Everything of one kind and name; times in ns.")
      .def_property_readonly("kind", [](const NameStat& stat) { return static_cast<int>(stat.kind); })
      .def_readonly("name", &NameStat::name)
      .def_readonly("region_kind", &NameStat::region_kind)
      .def_readonly("bytes", &NameStat::bytes)
      .def_readonly("durations", &NameStat::durations)
      .def_readonly("cpu_ns", &NameStat::cpu_ns)
      .def_readonly("self_cpu_ns", &NameStat::self_cpu_ns)
      .def_readonly("device_ns", &NameStat::device_ns)
      .def_readonly("self_device_ns", &NameStat::self_device_ns)
      .def_readonly("is_top_level", &NameStat::is_top_level);
  // Its lists are made anew on each read: read each once.
  py::class_<Summary>(module, "Summary", "What a recording comes to, per call path and per name.")
      .def_readonly("names", &Summary::names)
      .def_readonly("paths", &Summary::paths)
      .def_readonly("path_names", &Summary::path_names)
      .def_readonly("work", &Summary::work)
      .def_readonly("totals", &Summary::totals)
      .def_readonly("cpu_ns", &Summary::cpu_ns)
      .def_readonly("device_ns", &Summary::device_ns)
      .def_readonly("has_device", &Summary::has_device);

  py::class_<Instances>(module, "Instances", "What each region came to: arrays with one entry a region, ns and bytes.")
      .def_property_readonly("self_cpu_ns", &column<&Instances::self_cpu_ns>)
      .def_property_readonly("device_ns", &column<&Instances::device_ns>)
      .def_property_readonly("self_device_ns", &column<&Instances::self_device_ns>)
      .def_property_readonly("cpu_bytes", &column<&Instances::cpu_bytes>)
      .def_property_readonly("self_cpu_bytes", &column<&Instances::self_cpu_bytes>)
      .def_property_readonly("device_bytes", &column<&Instances::device_bytes>)
      .def_property_readonly("self_device_bytes", &column<&Instances::self_device_bytes>)
      .def_property_readonly("outermost", &column<&Instances::outermost>);

  module.def("measure_instances", &analysis::measure_instances, py::arg("store"),
             py::call_guard<py::gil_scoped_release>(), "Times and memory of each region.");
  module.def("measure_groups", &measure_groups, py::arg("durations_ns"), py::arg("group"), py::arg("count"),
             "The durations of each of `count` groups; `group` says which one each duration belongs to.");
  module.def("summarize", &analysis::summarize, py::arg("store"), py::call_guard<py::gil_scoped_release>(),
             "Statistics per call path and per name.");
  module.def("kernel_names", &kernel_names, py::arg("store"), py::arg("shorten") = false,
             "The demangled name of each row of the variant table.");
  module.def(
      "copy_name",
      [](uint8_t kind, uint8_t source, uint8_t destination) {
        return store::copy_name(store::CopyKind{kind}, store::MemoryKind{source}, store::MemoryKind{destination});
      },
      py::arg("kind"), py::arg("source"), py::arg("destination"), "The name torch.profiler gives a copy.");
  module.def(
      "event_name",
      [](const store::Store& store, uint16_t kind, std::size_t row) {
        return base::to_utf8(analysis::event_name(store, analysis::Kind{kind}, row));
      },
      py::arg("store"), py::arg("kind"), py::arg("row"), "The name of one row of the event table of a kind.");
  module.def("demangle", &base::demangle, py::arg("symbol"), "A symbol as its source spells it.");
  module.def("short_name", &base::short_name, py::arg("demangled"),
             "A demangled name without return type, template arguments and parameters.");
}

}  // namespace gpuscope::bindings
