// SPDX-License-Identifier: Apache-2.0
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <charconv>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/memory/history.h"
#include "gpuscope/torch/operators.h"

namespace gpuscope::torch {
namespace {

using base::Argument;
using base::EnterDetail;
using base::EventLog;
using base::EventLogs;
using base::Op;
using base::RegionKind;

// -- the text of a range ----------------------------------------------------------------------------------------------

constexpr std::string_view kOp = ", op_id = ";
constexpr std::string_view kSequence = ", seq = ";
constexpr std::string_view kSizes = ", sizes = ";
constexpr std::string_view kInputs = ", input_op_ids = ";
constexpr std::string_view kFirstInput = "[(";

constexpr bool is_digit(char letter) noexcept { return letter >= '0' && letter <= '9'; }

/// Removes a number from the front of `text`.
template <class Number>
void take_number(std::string_view& text, Number& number) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{}) {
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
}

/// Splits `, seq = N` off the end of the name.
void split_sequence(RangeText& range) noexcept {
  std::size_t digits = range.name.size();
  while (digits > 0 && is_digit(range.name[digits - 1])) {
    --digits;
  }
  const std::string_view before = range.name.substr(0, digits);
  if (digits < range.name.size() && before.ends_with(kSequence)) {
    std::string_view number = range.name.substr(digits);
    take_number(number, range.sequence);
    range.name = before.substr(0, before.size() - kSequence.size());
  }
}

/// "AddmmBackward0" and the like.
bool is_backward(std::string_view name) noexcept {
  while (!name.empty() && is_digit(name.back())) {
    name.remove_suffix(1);
  }
  return name.ends_with("Backward");
}

}  // namespace

bool names_op(std::string_view name, int64_t sequence) noexcept {
  // The text does not contain the kind of range. Ranges of record_function have no sequence number. Operators have a
  // namespace, except a few old ones.
  return sequence >= 0 || name.find("::") != std::string_view::npos || is_backward(name) || name == "detach" ||
         name == "detach_";
}

RangeText parse_range(std::string_view text) noexcept {
  RangeText range;
  const std::size_t op = text.find(kOp);
  range.name = text.substr(0, op);
  split_sequence(range);
  if (op == std::string_view::npos) {
    return range;
  }
  text.remove_prefix(op + kOp.size());
  take_number(text, range.op);
  if (!text.starts_with(kSizes)) {
    return range;
  }
  text.remove_prefix(kSizes.size());
  const std::size_t inputs = text.rfind(kInputs);
  range.shapes = text.substr(0, inputs);
  if (inputs != std::string_view::npos) {
    text.remove_prefix(inputs + kInputs.size());
    if (text.starts_with(kFirstInput)) {
      text.remove_prefix(kFirstInput.size());
      take_number(text, range.producer);
    }
  }
  return range;
}

// -- ranges and reports of allocations --------------------------------------------------------------------------------

