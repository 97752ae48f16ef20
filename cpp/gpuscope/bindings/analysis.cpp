// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpuscope/analysis/breakdown.h"
#include "gpuscope/analysis/instances.h"
#include "gpuscope/analysis/queue_model.h"
#include "gpuscope/analysis/summary.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/bindings/reading.h"
#include "gpuscope/store/values.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

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

using Times = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

using Classes = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>;

template <class T>
std::span<const T> entries(const py::array_t<T, py::array::c_style | py::array::forcecast>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

py::array_t<int64_t> zeros(std::size_t rows, std::size_t columns) {  // pages without a write take no memory
  return py::module_::import("numpy").attr("zeros")(py::make_tuple(rows, columns), "int64");
}

py::tuple divide_time(const Times& window_starts, const Times& window_ends,
                      const std::vector<std::tuple<Times, Times, Classes>>& work, std::size_t count, bool covered) {
  const analysis::Intervals windows{entries(window_starts), entries(window_ends)};
  std::vector<analysis::ClassifiedIntervals> lists;
  for (const auto& [starts, ends, classes] : work) {
    lists.push_back({{entries(starts), entries(ends)}, entries(classes)});
  }
  py::array_t<int64_t> exclusive_ns = zeros(count + 1, windows.size());
  py::array_t<int64_t> covered_ns = zeros(covered ? count : 0, windows.size());
  const auto all = [](py::array_t<int64_t>& array) {
    return std::span<int64_t>(array.mutable_data(), static_cast<std::size_t>(array.size()));
  };
  const analysis::Division into{all(exclusive_ns), all(covered_ns)};
  {
    const py::gil_scoped_release released;
    analysis::divide_time(windows, lists, count, into);
  }
  return py::make_tuple(exclusive_ns, covered_ns);
}

py::array_t<int64_t> count_before(const Times& edges, const Times& moments, bool equal) {
  py::array_t<int64_t> counts(moments.size());
  const std::span<int64_t> all(counts.mutable_data(), static_cast<std::size_t>(counts.size()));
  {
    const py::gil_scoped_release released;
    analysis::count_before(entries(edges), entries(moments), equal, all);
  }
  return counts;
}

using Numbers = py::array_t<uint32_t, py::array::c_style | py::array::forcecast>;

py::array_t<int64_t> find_rows(const Numbers& known, const Numbers& wanted) {
  py::array_t<int64_t> rows(wanted.size());
  const std::span<int64_t> all(rows.mutable_data(), static_cast<std::size_t>(rows.size()));
  {
    const py::gil_scoped_release released;
    analysis::find_rows(entries(known), entries(wanted), all);
  }
  return rows;
}

/// One column of a C++ object as a read-only array on its memory, which it keeps alive.
template <class Owner, auto Column>
py::array column(const py::object& owner) {
  const auto& values = owner.cast<const Owner&>().*Column;
  using T = typename std::remove_cvref_t<decltype(values)>::value_type;
  py::array_t<T> array(static_cast<py::ssize_t>(values.size()), values.data(), owner);
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

using Factors = py::array_t<double, py::array::c_style | py::array::forcecast>;

py::array_t<int64_t> as_array(const std::vector<int64_t>& values) {
  return py::array_t<int64_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::array_t<int64_t> replay(const analysis::QueueModel& model, const Times& moments, std::optional<uint16_t> thread,
                            const Times& unwaited, const Times& removed_calls, const Times& host_spans,
                            const Times& kernels, const Factors& kernel_factors, const Times& copies,
                            const Factors& copy_factors) {
  analysis::QueueEdits edits{.unwaited = entries(unwaited),
                             .removed_calls = entries(removed_calls),
                             .host_spans = entries(host_spans),
                             .kernels = entries(kernels),
                             .kernel_factors = entries(kernel_factors),
                             .copies = entries(copies),
                             .copy_factors = entries(copy_factors)};
  if (host_spans.size() != 0 && (host_spans.ndim() != 2 || host_spans.shape(1) != 3)) {
    throw base::InvalidArgument("replayed: host_spans is not an array with three columns");
  }
  std::vector<int64_t> passed;
  {
    const py::gil_scoped_release released;
    passed = model.replayed(entries(moments), thread, edits);
  }
  return as_array(passed);
}

void bind_queue_model(py::module_& module) {
  using analysis::QueueModel;
  py::class_<QueueModel>(module, "QueueModel",
                         "A recording as threads, streams and what they wait for, which can run again. Moments are in "
                         "order, in ns; times that are returned are in ns after the first call.")
      .def(py::init([](store::Store& store) {
             return read_unlocked(store, [](const store::Store& read) { return std::make_unique<QueueModel>(read); });
           }),
           py::arg("store"))
      .def(
          "take_out",
          [](QueueModel& model, store::Store& store, int64_t launch_ns, int64_t copy_ns, int64_t call_ns,
             int64_t region_ns) {
            read_unlocked(store, [&](const store::Store& read) {
              model.take_out(read, {.launch = launch_ns, .copy = copy_ns, .call = call_ns, .region = region_ns});
            });
          },
          py::arg("store"), py::kw_only(), py::arg("launch_ns"), py::arg("copy_ns"), py::arg("call_ns"),
          py::arg("region_ns"), "From now on it runs again without what the recording cost for each event.")
      .def(
          "recorded",
          [](const QueueModel& model, const Times& moments, std::optional<uint16_t> thread) {
            return as_array(model.recorded(entries(moments), thread));
          },
          py::arg("moments"), py::arg("thread"),
          "When the thread was through with what it did before each moment, and the GPU with what was launched by "
          "then.")
      .def("replayed", &replay, py::arg("moments"), py::arg("thread"), py::arg("unwaited"), py::arg("removed_calls"),
           py::arg("host_spans"), py::arg("kernels"), py::arg("kernel_factors"), py::arg("copies"),
           py::arg("copy_factors"), "The same when it runs again, with edits, from the first of these moments on.")
      .def_property_readonly("calls", &QueueModel::calls, "How many calls the recording has.")
      .def_property_readonly("works", &QueueModel::works, "How much work the replay has.")
      .def_property_readonly("unlaunched", &QueueModel::unlaunched, "Work that it is without: its call is not known.");
}

}  // namespace

void bind_analysis(py::module_& module) {
  using analysis::Durations, analysis::FunctionNesting, analysis::Instances, analysis::NameStat, analysis::PathStat,
      analysis::RegionGroups, analysis::Summary, analysis::WorkStat;

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
      .def_readonly("suspended_ns", &PathStat::suspended_ns)
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
      .def_readonly("first_row", &NameStat::first_row)
      .def_readonly("bytes", &NameStat::bytes)
      .def_readonly("durations", &NameStat::durations)
      .def_readonly("cpu_ns", &NameStat::cpu_ns)
      .def_readonly("self_cpu_ns", &NameStat::self_cpu_ns)
      .def_readonly("suspended_ns", &NameStat::suspended_ns)
      .def_readonly("device_ns", &NameStat::device_ns)
      .def_readonly("self_device_ns", &NameStat::self_device_ns)
      .def_readonly("cpu_bytes", &NameStat::cpu_bytes)
      .def_readonly("self_cpu_bytes", &NameStat::self_cpu_bytes)
      .def_readonly("device_bytes", &NameStat::device_bytes)
      .def_readonly("self_device_bytes", &NameStat::self_device_bytes)
      .def_readonly("is_top_level", &NameStat::is_top_level);
  py::class_<Instances>(module, "Instances", "What each region came to: arrays with one entry a region, ns and bytes.")
      .def_property_readonly("self_cpu_ns", &column<Instances, &Instances::self_cpu_ns>)
      .def_property_readonly("device_ns", &column<Instances, &Instances::device_ns>)
      .def_property_readonly("self_device_ns", &column<Instances, &Instances::self_device_ns>)
      .def_property_readonly("late_device_ns", &column<Instances, &Instances::late_device_ns>)
      .def_property_readonly("cpu_bytes", &column<Instances, &Instances::cpu_bytes>)
      .def_property_readonly("self_cpu_bytes", &column<Instances, &Instances::self_cpu_bytes>)
      .def_property_readonly("device_bytes", &column<Instances, &Instances::device_bytes>)
      .def_property_readonly("self_device_bytes", &column<Instances, &Instances::self_device_bytes>)
      .def_property_readonly("outermost", &column<Instances, &Instances::outermost>)
      .def_property_readonly("forward", &column<Instances, &Instances::forward>)
      .def_property_readonly("stack", &column<Instances, &Instances::stack>);
  py::class_<FunctionNesting>(module, "FunctionNesting",
                              "How Python functions, regions and driver calls lie in each other: arrays, NONE for "
                              "in none. Of each function ...")
      .def_property_readonly("self_cpu_ns", &column<FunctionNesting, &FunctionNesting::self_cpu_ns>,
                             "Its time without functions, regions and calls inside.")
      .def_property_readonly("total_cpu_ns", &column<FunctionNesting, &FunctionNesting::total_cpu_ns>,
                             "Its time; 0 of one that lies in another of its name.")
      .def_property_readonly("caller", &column<FunctionNesting, &FunctionNesting::caller>,
                             "The function directly around.")
      .def_property_readonly("region", &column<FunctionNesting, &FunctionNesting::region>,
                             "The region directly around, where that is no function.")
      .def_property_readonly("region_self_cpu_ns", &column<FunctionNesting, &FunctionNesting::region_self_cpu_ns>,
                             "The time of each region without functions, regions and calls inside.")
      .def_property_readonly("region_caller", &column<FunctionNesting, &FunctionNesting::region_caller>,
                             "The function directly around each region; NONE where a region is.")
      .def_property_readonly("call_caller", &column<FunctionNesting, &FunctionNesting::call_caller>,
                             "Likewise around each driver call.");
  // Each read makes new lists: read each attribute once.
  py::class_<RegionGroups>(module, "RegionGroups", "Regions by name, and by shapes and call stack if asked for.")
      .def_readonly("totals", &RegionGroups::totals)
      .def_property_readonly("group_of_row", &column<RegionGroups, &RegionGroups::group_of_row>);
  py::class_<Summary>(module, "Summary", "What a recording comes to, per call path and per name.")
      .def_readonly("names", &Summary::names)
      .def_readonly("paths", &Summary::paths)
      .def_readonly("path_names", &Summary::path_names)
      .def_readonly("instances", &Summary::instances)
      .def_readonly("regions", &Summary::regions)
      .def_readonly("work", &Summary::work)
      .def_readonly("totals", &Summary::totals)
      .def_readonly("cpu_ns", &Summary::cpu_ns)
      .def_readonly("device_ns", &Summary::device_ns)
      .def_readonly("has_device", &Summary::has_device);

  module.def(
      "group_regions",
      [](store::Store& store, const Summary& summary, bool shapes, uint32_t stack_frames, bool overloads) {
        return read_unlocked(store, [&](const store::Store& read) {
          const analysis::RegionKeys keys{shapes, stack_frames, overloads};
          return analysis::group_regions(read, summary.instances, summary.path_names, keys);
        });
      },
      py::arg("store"), py::arg("summary"), py::arg("shapes"), py::arg("stack_frames"), py::arg("overloads"),
      "Regions by name, by the shapes of their inputs, by so many of the innermost frames of their call stacks and by "
      "overload.");
  module.def(
      "summarize", [](store::Store& store) { return read_unlocked(store, analysis::summarize); }, py::arg("store"),
      "Statistics per call path and per name.");
  module.def(
      "nest_functions", [](store::Store& store) { return read_unlocked(store, analysis::nest_functions); },
      py::arg("store"), "How Python functions, regions and driver calls lie in each other, by their times.");
  module.def(
      "divide_time", &divide_time, py::arg("window_starts"), py::arg("window_ends"), py::arg("work"), py::arg("count"),
      py::arg("covered") = false,
      "What fills each window, in ns, from lists of work, each of starts, ends and classes: an array with a row a "
      "class and a column a window, each moment of which counts for the lowest class that fills it, with a last row "
      "for what none does; and one with all moments that each class fills, without rows where it is not asked for.");
  module.def("count_before", &count_before, py::arg("edges"), py::arg("moments"), py::arg("equal"),
             "How many of the edges, which are in order, are before each moment; with `equal` also those at it.");
  module.def(
      "find_rows", &find_rows, py::arg("known"), py::arg("wanted"),
      "Where each of the wanted numbers is among the known ones, the first place of several; -1 where it is not.");
  module.def(
      "find_repetition",
      [](const Numbers& sequence, std::size_t times) {
        const std::span<const uint32_t> numbers = entries(sequence);
        const py::gil_scoped_release released;
        const analysis::Repetition found = analysis::find_repetition(numbers, times);
        return std::pair(found.begin, found.period);
      },
      py::arg("sequence"), py::arg("times"),
      "Where the longest end of a sequence begins that consists of at least so many equal parts, and the length of a "
      "part; 0 where there is none.");
  bind_queue_model(module);
  module.def("kernel_names", &kernel_names, py::arg("store"), py::arg("shorten") = false,
             "The demangled name of each row of the variant table.");
  module.def(
      "copy_name",
      [](uint8_t kind, uint8_t source, uint8_t destination) {
        return store::copy_name(store::CopyKind{kind}, store::MemoryKind{source}, store::MemoryKind{destination});
      },
      py::arg("kind"), py::arg("source"), py::arg("destination"), "The name torch.profiler gives a copy.");
  module.attr("GRAPH_NAME") = store::kGraphName;
  module.attr("MEMSET_NAME") = store::kMemsetName;
  module.attr("STEP_PREFIX") = store::kStepPrefix;
  module.attr("ALL_STEPS") = store::kAllSteps;
  module.attr("AUTOGRAD_PREFIX") = store::kAutogradPrefix;
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
