// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome_metadata.h"

#include <algorithm>
#include <concepts>
#include <string>
#include <utility>

#include "gpuscope/base/event_log.h"
#include "gpuscope/exporters/json_text.h"
#include "gpuscope/exporters/occupancy.h"

namespace gpuscope::exporters {
namespace {

constexpr auto kModule = static_cast<uint32_t>(base::RegionKind::Module);

void put_pair(Output& out, std::string_view key, std::integral auto value) {
  out.put(key);
  out.put_number(value);
}

void put_device(Output& out, const store::Store& store, const store::Devices::Row& device) {
  put_pair(out, "{\"id\":", device.ordinal);
  out.put(",\"name\":");
  out.put(quoted(store.strings[device.name]));
  put_pair(out, ",\"totalGlobalMem\":", device.memory_bytes);
  put_pair(out, ",\"computeMajor\":", device.capability_major);
  put_pair(out, ",\"computeMinor\":", device.capability_minor);
  put_pair(out, ",\"numSms\":", device.multiprocessors);
  if (const auto limits = multiprocessor_limits(device.capability_major, device.capability_minor)) {
    put_pair(out, ",\"maxThreadsPerMultiprocessor\":", limits->threads);
    put_pair(out, ",\"sharedMemPerMultiprocessor\":", limits->shared_bytes);
    out.put(",\"regsPerMultiprocessor\":65536,\"maxThreadsPerBlock\":1024,\"warpSize\":32");
  }
  out.put('}');
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

void put_flag(Output& out, std::string_view name, bool is_set) {
  if (is_set) {
    out.put("\"");
    out.put(name);
    out.put("\":1,\n");
  }
}

/// Which of a job's processes this was. Holistic Trace Analysis looks for `"rank": ` with its space.
void put_rank(Output& out, const store::Store& store) {
  const std::string_view rank = store.find_info("process.rank");
  if (!is_number(rank)) {
    return;
  }
  out.put("\"distributedInfo\":{\"rank\": ");
  out.put(std::to_string(std::stoul(std::string(rank))));
  for (const auto& [name, key] :
       {std::pair("world_size", "process.world_size"), {"local_rank", "process.local_rank"}}) {
    if (const std::string_view value = store.find_info(key); is_number(value)) {
      out.put(",\"" + std::string(name) + "\": " + std::to_string(std::stoul(std::string(value))));
    }
  }
  out.put("},\n");
}

}  // namespace

void put_head(Output& out, const store::Store& store, int64_t base_ns) {
  out.put("{\"schemaVersion\":1,\n\"deviceProperties\":[");
  for (std::size_t row = 0; row < store.device.size(); ++row) {
    out.put(row == 0 ? "\n" : ",\n");
    put_device(out, store, store.device[row]);
  }
  out.put("],\n");
  put_rank(out, store);
  const auto& shapes = store.detail.shapes;
  const auto& kinds = store.path.kind;
  put_flag(out, "record_shapes",
           std::any_of(shapes.begin(), shapes.end(), [](uint32_t shape) { return shape != store::kNone; }));
  put_flag(out, "profile_memory", store.allocation.size() != 0);
  put_flag(out, "with_stack", store.stack.size() != 0);
  put_flag(out, "with_modules", std::find(kinds.begin(), kinds.end(), kModule) != kinds.end());
  if (const std::string_view host = store.find_info("process.host"); !host.empty()) {
    out.put("\"host_name\":" + quoted(host) + ",\n");
  }
  out.put("\"displayTimeUnit\":\"ms\",\n");
  put_pair(out, "\"baseTimeNanoseconds\":", base_ns);
  out.put(",\n\"gpuscope\":{");
  for (std::size_t row = 0; row < store.info.size(); ++row) {
    out.put(row == 0 ? "" : ",");
    out.put(quoted(store.strings[store.info.key[row]]));
    out.put(':');
    out.put(quoted(store.strings[store.info.value[row]]));
  }
  out.put("},\n\"traceEvents\":[\n");
}

void put_metadata(Output& out, std::string_view what, uint64_t process, uint64_t thread, std::string_view arguments) {
  out.put("{\"ph\":\"M\",\"name\":\"");
  out.put(what);
  put_pair(out, "\",\"pid\":", process);
  put_pair(out, ",\"tid\":", thread);
  out.put(",\"ts\":0.000,\"args\":{");
  out.put(arguments);
  out.put("}}");
}

}  // namespace gpuscope::exporters