namespace {

// Two libtorch classes are overridden through their virtual tables (Itanium C++ ABI: offset to the top and type
// information precede the functions). A probe checks the places of the functions.
constexpr std::size_t kBefore = 2;
constexpr std::size_t kFunctions = 16;  // more than either class has
using Table = std::array<void*, kBefore + kFunctions>;

// torch::profiler::impl::ProfilerStubs
constexpr std::size_t kMark = 2;
constexpr std::size_t kRangePush = 3;
constexpr std::size_t kRangePop = 4;
constexpr std::size_t kEnabled = 5;
// c10::MemoryReportingInfoBase
constexpr std::size_t kReportMemory = 2;
constexpr std::size_t kReportOutOfMemory = 3;
constexpr std::size_t kMemoryEnabled = 4;
// torch::profiler::impl::ProfilerStateBase, which is one
constexpr std::size_t kProfilerType = 5;
constexpr int kKineto = 2;  // torch::profiler::impl::ActiveProfilerType

constexpr uint32_t kProbe = 8;  // another bit of `wanted`: count, log nothing
constexpr uint8_t kHost = 0;    // c10::DeviceType

struct Object {
  void** functions;
};

std::atomic<uint32_t> wanted{OperatorRanges::kNothing};
std::atomic<bool> in_use{false};
std::atomic<uint32_t> pushes{0};
std::atomic<uint32_t> pops{0};
std::atomic<uint32_t> reports{0};
Table stubs_table{};
Object stubs{stubs_table.data() + kBefore};
Object* previous = nullptr;  // registered before this object
bool previous_enabled = false;
const driver::Torch* of_threads = nullptr;  // finds where torch's profiler is active
Table plain_table{};                        // libtorch's table of a profiler's state
Table memory_table{};
Table kineto_table{};
bool has_state_tables = false;

Table copy_table(const Object* object) noexcept {
  Table table{};
  // The kernel copies and stops at unmapped memory: the table is shorter than the buffer.
  iovec into{table.data(), sizeof(table)};
  iovec from{object->functions - kBefore, sizeof(table)};
  (void)process_vm_readv(getpid(), &into, 1, &from, 1, 0);
  return table;
}

template <class Result, class... Arguments>
Result call_previous(std::size_t function, Arguments... arguments) {
  return reinterpret_cast<Result (*)(Object*, Arguments...)>(previous->functions[function])(previous, arguments...);
}

void log_push(const char* text, uint32_t what) noexcept {
  const uint32_t listening = base::listening.load(std::memory_order_relaxed);
  EventLog* log = listening != 0 ? EventLogs::current() : nullptr;
  if (log == nullptr) {
    return;
  }
  base::WorkTimer timer(*log);
  const RangeText range = parse_range(text);
  const bool is_op = names_op(range.name, range.sequence);
  if (range.sequence >= 0 || !range.shapes.empty()) {
    log->add_argument(Argument::Operator, std::bit_cast<uint64_t>(range.sequence),
                      range.shapes.empty() ? 0 : log->id_of(range.shapes));
  }
  if ((what & OperatorRanges::kOperands) != 0) {
    log->add_argument(Argument::Operands, range.op, range.producer);
  }
  if ((listening & base::kListenStacks) != 0) [[unlikely]] {
    base::add_stack(*log);
  }
  const uint32_t id = log->id_of(range.name);
  timer.stop();
  log->append(base::ticks(), id, Op::Enter,
              EnterDetail::make(is_op ? RegionKind::Op : RegionKind::Range, EnterDetail::kTorchRange));
}

// -- the functions of our ProfilerStubs -------------------------------------------------------------------------------
void push(Object*, const char* text) {
  const uint32_t what = wanted.load(std::memory_order_relaxed);
  if ((what & OperatorRanges::kRanges) != 0) [[likely]] {
    log_push(text, what);
  } else if ((what & kProbe) != 0) {
    pushes += std::string_view(text).starts_with("aten::") ? 1 : 0;
  } else if (previous_enabled) {
    call_previous<void>(kRangePush, text);
  }
}

void pop(Object*) {
  const uint32_t what = wanted.load(std::memory_order_relaxed);
  if ((what & OperatorRanges::kRanges) != 0) [[likely]] {
    EventLog* log = base::listening.load(std::memory_order_relaxed) != 0 ? EventLogs::current() : nullptr;
    if (log != nullptr) {
      log->append(base::ticks(), 0, Op::Pop, EnterDetail::kTorchRange);
    }
  } else if ((what & kProbe) != 0) {
    ++pops;
  } else if (previous_enabled) {
    call_previous<void>(kRangePop);
  }
}

void mark(Object*, const char* text) {
  const bool ours = in_use.load(std::memory_order_relaxed) || wanted.load() != OperatorRanges::kNothing;
  if (!ours && previous_enabled) {
    call_previous<void>(kMark, text);
  }
}

bool enabled(Object*) {
  return in_use.load() || wanted.load() != OperatorRanges::kNothing || call_previous<bool>(kEnabled);
}

// -- the functions of the profiler's state on a thread ----------------------------------------------------------------
// A c10::Device is passed in a register: its type in the low byte, its index in the next byte.
constexpr int32_t device_of(uint16_t device) noexcept { return (device & 0xFF) == kHost ? memory::kHost : device >> 8; }

void log_memory(const memory::Report& report, uint32_t what, bool has_failed) noexcept {
  EventLog* log = (what & OperatorRanges::kMemory) != 0 && base::listening.load(std::memory_order_relaxed) != 0
                      ? EventLogs::current()
                      : nullptr;
  if (log == nullptr) {
    return;
  }
  log->add_argument(Argument::Address, report.address);
  log->add_argument(Argument::Bytes, std::bit_cast<uint64_t>(report.bytes), static_cast<uint32_t>(report.device));
  log->add_argument(Argument::Allocated, static_cast<uint64_t>(report.allocated));
  log->add_argument(Argument::Reserved, static_cast<uint64_t>(report.reserved));
  log->append(base::ticks(), 0, Op::Allocation, has_failed ? 1 : 0);
}

void report_memory(Object*, void* address, int64_t bytes, size_t allocated, size_t reserved, uint16_t device) {
  const uint32_t what = wanted.load(std::memory_order_relaxed);
  if ((what & kProbe) != 0 && (bytes == OperatorRanges::kProbeBytes || bytes == -OperatorRanges::kProbeBytes))
      [[unlikely]] {
    reports += bytes > 0 ? 1 : 0;
    return;
  }
  const memory::Report report{.address = std::bit_cast<uintptr_t>(address),
                              .bytes = bytes,
                              .allocated = static_cast<int64_t>(allocated),
                              .reserved = static_cast<int64_t>(reserved),
                              .device = device_of(device),
                              .source = memory::Source::Torch};
  memory::History::process().record(report);
  memory::Peaks::process().report(report.device, report.allocated);
  log_memory(report, what, false);
}

void report_out_of_memory(Object*, int64_t bytes, size_t allocated, size_t reserved, uint16_t device) {
  log_memory({.bytes = bytes,
              .allocated = static_cast<int64_t>(allocated),
              .reserved = static_cast<int64_t>(reserved),
              .device = device_of(device),
              .source = memory::Source::Torch},
             wanted.load(std::memory_order_relaxed), true);
}

bool memory_enabled(Object*) {
  return memory::History::process().recording() || memory::Peaks::process().wanted() ||
         (wanted.load(std::memory_order_relaxed) & (OperatorRanges::kMemory | kProbe)) != 0;
}

int profiler_type(Object*) { return kKineto; }

/// The profiler's state on the calling thread.
Object* state_here(const driver::Torch& torch) noexcept {
  return torch.debug_info != nullptr ? static_cast<Object*>(torch.debug_info(torch.profiler_state)) : nullptr;
}

template <class Function>
void* address(Function* function) noexcept {
  return reinterpret_cast<void*>(function);
}

/// The first state has libtorch's original tables: all changes to a state call this function first.
void make_state_tables(const Object* state) noexcept {
  if (!has_state_tables) {
    plain_table = memory_table = kineto_table = copy_table(state);
    memory_table[kBefore + kReportMemory] = address(report_memory);
    memory_table[kBefore + kReportOutOfMemory] = address(report_out_of_memory);
    memory_table[kBefore + kMemoryEnabled] = address(memory_enabled);
    kineto_table[kBefore + kProfilerType] = address(profiler_type);
    has_state_tables = true;
  }
}

}  // namespace

