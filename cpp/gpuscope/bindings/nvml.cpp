// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include "gpuscope/base/host_state.h"
#include "gpuscope/bindings/bind.h"
#include "gpuscope/driver/libraries.h"
#include "gpuscope/nvml/device.h"
#include "gpuscope/nvml/monitor_sampler.h"
#include "gpuscope/nvml/state.h"

namespace py = pybind11;

namespace gpuscope::bindings {

const driver::Nvml& libnvidia_ml() {
  static const auto* const table = new driver::Nvml(driver::Nvml::open());
  return *table;
}

namespace {

using py::literals::operator""_a;

// Never destroyed: other threads may still read at exit.
nvml::Devices& nvml_devices() { return base::of_process<nvml::Devices>(libnvidia_ml(), vendor().cuda); }

py::dict clock_state(int ordinal) {
  const nvml::ClockState state = nvml_devices().of(ordinal).clock_state();
  return py::dict("sm_hz"_a = state.sm_hz, "memory_hz"_a = state.memory_hz, "power_w"_a = state.power_w,
                  "power_limit_w"_a = state.power_limit_w, "temperature_c"_a = state.temperature_c,
                  "reasons"_a = state.reasons, "why"_a = state.why);
}

py::dict process_memory(int ordinal) {
  const nvml::MemoryInfo info = nvml_devices().of(ordinal).memory_info(static_cast<unsigned>(getpid()));
  return py::dict("process"_a = info.process, "used"_a = info.used, "free"_a = info.free, "total"_a = info.total,
                  "name"_a = info.name, "context"_a = info.context, "why"_a = info.why);
}

/// The active throttle reasons for which `is_wanted` is true.
template <class F>
py::list throttle_words(uint64_t bits, F&& is_wanted) {
  py::list words;
  for (const nvml::ThrottleReason& reason : nvml::kThrottleReasons) {
    if ((bits & reason.bit) != 0 && is_wanted(reason)) {
      words.append(reason.name);
    }
  }
  return words;
}

py::object processes_of(const std::optional<std::vector<driver::NvmlProcess>>& processes) {
  if (!processes.has_value()) {
    return py::none();
  }
  py::list listed;
  for (const driver::NvmlProcess& process : *processes) {
    const bool is_known = process.bytes != driver::NvmlProcess::kUnknown;
    listed.append(py::make_tuple(process.pid, is_known ? py::object(py::int_(process.bytes)) : py::none()));
  }
  return listed;
}

py::dict reasons_of(const nvml::Reasons& why) {
  py::dict reasons;
  for (const auto& [figure, reason] : why) {
    reasons[py::str(figure)] = reason;
  }
  return reasons;
}

py::dict mig_instance(const nvml::MigInstance& instance) {
  py::dict figures;
#define GPUSCOPE_ADD_FIGURE(figure, id, unit) figures[#figure] = instance.gpm.figure;
  GPUSCOPE_GPM_FIGURES(GPUSCOPE_ADD_FIGURE)
#undef GPUSCOPE_ADD_FIGURE
  nvml::Reasons why = instance.gpm.why;
  why.insert(instance.why.begin(), instance.why.end());
  return py::dict(
      "gpu_instance"_a = instance.gpu_instance, "compute_instance"_a = instance.compute_instance,
      "uuid"_a = instance.uuid, "name"_a = instance.name, "memory_used_bytes"_a = instance.memory_used_bytes,
      "memory_total_bytes"_a = instance.memory_total_bytes, "figures"_a = figures, "why"_a = reasons_of(why));
}

py::dict gpu_state(const nvml::GpuState& state) {
  py::dict figures;
#define GPUSCOPE_ADD_FIGURE(type, figure) figures[#figure] = state.figure;
  GPUSCOPE_GPU_FIGURES(GPUSCOPE_ADD_FIGURE)
#undef GPUSCOPE_ADD_FIGURE
  py::object reasons = py::none();
  py::list faults;
  if (state.throttle_bits.has_value()) {
    reasons = throttle_words(*state.throttle_bits, [](const auto&) { return true; });
    faults = throttle_words(*state.throttle_bits, [](const auto& reason) { return reason.is_fault; });
  }
  py::dict throttled;
  for (std::size_t reason = 0; reason < state.throttled_s.size(); ++reason) {
    if (state.throttled_s[reason].has_value()) {
      throttled[nvml::kThrottleReasons[reason].name] = *state.throttled_s[reason];
    }
  }
  py::object xid_errors = py::none();
  if (state.xid_errors.has_value()) {
    py::list told;
    for (const nvml::XidCount& error : *state.xid_errors) {
      told.append(py::make_tuple(error.xid, error.count, error.last_ns));
    }
    xid_errors = std::move(told);
  }
  py::object instances = py::none();
  if (state.instances.has_value()) {
    py::list listed;
    for (const nvml::MigInstance& instance : *state.instances) {
      listed.append(mig_instance(instance));
    }
    instances = std::move(listed);
  }
  return py::dict("index"_a = state.index, "name"_a = state.name, "uuid"_a = state.uuid,
                  "pci_address"_a = state.pci_address, "figures"_a = figures, "throttle_reasons"_a = reasons,
                  "throttle_faults"_a = faults, "throttled_s"_a = throttled, "mig"_a = state.mig,
                  "instances"_a = instances, "xid_errors"_a = xid_errors, "processes"_a = processes_of(state.processes),
                  "why"_a = reasons_of(state.why));
}

py::dict gpu_states() {
  nvml::GpuStates states;
  {
    const py::gil_scoped_release release;  // milliseconds
    states = nvml::read_gpu_states(libnvidia_ml());
  }
  py::list gpus;
  for (const nvml::GpuState& state : states.gpus) {
    gpus.append(gpu_state(state));
  }
  const py::object version = states.driver_version.empty() ? py::object(py::none()) : py::cast(states.driver_version);
  return py::dict("driver_version"_a = version, "gpus"_a = gpus, "why"_a = states.why);
}

py::dict host_state(const base::HostState& state) {
  py::dict facts;
#define GPUSCOPE_ADD_FIGURE(type, figure) facts[#figure] = state.figure;
  GPUSCOPE_HOST_FIGURES(GPUSCOPE_ADD_FIGURE)
#undef GPUSCOPE_ADD_FIGURE
  facts["why"] = state.why;
  return facts;
}

py::dict read_host_state() {
  base::HostState state;
  {
    const py::gil_scoped_release release;
    state = base::HostStateReader().read();
  }
  return host_state(state);
}

py::list take_samples(nvml::MonitorSampler& sampler) {
  py::list taken;
  for (const nvml::GpuSample& sample : sampler.take()) {
    const bool has_gpu = sample.gpu != nvml::GpuSample::kNoGpu;
    taken.append(py::dict("time_ns"_a = sample.time_ns, "took_ns"_a = sample.took_ns,
                          "process_cpu_s"_a = sample.process_cpu_s, "resident_bytes"_a = sample.resident_bytes,
                          "slow_time_ns"_a = sample.slow_time_ns, "rare_time_ns"_a = sample.rare_time_ns,
                          "host_time_ns"_a = sample.host_time_ns, "host"_a = host_state(sample.host),
                          "gpu"_a = has_gpu ? py::object(gpu_state(sample.state)) : py::none()));
  }
  return taken;
}

py::dict sampling_cost(const nvml::MonitorSampler& sampler) {
  const nvml::SamplingCost cost = sampler.cost();
  return py::dict("rounds"_a = cost.rounds, "skipped"_a = cost.skipped, "dropped"_a = cost.dropped,
                  "cpu_ns"_a = cost.cpu_ns, "elapsed_ns"_a = cost.elapsed_ns, "longest_ns"_a = cost.longest_ns,
                  "mean_ns"_a = cost.mean_ns, "p99_ns"_a = cost.p99_ns);
}

}  // namespace

void bind_nvml(py::module_& module) {
  module.def("clock_state", &clock_state, py::arg("device") = 0,
             "A GPU's sm_hz, memory_hz, power_w, power_limit_w, temperature_c and what holds its clocks back (reasons: "
             "bits of nvmlClocksEventReasons), as NVML tells them now. What is None is explained in why.");
  py::typing::List<py::str> figures;
#define GPUSCOPE_NAME_FIGURE(type, figure) figures.append(#figure);
  GPUSCOPE_GPU_FIGURES(GPUSCOPE_NAME_FIGURE)
#undef GPUSCOPE_NAME_FIGURE
  module.attr("GPU_FIGURES") = figures;
  py::typing::List<py::str> counters;
  py::typing::List<py::str> rare;
  for (const nvml::ThrottleReason& reason : nvml::kThrottleReasons) {
    if (reason.field != 0) {
      counters.append(reason.name);
      if (reason.takes_long) {
        rare.append(reason.name);
      }
    }
  }
  module.attr("THROTTLE_COUNTERS") = counters;
  module.attr("RARE_COUNTERS") = rare;
  py::typing::List<py::str> host_figures;
#define GPUSCOPE_NAME_FIGURE(type, figure) host_figures.append(#figure);
  GPUSCOPE_HOST_FIGURES(GPUSCOPE_NAME_FIGURE)
#undef GPUSCOPE_NAME_FIGURE
  module.attr("HOST_FIGURES") = host_figures;
  py::typing::List<py::str> means;
#define GPUSCOPE_NAME_FIGURE(figure, id, unit) means.append(#figure);
  GPUSCOPE_GPM_FIGURES(GPUSCOPE_NAME_FIGURE)
#undef GPUSCOPE_NAME_FIGURE
  module.attr("GPM_FIGURES") = means;
  module.def(
      "host_state", &read_host_state,
      "What Linux says of the machine, this process and its control groups now: HOST_FIGURES, None where it does "
      "not tell, and why by name.");
  module.def("link_bytes_per_s", &nvml::link_bytes_per_s, py::arg("generation"), py::arg("lanes"),
             "Bytes a second of a PCIe link in one direction, headers included; 0 for unknown generations.");
  module.def("gpu_states", &gpu_states,
             "What NVML says of every GPU now: driver_version, gpus, and why there are none. Of each GPU its names, "
             "figures (None where NVML does not tell; why says so by name), what holds its clocks back and which of "
             "that is a fault, how long it did so since the driver was loaded, and (number, bytes) of its processes. "
             "Makes no context and does not touch CUDA; takes some ms.");
  py::class_<nvml::MonitorSampler>(module, "GpuSampler",
                                   "Reads all GPUs at an interval, on its own thread without the GIL. Any thread.")
      .def(py::init([](int64_t interval_ns) {
             return std::make_unique<nvml::MonitorSampler>(libnvidia_ml(), std::chrono::nanoseconds(interval_ns));
           }),
           py::arg("interval_ns"), py::call_guard<py::gil_scoped_release>())
      .def("stop", &nvml::MonitorSampler::stop, py::call_guard<py::gil_scoped_release>(),
           "Ends the thread after the current round; waits at most a second. Returns whether it ended.")
      .def("take", &take_samples,
           "Samples that were not taken before, oldest first: time_ns since the epoch, took_ns, process_cpu_s and "
           "resident_bytes of this process, slow_time_ns (when figures of each second were read), rare_time_ns "
           "(when the energy was), host_time_ns (when the host was), "
           "host as host_state has it, and gpu as gpu_states has it; None without one.")
      .def("cost", &sampling_cost,
           "The cost of sampling: rounds, skipped (rounds due during a longer one), dropped (samples not taken in "
           "time), cpu_ns of elapsed_ns, longest_ns of a round, mean_ns and p99_ns of a sample of a GPU.")
      .def_property_readonly("why", &nvml::MonitorSampler::why, "Why there is no GPU; empty where there is one.");
  module.def("process_memory", &process_memory, py::arg("device") = 0,
             "A GPU's memory in bytes, as NVML tells it now: process (this process, its context and all), used (by all "
             "processes), free (less than total - used: the driver keeps some), total; name; context: whether this "
             "process has a primary context there. What is None is "
             "explained in why. Makes no context.");
}

}  // namespace gpuscope::bindings
