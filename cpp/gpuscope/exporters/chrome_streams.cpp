// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome_streams.h"

#include <algorithm>

#include "gpuscope/exporters/json_text.h"
#include "gpuscope/exporters/labels.h"
#include "gpuscope/store/labels.h"

namespace gpuscope::exporters {

using store::kNone;

void ChromeStreams::write(const Strand& strand, uint64_t device, const std::string& suffix) {
  const uint32_t stream = store_.track.stream[strand.row];
  const std::string name = (stream == kNone ? "context" : "stream " + std::to_string(stream)) + suffix;
  events_.open_lanes(strand, device, suffix.empty() && stream != kNone ? stream : events_.new_tid(), name);
  for (const Slice& slice : strand.slices) {
    switch (slice.source) {
      case Source::Annotation:
        write_annotation(slice);
        break;
      case Source::Kernel:
        write_kernel(slice);
        break;
      case Source::Memcpy:
        write_copy(slice);
        break;
      case Source::Memset:
        write_fill(slice);
        break;
      case Source::GraphLaunch:
        write_graph(slice);
        break;
      default:
        write_sync(slice);
        break;
    }
  }
}

void ChromeStreams::write_annotation(const Slice& slice) {
  const uint32_t region = annotations_.region[slice.row];
  events_.begin(fragments_.gpu_annotation(store_.region.path[region]), slice);
  events_.put_pair(",\"args\":{\"External id\":", uint64_t{region} + 1);
  events_.out().put("}}");
}

void ChromeStreams::write_kernel(const Slice& slice) {
  const auto row = store_.kernel[slice.row];
  events_.begin(fragments_.kernel(row.variant), slice);
  put_work(row);
  events_.out().put(fragments_.kernel_arguments(row.variant));
  arguments_.put_payloads(events_.out(), links_.payload_owner(row.region));
  end_work(slice, row);
}

void ChromeStreams::write_copy(const Slice& slice) {
  const auto row = store_.memcpy[slice.row];
  events_.begin(fragments_.copy(row.kind, row.source, row.destination), slice);
  put_work(row);
  put_bytes(row.bytes, row.duration_ns);
  if (row.peer != 255) {
    events_.put_pair(",\"peer device\":", row.peer);
  }
  end_work(slice, row);
}

void ChromeStreams::write_fill(const Slice& slice) {
  const auto row = store_.memset[slice.row];
  events_.begin("{\"ph\":\"X\",\"cat\":\"gpu_memset\",\"name\":" + quoted(store::kMemsetName), slice);
  put_work(row);
  put_bytes(row.bytes, row.duration_ns);
  events_.put_pair(",\"value\":", row.value);
  end_work(slice, row);
}

void ChromeStreams::write_graph(const Slice& slice) {
  const auto row = store_.graph_launch[slice.row];
  events_.begin("{\"ph\":\"X\",\"cat\":\"graph\",\"name\":\"CUDA graph\"", slice);
  put_work(row);
  events_.put_pair(",\"graph id\":", row.graph);
  end_work(slice, row);
}

void ChromeStreams::write_sync(const Slice& slice) {
  const auto row = store_.sync[slice.row];
  const std::string name = quoted(store::sync_name(store::SyncKind{row.kind}));
  events_.begin("{\"ph\":\"X\",\"cat\":\"cuda_sync\",\"name\":" + name, slice);
  put_work(row);
  events_.out().put(",\"cuda_sync_kind\":");
  events_.out().put(name);
  events_.out().put(region_argument(row.region));
  events_.out().put("}}");
}

template <class Row>
void ChromeStreams::put_work(const Row& row) {
  events_.out().put(fragments_.track(row.track));
  events_.out().put_number(row.correlation);
  if (row.region != kNone) {
    events_.put_pair(",\"External id\":", uint64_t{links_.owner(row.region)} + 1);
  }
}

template <class Row>
void ChromeStreams::end_work(const Slice& slice, const Row& row) {
  Output& out = events_.out();
  out.put(region_argument(row.region));
  fragments_.put_graph_node(out, slice.source, slice.row);
  if (row.flags != 0) {
    const std::string notes = flag_label(row.flags);
    out.put(notes.empty() ? "" : ",\"notes\":\"" + notes + "\"");
  }
  out.put("}}");
  if (launches_.is_known(row.correlation)) {
    events_.put_arrow(true, kLaunchArrow, row.correlation, slice);
  }
}

void ChromeStreams::put_bytes(uint64_t bytes, int64_t duration_ns) {
  constexpr double kMost = 1e15;  // a damaged size must not overflow
  events_.put_pair(",\"bytes\":", bytes);
  if (duration_ns > 0) {
    // Bytes a ns are GB a s; written with three decimals, as torch does.
    const double thousandths = 1000.0 * static_cast<double>(bytes) / static_cast<double>(duration_ns);
    events_.out().put(",\"memory bandwidth (GB/s)\":");
    events_.out().put_micros(static_cast<int64_t>(std::min(thousandths, kMost)));
  }
}

}  // namespace gpuscope::exporters
