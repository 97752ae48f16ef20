// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/info.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/base/system.h"
#include "gpuscope/nvtx/domains.h"

namespace gpuscope::session {
namespace {

// Costs on the program's threads, in ns, for the estimate of our own overhead. CUPTI's kernel record and one watched
// call are medians on an H100 with CUPTI 13.0 (benchmarks/results); a region event is two counter reads and a store.
constexpr int64_t kKernelRecordNs = 400;
constexpr int64_t kCallNs = 120;
constexpr int64_t kRegionEventNs = 30;

// CUdevice_attribute (cuda.h).
constexpr int kMultiprocessors = 16;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

std::string command_line() {
  std::string text = base::read_file("/proc/self/cmdline");
  for (char& character : text) {
    character = character == '\0' ? ' ' : character;
  }
  return text;
}

const char* name_of(attribution::Mode mode) {
  switch (mode) {
    case attribution::Mode::Ring:
      return "ring";
    case attribution::Mode::Aggregate:
      return "aggregate";
    default:
      return "full";
  }
}

// Names that a program gave its threads through NVTX go before those that the system knows.
void name_threads(store::Store& store) {
  for (std::size_t row = 0; row < store.thread.size(); ++row) {
    if (const uint32_t name = nvtx::thread_name(store.thread.system_id[row]); name != 0) {
      store.thread.name[row] = store.strings.intern(base::Names::process().text(name));
    }
  }
}

}  // namespace

void write_devices(store::Store& store, const driver::Cuda& cuda) {
  int count = 0;
  // Fails without cuInit, which is the program's to call: it decides what a fork may still do.
  if (cuda.device_get_count == nullptr || cuda.device_get_count(&count) != 0) {
    return;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    driver::CuDevice device = 0;
    std::array<char, 256> name{};
    driver::CuUuid uuid{};
    int processors = 0, major = 0, minor = 0;
    size_t bytes = 0;
    if (cuda.device_get(&device, ordinal) != 0) {
      continue;
    }
    cuda.device_get_name(name.data(), static_cast<int>(name.size()), device);
    cuda.device_get_uuid(&uuid, device);
    cuda.device_get_attribute(&processors, kMultiprocessors, device);
    cuda.device_get_attribute(&major, kCapabilityMajor, device);
    cuda.device_get_attribute(&minor, kCapabilityMinor, device);
    cuda.device_total_mem(&bytes, device);
    store.device.append({static_cast<uint32_t>(ordinal), store.strings.intern(name.data()),
                         store.strings.intern(driver::uuid_text(uuid)), static_cast<uint32_t>(processors),
                         static_cast<uint32_t>(major), static_cast<uint32_t>(minor), bytes});
  }
}

void write_facts(store::Store& store, const Facts& facts, const driver::Cuda& cuda, const driver::Cupti& cupti) {
  const auto number = [&store](const char* key, auto value) { store.set_info(key, std::to_string(value)); };
  const attribution::Counters& counters = facts.counters;
  store.set_info("session.mode", name_of(facts.mode));
  store.set_info("session.graphs", facts.merged_graphs ? "launch" : "node");
  store.set_info("session.tier", facts.tier);
  store.set_info("session.tier_reason", facts.tier_reason);
  store.set_info("session.notes", facts.notes + (facts.cupti_broke ? "CUPTI ended itself after a fatal error\n" : ""));
  number("session.start_ns", facts.open_ns);
  number("session.stop_ns", facts.close_ns);
  number("process.id", getpid());
  store.set_info("process.argv", command_line());
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  store.set_info("process.host", host.data());
  if (int version = 0; cuda.driver_get_version != nullptr && cuda.driver_get_version(&version) == 0) {
    store.set_info("cuda.driver_version", std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10));
  }
  if (cupti.version != 0) {
    number("cupti.version", cupti.version);
    store.set_info("cupti.path", cupti.library.path());
  }
  const base::Anchor anchor = base::take_anchor();
  store.set_info("clock.anchor", std::to_string(anchor.ticks) + " " + std::to_string(anchor.realtime_ns) + " " +
                                     std::to_string(anchor.monotonic_ns));
  number("clock.drift_ns", base::Clock::process().to_ns(anchor.ticks) - anchor.realtime_ns);

  number("audit.launches", counters.launches);
  number("audit.kernels", counters.kernels);
  number("audit.graph_launches", counters.graph_launches);
  number("audit.graph_nodes", counters.graph_nodes);
  const auto without = [](uint64_t launched, uint64_t came) { return launched > came ? launched - came : 0; };
  number("audit.missing",
         without(counters.launches, counters.matched) + without(counters.graph_launches, counters.matched_graphs));
  // Copies between host buffers bring none; a copy that outlasts its window by far brings one too late.
  number("audit.copies_without_record", without(counters.copies, counters.matched_copies));
  number("audit.dropped", facts.dropped);
  number("audit.pool_exhausted", facts.pool_exhausted);
  number("audit.zero_time", counters.zero_time);
  number("audit.backward_time", counters.backward_time);
  number("audit.foreign_buffers", facts.foreign_buffers);
  number("audit.incomplete", counters.incomplete);
  number("audit.unattributed", counters.unattributed);
  number("audit.log_dropped", facts.log_dropped);
  number("audit.unmatched_exits", counters.unmatched_exits);
  number("audit.unread_bytes", counters.unread_bytes);
  number("audit.refused", counters.refused);
  number("audit.evicted", counters.evicted);
  number("audit.gpu_off", facts.gpu_off.times);
  number("audit.gpu_off_ns", facts.gpu_off.duration_ns);
  number("audit.regions_off", facts.regions_off.times);
  number("audit.regions_off_ns", facts.regions_off.duration_ns);
  number("audit.decode_lag_max_ns", facts.decode_lag_max_ns);
  number("audit.decode_cpu_ns", facts.decode_cpu_ns);
  number("audit.flush_cpu_ns", facts.flush_cpu_ns);  // CUPTI's own work, on our thread
  number("audit.callbacks", counters.calls);
  number("audit.gpu_records", counters.gpu_records);
  number("audit.region_events", counters.region_events);
  number("audit.overhead_ns", static_cast<int64_t>(counters.launches) * kKernelRecordNs +
                                  static_cast<int64_t>(counters.calls) * kCallNs +
                                  static_cast<int64_t>(counters.region_events) * kRegionEventNs);
  write_devices(store, cuda);
  name_threads(store);
}

bool graph_trace_is_safe(const driver::Cuda& cuda) {
  static bool asked = false;  // only a process's first session can be sure
  const bool first = !std::exchange(asked, true);
  int count = 0;
  if (!first || cuda.device_get_count == nullptr) {
    return false;
  }
  if (cuda.device_get_count(&count) != 0) {
    return true;  // cuInit has not been called
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    unsigned flags = 0;
    int active = 0;
    if (cuda.primary_context_state(ordinal, &flags, &active) != 0 || active != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace gpuscope::session