OperatorRanges& OperatorRanges::process() {
  static OperatorRanges ranges;
  return ranges;
}

bool OperatorRanges::install(const driver::Torch& torch) {
  if (!torch.has_ranges()) {
    return false;
  }
  auto* registered = static_cast<Object*>(torch.cuda_stubs());
  if (registered == &stubs) {
    return true;
  }
  if (registered == nullptr) {
    return false;
  }
  previous = registered;
  previous_enabled = call_previous<bool>(kEnabled);
  stubs_table = copy_table(previous);
  stubs.functions[kMark] = address(mark);
  stubs.functions[kRangePush] = address(push);
  stubs.functions[kRangePop] = address(pop);
  stubs.functions[kEnabled] = address(enabled);
  torch.register_cuda_methods(&stubs);
  return true;
}

void OperatorRanges::want(uint32_t what) noexcept {
  wanted.store(what | (wanted.load() & kProbe), std::memory_order_release);
}

void OperatorRanges::probe(bool on) noexcept { on ? wanted |= kProbe : wanted &= ~uint32_t{kProbe}; }

void OperatorRanges::use(bool used) noexcept { in_use.store(used, std::memory_order_release); }

bool OperatorRanges::watch_memory(const driver::Torch& torch, bool keep_ranges) noexcept {
  Object* state = state_here(torch);
  if (state == nullptr) {
    return false;
  }
  make_state_tables(state);
  state->functions = memory_table.data() + kBefore;
  if (torch.remove_ranges != nullptr && !keep_ranges) {
    torch.remove_ranges(state);  // each costs
  }
  return true;
}

bool OperatorRanges::drop_ranges(const driver::Torch& torch) noexcept {
  Object* state = state_here(torch);
  if (state == nullptr || torch.remove_ranges == nullptr) {
    return false;
  }
  torch.remove_ranges(state);
  return true;
}

bool OperatorRanges::name_kineto(const driver::Torch& torch, bool on) noexcept {
  Object* state = state_here(torch);
  if (state == nullptr) {
    return false;
  }
  make_state_tables(state);
  memory_table[kBefore + kProfilerType] = (on ? kineto_table : plain_table)[kBefore + kProfilerType];
  if (state->functions != memory_table.data() + kBefore) {
    state->functions = (on ? kineto_table : plain_table).data() + kBefore;
  }
  return true;
}

bool OperatorRanges::only_profiled(const driver::Torch& torch, bool on) noexcept {
  if (torch.debug_info == nullptr) {
    return false;
  }
  of_threads = &torch;
  if (on && base::listening.load() != 0) {
    base::listening.fetch_or(base::kListenProfiled, std::memory_order_release);
  } else {
    base::listening.fetch_and(~uint32_t{base::kListenProfiled}, std::memory_order_release);
  }
  return true;
}

bool OperatorRanges::profiled_here() noexcept { return state_here(*of_threads) != nullptr; }

OperatorRanges::Counts OperatorRanges::take_counts() noexcept {
  return {pushes.exchange(0), pops.exchange(0), reports.exchange(0)};
}

}  // namespace gpuscope::torch
