// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/chrome_arguments.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "gpuscope/exporters/json_text.h"
#include "gpuscope/exporters/labels.h"

namespace gpuscope::exporters {
namespace {

using store::kNone;
using store::PayloadType;

// Arguments that events have of their own: a payload of that name must not take their place.
constexpr std::string_view kOwn[] = {"External id",     "Ev Idx",
                                     "Sequence number", "Fwd thread id",
                                     "Input Dims",      "Input type",
                                     "Call stack",      "device",
                                     "context",         "stream",
                                     "correlation",     "grid",
                                     "block",           "registers per thread",
                                     "shared memory",   "region",
                                     "notes",           "graph id",
                                     "graph node id",   "captured in",
                                     "Collective name"};

void put_number(Output& out, double value) {
  if (!std::isfinite(value)) {
    out.put(quoted(std::to_string(value)));  // JSON has no such numbers
    return;
  }
  char digits[32];
  out.put(std::string_view(digits, std::to_chars(digits, digits + sizeof digits, value).ptr));
}

}  // namespace

void ChromeArguments::put_details(Output& out, uint32_t region) {
  const uint32_t row = links_.detail(region);
  if (row == kNone) {
    return;
  }
  if (store_.detail.sequence[row] >= 0) {
    out.put(",\"Sequence number\":");
    out.put_number(store_.detail.sequence[row]);
    // The system's number of the thread, as "tid" has it; 0 for a forward operator, as in torch's files.
    const uint32_t forward = store_.detail.forward[row];
    out.put(",\"Fwd thread id\":");
    out.put_number(forward == kNone ? 0 : store_.thread.system_id[store_.region.thread[forward]]);
  }
  if (store_.detail.shapes[row] != kNone) {
    out.put(shapes(store_.detail.shapes[row]));
  }
  if (store_.detail.types[row] != kNone) {
    out.put(types(store_.detail.types[row]));
  }
  put_stack(out, store_.detail.stack[row]);
}

void ChromeArguments::put_payloads(Output& out, uint32_t region) const {
  if (region == kNone) {
    return;
  }
  const uint32_t path = store_.region.path[region];
  if (store_.strings[store_.path.domain[path]] == "NCCL") {
    out.put(",\"Collective name\":");
    out.put(quoted(store_.strings[store_.path.name[path]]));
  }
  links_.each_payload(region, [&](uint32_t row) {
    std::string name(store_.strings[store_.payload.name[row]]);
    if (std::find(std::begin(kOwn), std::end(kOwn), name) != std::end(kOwn)) {
      name += " (payload)";
    }
    out.put(',');
    out.put(quoted(name));
    out.put(':');
    const uint64_t value = store_.payload.value[row];
    switch (PayloadType{store_.payload.type[row]}) {
      case PayloadType::Signed:
        out.put_number(std::bit_cast<int64_t>(value));
        break;
      case PayloadType::Float:
        put_number(out, std::bit_cast<double>(value));
        break;
      case PayloadType::Text:
        out.put(quoted(value < store_.strings.size() ? store_.strings[static_cast<uint32_t>(value)] : ""));
        break;
      default:
        out.put_number(value);
        break;
    }
  });
}

void ChromeArguments::put_stack(Output& out, uint32_t stack) {
  if (stack == kNone) {
    return;
  }
  std::string& text = stacks_[stack];
  if (text.empty()) {
    text = ",\"Call stack\":" + quoted(stack_label(store_, stack));
  }
  out.put(text);
}

std::string_view ChromeArguments::types(uint32_t text) {
  std::string& argument = types_[text];
  if (argument.empty()) {
    argument = ",\"Input type\":" + quoted_list(store_.strings[text]);
  }
  return argument;
}

std::string_view ChromeArguments::shapes(uint32_t text) {
  std::string& argument = shapes_[text];
  if (argument.empty()) {
    const std::string_view value = store_.strings[text];
    argument = ",\"Input Dims\":" + (is_json_lists(value) ? std::string(value) : quoted(value));
  }
  return argument;
}

}  // namespace gpuscope::exporters
