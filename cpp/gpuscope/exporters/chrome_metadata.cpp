// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome_metadata.h"

#include <concepts>

#include "gpuscope/exporters/json_text.h"

namespace gpuscope::exporters {
namespace {

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
  out.put('}');
}

}  // namespace

void put_head(Output& out, const store::Store& store, int64_t base_ns) {
  out.put("{\"schemaVersion\":1,\n\"deviceProperties\":[");
  for (std::size_t row = 0; row < store.device.size(); ++row) {
    out.put(row == 0 ? "\n" : ",\n");
    put_device(out, store, store.device[row]);
  }
  out.put("],\n\"displayTimeUnit\":\"ms\",\n");
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
