// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/session.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpuscope/attribution/audit.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/base/errors.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/driver/libraries.h"
#include "gpuscope/nvtx/names.h"
#include "gpuscope/session/shown_region.h"
#include "gpuscope/torch/operators.h"

namespace py = pybind11;

namespace gpuscope::bindings {

namespace {

// torch.profiler holds the slot if torch is loaded. It is idle when its profiler is off.
bool torch_profiler_is_idle() {
  const py::dict modules = py::module_::import("sys").attr("modules");
  if (!modules.contains("torch.autograd")) {
    return false;
  }
  const py::object enabled = py::getattr(modules["torch.autograd"], "_profiler_enabled", py::none());
  return !enabled.is_none() && !enabled().cast<bool>();
}

void set(attribution::Mode& mode, const py::handle& given) {
  const auto name = given.cast<std::string>();
  const auto* found = std::ranges::find(attribution::kModeNames, name);
  if (found == attribution::kModeNames.end()) {
    throw base::InvalidArgument("mode is '" + name + "'; accepted are full, ring and aggregate");
  }
  mode = static_cast<attribution::Mode>(found - attribution::kModeNames.begin());
}

void set(std::chrono::nanoseconds& time, const py::handle& given) {
  time = std::chrono::nanoseconds(given.cast<int64_t>());
}

template <class T>
void set(T& value, const py::handle& given) {
  value = given.cast<T>();
}

void set_left_out(session::Options& options, const py::handle& given) {
  const auto tables = given.cast<std::set<std::string>>();
  options.settings.no_kernels = tables.count("kernel") != 0;
  options.settings.no_copies = tables.count("memcpy") != 0;
  options.settings.no_fills = tables.count("memset") != 0;
  options.settings.no_calls = tables.count("api") != 0;
}

/// An option by its name in Python's RecordingOptions.
struct NamedOption {
  const char* name;
  void (*set)(session::Options& options, const py::handle& given);
};

#define GPUSCOPE_OPTION(name, place)                                                            \
  NamedOption {                                                                                 \
    name, [](session::Options& options, const py::handle& given) { set(options.place, given); } \
  }
constexpr NamedOption kOptions[] = {
    GPUSCOPE_OPTION("cuda", cuda),
    GPUSCOPE_OPTION("mode", settings.mode),
    {"graphs", [](session::Options& options,
                  const py::handle& given) { options.settings.merge_graphs = given.cast<std::string>() == "launch"; }},
    GPUSCOPE_OPTION("sync", synchronization),
    GPUSCOPE_OPTION("overheads", overheads),
    GPUSCOPE_OPTION("max_bytes", settings.max_bytes),
    GPUSCOPE_OPTION("ring_ns", settings.ring_ns),
    GPUSCOPE_OPTION("with_stack", stacks),
    GPUSCOPE_OPTION("profile_memory", memory),
    {"left_out", &set_left_out},
    GPUSCOPE_OPTION("counters", counters.metrics),
    GPUSCOPE_OPTION("counters_in_full", counters.in_full),
    GPUSCOPE_OPTION("counter_interval_ns", counters.interval_ns),
    GPUSCOPE_OPTION("device_interval_ns", device_interval),
    GPUSCOPE_OPTION("repeats", repeats),
    GPUSCOPE_OPTION("spool", spools),
    GPUSCOPE_OPTION("spool_bytes", spool.max_bytes),
    GPUSCOPE_OPTION("spool_age_ns", spool.max_age),
    GPUSCOPE_OPTION("segment_bytes", spool.segment_bytes),
    GPUSCOPE_OPTION("segment_ns", spool.segment_time),
};
#undef GPUSCOPE_OPTION

/// Reads options by their names.
session::Options options_of(const py::kwargs& given) {
  session::Options options;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    const auto* found = std::ranges::find(kOptions, name, &NamedOption::name);
    if (found == std::end(kOptions)) {
      throw py::type_error("Session has no option '" + name + "'");
    }
    found->set(options, value);
  }
  return options;
}

/// Ends a session that was not ended. Ending waits for threads that may wait for the GIL.
struct EndWithoutGil {
  void operator()(session::Session* session) const {
    const py::gil_scoped_release nogil;
    own(session);
  }
  base::DeleteOwn own;
};

std::unique_ptr<session::Session, EndWithoutGil> start_session(const py::kwargs& given) {
  session::Options options = options_of(given);
  options.no_cuda_reason = options.cuda ? "" : "the profiler was not asked for CUDA activity";
  options.stacks = options.stacks && watch_stacks();
  if (options.device_interval.count() > 0) {
    options.nvml = libnvidia_ml();
  }
  options.may_share_cupti = torch_profiler_is_idle();
  session::Vendor& libraries = vendor();
  const py::gil_scoped_release nogil;
  return std::unique_ptr<session::Session, EndWithoutGil>(new session::Session(libraries, options));
}

/// Gives threads of the store their Python names. Names given through NVTX take precedence.
std::shared_ptr<store::Store> with_thread_names(std::shared_ptr<store::Store> store) {
  const std::vector<ThreadName> names = python_thread_names();
  for (std::size_t row = 0; store != nullptr && row < store->thread.size(); ++row) {
    const uint64_t system_id = store->thread.system_id[row];
    const auto found = std::ranges::find(names, system_id, &ThreadName::system_id);
    if (found != names.end() && nvtx::thread_name(system_id) == 0) {
      store->thread.name[row] = store->strings.intern(found->name);
    }
  }
  return store;
}

/// Seconds, or the default.
std::chrono::nanoseconds wait_limit(std::optional<double> timeout) {
  constexpr double kForEver = 1e9;
  const std::chrono::duration<double> seconds(std::min(timeout.value_or(0), kForEver));
  return timeout.has_value() ? std::chrono::duration_cast<std::chrono::nanoseconds>(seconds) : session::kGpuWaitLimit;
}

/// The store that `end` returns, or null. Also appends it to `into` before Python can raise KeyboardInterrupt: Python
/// raises after the call, and the result would be lost.
std::shared_ptr<store::Store> hand_over(
    session::Session& session, std::unique_ptr<store::Store> (session::Session::*end)(std::chrono::nanoseconds),
    std::optional<double> timeout, std::optional<py::list> into) {
  std::shared_ptr<store::Store> store;
  {
    const py::gil_scoped_release nogil;
    store = (session.*end)(wait_limit(timeout));
  }
  if (store != nullptr && into.has_value()) {
    into->append(store);
  }
  return with_thread_names(std::move(store));
}

}  // namespace

