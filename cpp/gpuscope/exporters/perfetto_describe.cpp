// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/perfetto_describe.h"

#include <bit>
#include <cstddef>
#include <string>

#include "gpuscope/exporters/labels.h"
#include "gpuscope/store/labels.h"

namespace gpuscope::exporters {
namespace {

using store::kNone;
using store::PayloadType;

// Arrows from forward to backward operators are numbered past those from calls to their work.
constexpr uint64_t kFirstBackwardFlow = uint64_t{1} << 32;

}  // namespace

PerfettoDescriber::PerfettoDescriber(const store::Store& store, PerfettoNames& names)
    : store_(store), names_(names), links_(store), launches_(store), graph_nodes_(store) {
  for (std::size_t kind = 0; kind < categories_.size(); ++kind) {
    categories_[kind] = names_.made(std::string(region_category(static_cast<base::RegionKind>(kind))));
  }
}

uint32_t PerfettoDescriber::describe(const Slice& slice, EventDetails& details) {
  details.clear();
  switch (slice.source) {
    case Source::Region:
      return describe_region(slice.row, details);
    case Source::Api:
      return describe_call(slice.row, details);
    case Source::Mark:
      return names_.plain(store_.mark.name[slice.row]);
    case Source::Kernel:
      return describe_kernel(slice, details);
    case Source::Memcpy:
      return describe_copy(slice, details);
    case Source::Memset: {
      const auto row = store_.memset[slice.row];
      add_work(slice, row, details);
      details.numbers.push_back({bytes_label_, row.bytes});
      return fill_name_;
    }
    case Source::GraphLaunch: {
      const auto row = store_.graph_launch[slice.row];
      add_work(slice, row, details);
      details.numbers.push_back({graph_label_, row.graph});
      return graph_name_;
    }
    default:
      return names_.made(std::string(store::sync_name(store::SyncKind{store_.sync.kind[slice.row]})));
  }
}

uint32_t PerfettoDescriber::describe_region(uint32_t region, EventDetails& details) {
  const uint32_t path = store_.region.path[region];
  details.category = categories_[static_cast<std::size_t>(links_.path_kind(path))];
  if (links_.is_forward(region)) {
    details.flow = kFirstBackwardFlow + region;
  }
  if (const uint32_t row = links_.detail(region); row != kNone) {
    if (const uint32_t forward = store_.detail.forward[row]; forward != kNone) {
      details.backward_flow = kFirstBackwardFlow + forward;
    }
    if (store_.detail.sequence[row] >= 0) {
      details.numbers.push_back({sequence_label_, static_cast<uint64_t>(store_.detail.sequence[row])});
    }
    if (store_.detail.shapes[row] != kNone) {
      details.texts.push_back({shapes_label_, names_.plain(store_.detail.shapes[row])});
    }
    add_stack(store_.detail.stack[row], details);
  }
  add_payloads(region, details);
  add_notes(store_.region.flags[region], details);
  return path_name(path);
}

uint32_t PerfettoDescriber::describe_call(uint32_t api, EventDetails& details) {
  details.flow = launches_.has_work(api) ? store_.api.correlation[api] : 0;
  add_stack(links_.call_stack(api), details);
  return names_.plain(store_.call.name[store_.api.call[api]]);
}

uint32_t PerfettoDescriber::describe_kernel(const Slice& slice, EventDetails& details) {
  const auto row = store_.kernel[slice.row];
  add_work(slice, row, details);
  details.texts.push_back({configuration_label_, names_.configuration(row.variant)});
  if (const uint32_t range = links_.payload_owner(row.region); range != kNone) {
    add_payloads(range, details);
  }
  return names_.demangled(store_.variant.name[row.variant]);
}

uint32_t PerfettoDescriber::describe_copy(const Slice& slice, EventDetails& details) {
  const auto row = store_.memcpy[slice.row];
  add_work(slice, row, details);
  details.numbers.push_back({bytes_label_, row.bytes});
  const uint32_t key = (uint32_t{row.kind} << 16) | (uint32_t{row.source} << 8) | row.destination;
  const auto [at, is_new] = copy_names_.try_emplace(key, 0);
  if (is_new) {
    at->second = names_.made(
        store::copy_name(store::CopyKind{row.kind}, store::MemoryKind{row.source}, store::MemoryKind{row.destination}));
  }
  return at->second;
}

template <class Row>
void PerfettoDescriber::add_work(const Slice& slice, const Row& row, EventDetails& details) {
  details.flow = launches_.is_known(row.correlation) ? row.correlation : 0;
  if (row.region != kNone) {
    details.texts.push_back({region_label_, path_name(store_.region.path[row.region])});
  }
  add_notes(row.flags, details);
  if (const uint32_t node = graph_nodes_.find(slice.source, slice.row); node != kNone) {
    details.numbers.push_back({graph_label_, store_.graph_node.graph[node]});
    if (const uint32_t path = store_.graph_node.path[node]; path != kNone) {
      details.texts.push_back({capture_label_, path_name(path)});
    }
  }
}

void PerfettoDescriber::add_payloads(uint32_t region, EventDetails& details) {
  links_.each_payload(region, [&](uint32_t row) {
    const uint32_t label = names_.plain(store_.payload.name[row]);
    const uint64_t value = store_.payload.value[row];
    switch (PayloadType{store_.payload.type[row]}) {
      case PayloadType::Signed:
        details.texts.push_back({label, names_.made(std::to_string(std::bit_cast<int64_t>(value)))});
        break;
      case PayloadType::Float:
        details.texts.push_back({label, names_.made(std::to_string(std::bit_cast<double>(value)))});
        break;
      case PayloadType::Text:
        if (value < store_.strings.size()) {
          details.texts.push_back({label, names_.plain(static_cast<uint32_t>(value))});
        }
        break;
      default:
        details.numbers.push_back({label, value});
        break;
    }
  });
}

void PerfettoDescriber::add_stack(uint32_t stack, EventDetails& details) {
  if (stack == kNone) {
    return;
  }
  const auto [at, is_new] = stack_names_.try_emplace(stack, 0);
  if (is_new) {
    at->second = names_.made(stack_label(store_, stack));
  }
  details.texts.push_back({stack_label_, at->second});
}

void PerfettoDescriber::add_notes(uint16_t flags, EventDetails& details) {
  if (flags == 0) {
    return;
  }
  if (const std::string notes = flag_label(flags); !notes.empty()) {
    details.texts.push_back({notes_label_, names_.made(notes)});
  }
}

}  // namespace gpuscope::exporters
