// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/memory_records.h"

namespace gpuscope::attribution {

using store::kNone;

MemoryRecords::Row MemoryRecords::place(uint64_t timestamp, uint32_t correlation, int64_t at_ns) {
  Row row{timestamp != 0 ? at_ns : 0, kNone, 0, true};
  row.flags |= timestamp != 0 ? 0 : store::kZeroTime;
  const uint32_t value = state_->correlations.find(correlation);
  if (value == Correlations::kUnknown) {
    row.keep = timestamp != 0 && state_->window.keeps_calls(at_ns);
    row.flags |= store::kNoLaunch;
  } else if (value == Correlations::kOutside) {
    row.keep = false;
  } else if (value != Correlations::kNowhere) {
    row.reference = Correlations::decode(value);
  }
  if (row.keep && !state_->keeps_rows()) {
    state_->counters.refused += state_->full;
    row.keep = false;
  }
  return row;
}

uint32_t MemoryRecords::library(const activity::MemoryRecord& record) {
  if (!names_libraries_) {
    return kNone;
  }
  // By its text, as nobody says how long CUPTI keeps it where it is.
  const char* source = reinterpret_cast<const activity::SourcedMemoryRecord&>(record).source;
  return source != nullptr && *source != '\0' ? state_->dictionaries.string(source) : kNone;
}

void MemoryRecords::memory(const activity::MemoryRecord& record, int64_t at_ns) {
  if (record.operation != activity::kTaken && record.operation != activity::kGivenBack) {
    return;
  }
  const Row row = place(record.timestamp, record.correlation, at_ns);
  if (!row.keep) {
    return;
  }
  const auto bytes = static_cast<int64_t>(record.bytes);
  const bool in_order = record.is_async != 0;
  const bool is_local = record.pool_type == activity::kLocalPool;
  const bool is_pooled = is_local || record.pool_type == activity::kImportedPool;
  state_->store->device_memory.append(
      {row.start_ns, record.operation == activity::kTaken ? bytes : -bytes, record.address, is_pooled ? record.pool : 0,
       is_local ? record.pool_size : 0, is_local ? record.pool_used : 0, record.correlation, row.reference,
       library(record), state_->dictionaries.track(record.device, record.context, in_order ? record.stream : kNone),
       row.flags, static_cast<uint8_t>(record.memory_kind)});
}

void MemoryRecords::pool(const activity::MemoryPoolRecord& record, int64_t at_ns) {
  const Row row = place(record.timestamp, record.correlation, at_ns);
  if (!row.keep) {
    return;
  }
  const bool is_local = record.pool_type == activity::kLocalPool;
  state_->store->memory_pool.append({row.start_ns, record.pool, is_local ? record.size : 0, is_local ? record.used : 0,
                                     is_local ? record.release_threshold : 0, record.correlation, row.reference,
                                     record.device, row.flags, static_cast<uint8_t>(record.operation)});
}

}  // namespace gpuscope::attribution
