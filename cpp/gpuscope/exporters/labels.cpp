// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/labels.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <utility>

#include "gpuscope/store/values.h"

namespace gpuscope::exporters {
namespace {

constexpr std::array<std::pair<uint16_t, std::string_view>, 6> kFlags = {
    {{store::kZeroTime, "no timestamps"},
     {store::kBackwardTime, "ended before it began"},
     {store::kIncomplete, "incomplete"},
     {store::kNoLaunch, "launch not seen"},
     {store::kOpen, "still open at the end"},
     {store::kClipped, "open before the beginning"}}};

}  // namespace

uint64_t process_id(const store::Store& store, uint64_t otherwise) {
  const std::string_view text = store.find_info("process.id");
  std::from_chars(text.data(), text.data() + text.size(), otherwise);
  return otherwise;
}

std::string_view process_label(const store::Store& store) {
  const std::string_view name = store.find_info("process.argv");
  return name.empty() ? "python" : name;
}

std::string thread_label(const store::Store& store, uint32_t thread) {
  const std::string_view name = store.strings[store.thread.name[thread]];
  return name.empty() ? "thread " + std::to_string(store.thread.system_id[thread]) : std::string(name);
}

std::string_view device_name(const store::Store& store, uint32_t ordinal) {
  const auto& ordinals = store.device.ordinal;
  const auto row = static_cast<std::size_t>(std::find(ordinals.begin(), ordinals.end(), ordinal) - ordinals.begin());
  return row < store.device.size() ? store.strings[store.device.name[row]] : "";
}

std::string stream_label(const store::Store& store, uint32_t track) {
  const uint32_t stream = store.track.stream[track];
  return stream == store::kNone ? "context" : "stream " + std::to_string(stream);
}

std::string lane_label(const std::string& track, uint32_t lane) {
  return lane == 0 ? track : track + " (lane " + std::to_string(lane + 1) + ")";
}

std::string_view region_category(base::RegionKind kind) {
  switch (kind) {
    case base::RegionKind::Op:
      return "cpu_op";
    case base::RegionKind::Module:
      return "python_function";
    default:
      return "user_annotation";
  }
}

std::string region_label(base::RegionKind kind, std::string_view name) {
  const auto is_number = [](std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  std::size_t dot = name.rfind('.');
  while (dot != std::string_view::npos && dot != 0 &&
         is_number(name.substr(dot + 1, name.find('.', dot + 1) - dot - 1))) {
    dot = name.rfind('.', dot - 1);
  }
  const bool is_path = kind == base::RegionKind::Module && name.find(' ') == std::string_view::npos;
  if (!is_path || dot == std::string_view::npos || dot + 1 == name.size()) {
    return std::string(name);
  }
  return std::string(name.substr(dot + 1)) + " (" + std::string(name) + ")";
}

std::string stack_label(const store::Store& store, uint32_t stack) {
  std::string label;
  for (; stack != store::kNone; stack = store.stack.parent[stack]) {
    label += label.empty() ? "" : ";";
    label += store.strings[store.stack.file[stack]];
    label += '(';
    label += std::to_string(store.stack.line[stack]);
    label += "): ";
    label += store.strings[store.stack.function[stack]];
  }
  return label;
}

std::string flag_label(uint16_t flags) {
  std::string label;
  for (const auto& [flag, text] : kFlags) {
    if ((flags & flag) != 0) {
      label += label.empty() ? "" : ", ";
      label += text;
    }
  }
  return label;
}

namespace {

// The same for every GPU in the table below.
constexpr uint64_t kWarp = 32;
constexpr uint64_t kRegisters = 65536;
constexpr uint64_t kRegistersAtOnce = 256;  // allocation unit of a warp's registers
constexpr uint64_t kPartitions = 4;         // per multiprocessor, each with its own registers

constexpr uint64_t divide_up(uint64_t value, uint64_t by) { return (value + by - 1) / by; }
constexpr uint64_t round_up(uint64_t value, uint64_t to) { return divide_up(value, to) * to; }

}  // namespace

// CUDA C++ Programming Guide 13.0, "Technical specifications per compute capability".
std::optional<MultiprocessorLimits> multiprocessor_limits(uint32_t major, uint32_t minor) {
  constexpr uint32_t kKiB = 1024;
  switch (minor < 10 && major < 100 ? major * 10 + minor : 0) {
    case 70:
      return MultiprocessorLimits{2048, 32, 96 * kKiB, 0, 256};
    case 75:
      return MultiprocessorLimits{1024, 16, 64 * kKiB, 0, 256};
    case 80:
      return MultiprocessorLimits{2048, 32, 164 * kKiB, kKiB, 128};
    case 86:
      return MultiprocessorLimits{1536, 16, 100 * kKiB, kKiB, 128};
    case 87:
      return MultiprocessorLimits{1536, 16, 164 * kKiB, kKiB, 128};
    case 89:
      return MultiprocessorLimits{1536, 24, 100 * kKiB, kKiB, 128};
    case 90:
    case 100:
    case 103:
      return MultiprocessorLimits{2048, 32, 228 * kKiB, kKiB, 128};
    case 120:
    case 121:
      return MultiprocessorLimits{1536, 24, 100 * kKiB, kKiB, 128};
    default:
      return std::nullopt;
  }
}

// The limits of cuda_occupancy.h's cudaOccMaxActiveBlocksPerMultiprocessor, and Kineto's rule: a grid that does not
// fill the multiprocessors counts with its actual blocks.
std::optional<Occupancy> occupancy(const store::Variants::Row& variant, uint32_t multiprocessors,
                                   const MultiprocessorLimits& limits) {
  const uint64_t threads = uint64_t{variant.block_x} * variant.block_y * variant.block_z;
  const double blocks = static_cast<double>(variant.grid_x) * variant.grid_y * variant.grid_z;
  if (multiprocessors == 0 || threads == 0 || threads > limits.threads) {
    return std::nullopt;
  }
  const uint64_t warps = divide_up(threads, kWarp);
  uint64_t most = std::min<uint64_t>(limits.blocks, limits.threads / kWarp / warps);
  if (const uint64_t registers = round_up(variant.registers * kWarp, kRegistersAtOnce); registers != 0) {
    most = std::min(most, kRegisters / kPartitions / registers * kPartitions / warps);
  }
  const uint64_t shared =
      round_up(uint64_t{variant.static_shared_bytes} + variant.dynamic_shared_bytes + limits.reserved_shared_bytes,
               limits.shared_step_bytes);
  if (shared != 0) {
    most = std::min(most, limits.shared_bytes / shared);
  }
  if (most == 0) {
    return std::nullopt;
  }
  const double per_multiprocessor = blocks / multiprocessors;
  const double active = std::min(per_multiprocessor, static_cast<double>(most));
  const double share = active * static_cast<double>(threads) / limits.threads;
  return Occupancy{per_multiprocessor, per_multiprocessor * static_cast<double>(threads) / kWarp,
                   static_cast<int>(std::lround(100 * share))};
}

}  // namespace gpuscope::exporters