void bind_session(py::module_& module) {
  using session::Session;
  module.def(
      "show_region", [](int file, int64_t offset) { session::ShownRegion::process().begin(file, offset); },
      py::arg("file"), py::arg("offset"),
      "Has recordings write into this file, which is duplicated, in which region the program is: 200 bytes from the "
      "offset on, a checksum (FNV-1a of 32 bits) of the rest and the name. OSError where there is no descriptor left.");
  module.def(
      "hide_region", [] { session::ShownRegion::process().end(); }, "Ends what show_region began.");
  module.def("knows_stacks", &knows_stacks, "Whether Python frames can be read in this version of Python.");
  module.def(
      "now_ns", [] { return base::Clock::process().now_ns(); }, "This moment, as recordings have it.");
  // Test fixtures replace functions of Python's module `time`. Durations must not follow them.
  module.def(
      "monotonic_ns", [] { return std::chrono::steady_clock::now().time_since_epoch().count(); },
      "The clock that time.perf_counter_ns() reads.");
  module.def(
      "realtime_ns", [] { return std::chrono::system_clock::now().time_since_epoch().count(); },
      "The clock that time.time_ns() reads.");
  module.def("thread_cpu_ns", &base::thread_cpu_ns, "What the calling thread has run so far.");
  py::class_<attribution::Counters> counters(module, "AuditCounts", "The audit's counts; each is an info row too.");
#define GPUSCOPE_PROPERTY(type, name, description) \
  counters.def_readonly(#name, &attribution::Counters::name, description);
  GPUSCOPE_AUDIT(GPUSCOPE_PROPERTY)
#undef GPUSCOPE_PROPERTY
  py::tuple names(std::size(kOptions));
  for (std::size_t index = 0; index < std::size(kOptions); ++index) {
    names[index] = kOptions[index].name;
  }
  module.attr("SESSION_OPTIONS") = names;
  py::class_<Session, std::unique_ptr<Session, EndWithoutGil>>(
      module, "Session", "One span of collecting, with any number of recorded windows in it.")
      .def(py::init(&start_session),
           "Starts collecting, with options of SESSION_OPTIONS; nothing is recorded until open(). Options that are "
           "not given have the defaults of RecordingOptions.")
      .def("open", &Session::open, py::arg("folder") = "", py::call_guard<py::gil_scoped_release>(),
           "Begins a recorded window. With a folder, its rows are written there as segments while it is open, and the "
           "Store that ends it has only those of the last segment.")
      .def(
          "cut",
          [](Session& session, std::optional<double> timeout, const std::optional<py::list>& into) {
            std::shared_ptr<store::Store> store = hand_over(session, &Session::cut, timeout, into);
            if (store == nullptr) {
              throw base::InvalidArgument("cut() needs an open window: call open() first");
            }
            return store;
          },
          py::arg("timeout") = py::none(), py::arg("into") = py::none(),
          "Ends the window and returns its Store; waits for GPU work that was launched before, at most `timeout` "
          "seconds, by default two. `into`: a list that gets the Store even where KeyboardInterrupt follows.")
      .def(
          "stop",
          [](Session& session, std::optional<double> timeout, const std::optional<py::list>& into) {
            return hand_over(session, &Session::stop, timeout, into);
          },
          py::arg("timeout") = py::none(), py::arg("into") = py::none(),
          "Ends collecting; returns the open window's Store, if one is open, and waits for it as cut does. Further "
          "calls return None.")
      .def("release_cupti", &Session::release_cupti, py::call_guard<py::gil_scoped_release>(),
           "Ends the recording of GPU work for the rest of the session, as another client needs CUPTI; False when none "
           "was recorded.")
      .def("switch_gpu", &Session::switch_gpu, py::arg("on"), py::call_guard<py::gil_scoped_release>(),
           "Whether driver calls and GPU work are recorded from now on, within the open window.")
      .def("switch_regions", &Session::switch_regions, py::arg("on"), py::call_guard<py::gil_scoped_release>(),
           "Whether regions, operators and marks are recorded from now on, within the open window.")
      .def_property_readonly("tier", &Session::tier, "cupti, cupti-shared, events or cpu.")
      .def_property_readonly("tier_reason", &Session::tier_reason, "Why it is not cupti.")
      .def_static("active", &Session::active, "True while a session collects in this process.");
}

namespace {

// Opened on first use, after torch was imported.
const driver::Torch& libtorch() {
  static const driver::Torch torch = driver::Torch::open();
  return torch;
}

uint32_t flags(bool ranges, bool operands, bool memory) {
  using torch::OperatorRanges;
  return (ranges ? OperatorRanges::kRanges : 0U) | (operands ? OperatorRanges::kOperands : 0U) |
         (memory ? OperatorRanges::kMemory : 0U);
}

py::typing::Tuple<int, int, int> take_counts() {
  const torch::OperatorRanges::Counts counts = torch::OperatorRanges::process().take_counts();
  return py::make_tuple(counts.pushes, counts.pops, counts.reports);
}

/// Reads Python's list of the operators that it called. Tensors: (address, sizes, type, strides). Calls: (name,
/// tensors, numbered by autograd, result). Calls with other arguments: (name, pairs of a kind and its words). The last
/// part keeps the tensors alive.
torch::OperatorCallbacks::KnownWork read_work(const py::handle& listed) {
  torch::OperatorCallbacks::KnownWork work;
  const auto parts = listed.cast<py::tuple>();
  for (const py::handle tensor : parts[0]) {
    const auto fields = tensor.cast<py::tuple>();
    work.tensors.push_back({fields[0].cast<uint64_t>(), fields[1].cast<std::vector<int64_t>>(), fields[2].cast<int>(),
                            fields[3].cast<std::vector<int64_t>>()});
  }
  for (const py::handle call : parts[1]) {
    const auto fields = call.cast<py::tuple>();
    work.calls.push_back({fields[0].cast<std::string>(), fields[1].cast<std::vector<std::size_t>>(),
                          fields[2].cast<bool>(), fields[3].cast<std::size_t>()});
  }
  for (const py::handle call : parts[2]) {
    const auto fields = call.cast<py::tuple>();
    torch::KnownArguments known{fields[0].cast<std::string>(), {}};
    for (const py::handle value : fields[1]) {
      const auto [kind, words] = value.cast<std::pair<char, std::vector<uint64_t>>>();
      known.values.push_back({torch::KnownValue::Kind{kind}, words});
    }
    work.arguments.push_back(std::move(known));
  }
  return work;
}

void bind_callbacks(py::module_& module) {
  using torch::Layout, torch::OperatorCallbacks;
  py::class_<OperatorCallbacks>(module, "TorchCallbacks", "torch's operators, of every thread, by its own callbacks.")
      .def_static(
          "study",
          [](const std::string& user_name, const py::function& work) {
            py::object listed;  // keeps the tensors alive until learning is done
            return OperatorCallbacks::process().study(libtorch(), user_name, [&] {
              listed = work();
              return read_work(listed);
            });
          },
          py::arg("user_name"), py::arg("work"),
          "Learns where things lie in torch's objects; returns why that failed, empty when it did not.")
      .def_static(
          "measure",
          [](const py::function& forward, const std::optional<py::function>& backward, bool shapes, bool results,
             bool numbers) {
            const auto of_engine = backward ? std::function<void()>([&] { (*backward)(); }) : nullptr;
            const OperatorCallbacks::CallCost cost = OperatorCallbacks::process().measure(
                libtorch(), {.shapes = shapes, .results = results, .numbers = numbers}, [&] { forward(); }, of_engine);
            return std::pair(cost.operator_ns, cost.backward_ns);
          },
          py::arg("forward"), py::arg("backward") = py::none(), py::kw_only(), py::arg("shapes") = false,
          py::arg("results") = false, py::arg("numbers") = false,
          "Measures what torch takes to call callbacks with these options, in ns an operator and a call of "
          "autograd's engine, by what `forward` and `backward` call; the audit counts it.")
      .def_static(
          "start",
          [](bool shapes, bool concrete, bool results, bool numbers, bool overloads, bool modules) {
            OperatorCallbacks::process().start(libtorch(), {shapes, concrete, results, numbers, overloads, modules});
          },
          py::kw_only(), py::arg("shapes") = false, py::arg("concrete") = false, py::arg("results") = false,
          py::arg("numbers") = false, py::arg("overloads") = false, py::arg("modules") = false,
          "Has every operator logged; only after a study that succeeded.")
      .def_static(
          "stop", [] { OperatorCallbacks::process().stop(libtorch()); }, "Ends that.")
      .def_static(
          "links_backward", [] { return libtorch().links_backward == nullptr || libtorch().links_backward(); },
          "Whether torch has arrows drawn to backward operators, as its own switch says.")
      .def_static(
          "records_syncs", [] { return libtorch().records_syncs != nullptr && libtorch().records_syncs(); },
          "Whether torch has waits for the GPU recorded, as its own switch says.")
      .def_static(
          "known",
          [] {
            const Layout& layout = OperatorCallbacks::process().layout();
            const bool sizes = layout.sizes != Layout::kUnknown;
            py::typing::Dict<py::str, bool> known;
            known["shapes"] = sizes && layout.inputs != Layout::kUnknown;
            known["types"] = layout.dtype != Layout::kUnknown;
            known["strides"] = layout.strides;
            known["values"] = layout.list != Layout::kUnknown;
            known["results"] = sizes && layout.outputs != Layout::kUnknown;
            known["scope"] = layout.scope != Layout::kUnknown;
            known["numbers"] = layout.number != Layout::kUnknown;
            known["keywords"] = layout.keywords != Layout::kUnknown && layout.text != Layout::kUnknown;
            known["overloads"] = libtorch().overload_name != nullptr;
            return known;
          },
          "What the study found.");
}

}  // namespace

void bind_torch(py::module_& module) {
  using torch::OperatorRanges;
  bind_callbacks(module);
  py::class_<OperatorRanges>(module, "TorchRanges", "torch's operator ranges, and what its allocators report.")
      .def_static(
          "install", [] { return OperatorRanges::process().install(libtorch()); },
          "Registers with the libtorch of this process, once; False where it offers no place for that.")
      .def_static(
          "want",
          [](bool ranges, bool operands, bool memory) {
            OperatorRanges::process().want(flags(ranges, operands, memory));
          },
          py::kw_only(), py::arg("ranges") = false, py::arg("operands") = false, py::arg("memory") = false,
          "What a session takes from now on; the rest goes to who was registered before.")
      .def_static(
          "probe", [](bool on) { OperatorRanges::process().probe(on); }, py::arg("on"),
          "Whether what comes is counted, for take_counts.")
      .def_static(
          "use", [](bool used) { OperatorRanges::process().use(used); }, py::arg("used"),
          "Whether torch's profiler is on for us on some thread.")
      .def_static(
          "watch_memory",
          [](bool keep_ranges) { return OperatorRanges::process().watch_memory(libtorch(), keep_ranges); },
          py::kw_only(), py::arg("keep_ranges"),
          "Takes the reports of allocations, on the thread that has just switched torch's ranges on.")
      .def_static(
          "drop_ranges", [] { return OperatorRanges::process().drop_ranges(libtorch()); },
          "Has torch's ranges come no more on the thread that has just switched them on; False where that cannot be "
          "had.")
      .def_static(
          "name_kineto", [](bool on) { return OperatorRanges::process().name_kineto(libtorch(), on); }, py::arg("on"),
          "Whether the profiler of torch's on this thread, which is ours, says that it is Kineto's; False without one.")
      .def_static(
          "only_profiled", [](bool on) { return OperatorRanges::process().only_profiled(libtorch(), on); },
          py::arg("on"),
          "Whether regions and operators are logged of those threads alone on which torch's profiler is on; False "
          "where "
          "that cannot be had.")
      .def_static(
          "take_counts", &take_counts,
          "What a probe saw since the last call: operators begun, ranges ended, allocations of 12,345,664 bytes.");
}

}  // namespace gpuscope::bindings
