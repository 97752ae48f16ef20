// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <thread>
#include <utility>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/torch/argument_text.h"
#include "gpuscope/torch/operators.h"

namespace gpuscope::torch {
namespace {

using base::Argument;
using base::EnterDetail;
using base::EventLog;
using base::EventLogs;
using base::IdCache;
using base::Op;
using base::RegionKind;
using driver::TorchCallback;

// Read by the callbacks. Written once, as callbacks of an earlier recording may still run.
struct CallbackLayout {
  Layout layout;
  const void* undefined_tensor = nullptr;
  decltype(driver::Torch::function_name) name = nullptr;
  decltype(driver::Torch::overload_name) overload = nullptr;
  decltype(driver::Torch::module_hierarchy) modules = nullptr;
};
CallbackLayout reading;
// Torch's cost of a callback's call: OperatorCallbacks::CallCost.
std::atomic<uint32_t> operator_ns{0};
std::atomic<uint32_t> backward_ns{0};

// -- studying ---------------------------------------------------------------------------------------------------------
struct Study {
  const driver::Torch* torch;
  std::thread::id thread;
  std::vector<Observation> seen;
};
Study* running_study = nullptr;
constexpr std::size_t kMaxObservations = 64;

void observe_on_thread(const void* function, bool is_end) noexcept {
  Study* study = running_study;
  if (study == nullptr || study->thread != std::this_thread::get_id() || study->seen.size() >= kMaxObservations) {
    return;
  }
  try {
    study->seen.push_back(
        observe(function, study->torch->function_name(function), study->torch->next_sequence(), is_end));
  } catch (...) {  // out of memory: no observation
  }
}

// -- recording --------------------------------------------------------------------------------------------------------
EventLog* log_to_write(uint32_t listening) noexcept {
  if ((listening & base::kListenProfiled) != 0 && !OperatorRanges::profiled_here()) [[unlikely]] {
    return nullptr;
  }
  return listening != 0 ? EventLogs::current() : nullptr;
}

// Logged besides names and times. Each combination is a separate function without runtime checks.
constexpr uint32_t kShapes = 1;
constexpr uint32_t kNumbers = 2;
constexpr uint32_t kConcrete = 4;
constexpr uint32_t kOverloads = 8;
constexpr uint32_t kModules = 16;
constexpr uint32_t kCombinations = 32;

/// In the format of torch's profiler: ``TOP(Net)::forward.layer(Linear)::forward.``. Nothing outside of TorchScript.
void log_modules(EventLog& log) {
  ShortText text;
  for (const std::string& level : reading.modules()) {
    text.put(level);
    text.put(".");
  }
  if (!text.view().empty()) {
    log.add_argument(Argument::Text, log.id_of(text.view()), log.id_of("Module Hierarchy"));
  }
}

/// Named arguments, which only a few libraries' ranges have.
void log_keywords(EventLog& log, const void* function) noexcept {
  const ArgumentText arguments(reading.layout, reading.undefined_tensor);
  std::size_t left = load<std::size_t>(function, reading.layout.keywords + HashMap::kSize);
  const char* node = left != 0 ? load<const char*>(function, reading.layout.keywords + HashMap::kFirst) : nullptr;
  for (; node != nullptr && left != 0; node = load<const char*>(node), --left) {
    const char* value = node + HashMap::kValue;
    const uint32_t name = log.id_of(load_text(node + HashMap::kKey));
    switch (arguments.kind(value)) {
      case ArgumentText::Kind::Int:
        log.add_argument(Argument::Signed, load<uint64_t>(value), name);
        break;
      case ArgumentText::Kind::Double:
        log.add_argument(Argument::Float, load<uint64_t>(value), name);
        break;
      case ArgumentText::Kind::Bool:
        log.add_argument(Argument::Bool, load<uint8_t>(value), name);
        break;
      case ArgumentText::Kind::Text:
        log.add_argument(Argument::Text, log.id_of(arguments.text(value)), name);
        break;
      case ArgumentText::Kind::Numbers: {
        ShortText text;
        arguments.put_concrete(text, value);
        log.add_argument(Argument::List, log.id_of(text.view()), name);
        break;
      }
      case ArgumentText::Kind::Texts: {
        ShortText text;
        arguments.put_texts(text, value);
        if (!text.full()) {
          log.add_argument(Argument::List, log.id_of(text.view()), name);
        }
        break;
      }
      case ArgumentText::Kind::None:
        log.add_argument(Argument::None, 0, name);
        break;
      case ArgumentText::Kind::Complex: {
        ShortText text;
        arguments.put_complex(text, value);
        log.add_argument(Argument::Complex, log.id_of(text.view()), name);
        break;
      }
      default:
        break;
    }
  }
}

template <bool kWithConcrete>
void log_inputs(EventLog& log, const void* function, uint32_t& shapes) noexcept {
  const Layout& layout = reading.layout;
  const Values inputs{load<const char*>(function, layout.inputs),
                      load<std::size_t>(function, layout.inputs + sizeof(uint64_t))};
  if (layout.keywords != Layout::kUnknown) {
    log_keywords(log, function);
  }
  if (inputs.count == 0) {
    return;
  }
  const ArgumentText arguments(layout, reading.undefined_tensor);
  const auto id_of = [&](void (ArgumentText::*put)(ShortText&, Values) const noexcept) {
    ShortText text;
    (arguments.*put)(text, inputs);
    return log.id_of(text.view());
  };
  // Programs call operators with the same shapes repeatedly.
  base::Digest tensors;
  arguments.put_tensors(tensors, inputs);
  const auto [its_shapes, strides, types] = log.ids_of(tensors, [&] {
    return IdCache::Ids{id_of(&ArgumentText::put_shapes), layout.strides ? id_of(&ArgumentText::put_strides) : 0,
                        layout.dtype != Layout::kUnknown ? id_of(&ArgumentText::put_types) : 0};
  });
  shapes = its_shapes;
  if (strides != 0 || types != 0) {
    log.add_argument(Argument::Inputs, strides, types);
  }
  if constexpr (kWithConcrete) {
    base::Digest numbers;
    arguments.put_numbers(numbers, inputs);
    log.add_argument(Argument::Concrete,
                     log.ids_of(numbers, [&] { return IdCache::Ids{id_of(&ArgumentText::put_concrete)}; })[0]);
  }
}

bool is_user(const void* function) noexcept { return load<uint8_t>(function, reading.layout.scope) == kUserScope; }

/// Whether autograd's engine calls it: an operator's derivative, or a range around one.
bool is_of_engine(const void* function, std::string_view name) noexcept {
  return (reading.layout.scope != Layout::kUnknown &&
          load<uint8_t>(function, reading.layout.scope) == kBackwardScope) ||
         name.starts_with("autograd::engine::");
}

/// Whether it represents a region that is logged separately.
bool stands_in(const void* function) noexcept {
  return (reading.layout.scope == Layout::kUnknown || is_user(function)) && OperatorCallbacks::StandIn::here();
}

template <uint32_t kWhat>
std::unique_ptr<TorchCallback::Context> start(const void* function) {
  const uint32_t listening = base::listening.load(std::memory_order_relaxed);
  EventLog* log = log_to_write(listening);
  if (log == nullptr) {
    return nullptr;
  }
  base::WorkTimer timer(*log);
  const Layout& layout = reading.layout;
  if constexpr ((kWhat & kNumbers) != 0) {
    if (layout.number != Layout::kUnknown) {
      log->add_argument(Argument::Operands, static_cast<uint32_t>(load<uint64_t>(function, layout.number)));
    }
  }
  if (stands_in(function)) {
    return nullptr;
  }
  const std::string_view name = reading.name(function);
  const auto sequence = load<int64_t>(function, layout.sequence);
  uint32_t shapes = 0;
  if constexpr ((kWhat & kShapes) != 0) {
    log_inputs<(kWhat & kConcrete) != 0>(*log, function, shapes);
  }
  if constexpr ((kWhat & kOverloads) != 0) {
    log->add_argument(Argument::Overload, log->id_of(reading.overload(function)));
  }
  if constexpr ((kWhat & kModules) != 0) {
    if (!is_of_engine(function, name)) {
      log_modules(*log);
    }
  }
  if (sequence >= 0 || shapes != 0) {
    log->add_argument(Argument::Operator, std::bit_cast<uint64_t>(sequence), shapes);
  }
  const bool knows_scope = layout.scope != Layout::kUnknown;
  const bool user = knows_scope && is_user(function);
  if ((listening & base::kListenStacks) != 0) [[unlikely]] {
    base::add_stack(*log, knows_scope && !user ? function : nullptr);  // a user's range may outlive its opener
  }
  const bool is_op = knows_scope ? !user : names_op(name, sequence);
  const uint32_t id = log->id_of(name);
  if (timer.is_on()) [[unlikely]] {
    timer.stop((is_of_engine(function, name) ? backward_ns : operator_ns).load(std::memory_order_relaxed));
  }
  log->append(base::ticks(), id, Op::Enter,
              EnterDetail::make(is_op ? RegionKind::Op : RegionKind::Range, EnterDetail::kTorchRange));
  return nullptr;
}

template <bool kResults>
void end(const void* function, TorchCallback::Context*) {
  base::leave_call(function);
  EventLog* log = log_to_write(base::listening.load(std::memory_order_relaxed));
  if (log == nullptr || stands_in(function)) {
    return;
  }
  if constexpr (kResults) {
    const base::WorkTimer timer(*log);
    const auto* first = load<const char*>(function, reading.layout.outputs);
    const auto* last = load<const char*>(function, reading.layout.outputs + sizeof(uint64_t));
    ShortText text;
    ArgumentText(reading.layout, reading.undefined_tensor)
        .put_shapes(text, {first, static_cast<std::size_t>(last - first) / kValueBytes});
    if (first != last) {
      log->add_argument(Argument::Results, log->id_of(text.view()));
    }
  }
  log->append(base::ticks(), 0, Op::Pop, EnterDetail::kTorchRange);
}

constexpr auto kStarts = []<uint32_t... kWhat>(std::integer_sequence<uint32_t, kWhat...>) {
  return std::array{&start<kWhat>...};
}
(std::make_integer_sequence<uint32_t, kCombinations>{});

TorchCallback every_scope(TorchCallback callback) {
  callback.scopes.fill(true);
  return callback;
}

TorchCallback callback_of(const OperatorCallbacks::Options& options, decltype(TorchCallback::start) start,
                          decltype(TorchCallback::end) end) {
  return every_scope({.start = start,
                      .end = end,
                      .needs_inputs = options.shapes,
                      .needs_outputs = options.results,
                      .needs_ids = options.numbers});
}

std::size_t needs_of(const OperatorCallbacks::Options& options) noexcept {
  return (options.shapes ? 1U : 0U) | (options.results ? 2U : 0U) | (options.numbers ? 4U : 0U);
}

}  // namespace

void log_text_input(EventLog& log) noexcept {
  log.add_argument(Argument::Inputs, log.id_of("[[]]"), log.id_of("['']"));
  log.add_argument(Argument::Concrete, log.id_of("['']"));
  log.add_argument(Argument::Operator, std::bit_cast<uint64_t>(int64_t{-1}), log.id_of("[[]]"));
}

OperatorCallbacks& OperatorCallbacks::process() {
  static OperatorCallbacks callbacks;
  return callbacks;
}

std::string OperatorCallbacks::study(const driver::Torch& torch, const std::string& user_name,
                                     const std::function<KnownWork()>& work) {
  if (!torch.has_callbacks()) {
    return "this libtorch offers no callbacks";
  }
  Study study{&torch, std::this_thread::get_id(), {}};
  running_study = &study;
  const auto begin = [](const void* function) -> std::unique_ptr<TorchCallback::Context> {
    observe_on_thread(function, false);
    return nullptr;
  };
  const uint64_t handle =
      torch.add_callback(every_scope({.start = begin,
                                      .end = [](const void* function, auto*) { observe_on_thread(function, true); },
                                      .needs_inputs = true,
                                      .needs_outputs = true,
                                      .needs_ids = true}));
  const auto finish = [&] {
    torch.remove_callback(handle);
    running_study = nullptr;
  };
  KnownWork known;
  try {
    known = work();
  } catch (...) {
    finish();
    throw;
  }
  finish();
  std::string missing = infer_layout(study.seen, known.tensors, known.calls, user_name, layout_);
  infer_values(study.seen, known.arguments, layout_);
  return missing;
}

void OperatorCallbacks::set_reading(const driver::Torch& torch) noexcept {
  if (reading.name == nullptr) {
    reading = {layout_, torch.undefined_tensor, torch.function_name, torch.overload_name, torch.module_hierarchy};
  }
}

OperatorCallbacks::Options OperatorCallbacks::known(const Options& options) const noexcept {
  const bool has_sizes = layout_.sizes != Layout::kUnknown;
  return {.shapes = options.shapes && has_sizes && layout_.inputs != Layout::kUnknown,
          .concrete = options.concrete,
          .results = options.results && has_sizes && layout_.outputs != Layout::kUnknown,
          .numbers = options.numbers,
          .overloads = options.overloads,
          .modules = options.modules};
}

OperatorCallbacks::CallCost OperatorCallbacks::measure(const driver::Torch& torch, const Options& options,
                                                       const std::function<void()>& forward,
                                                       const std::function<void()>& backward) {
  const Options wanted = known(options);
  set_reading(torch);
  thread_local uint64_t operators = 0;  // thread-local: other threads may call operators meanwhile
  thread_local uint64_t of_engine = 0;
  const TorchCallback counting = callback_of(
      wanted,
      [](const void* function) -> std::unique_ptr<TorchCallback::Context> {
        ++(is_of_engine(function, reading.name(function)) ? of_engine : operators);
        return nullptr;
      },
      [](const void*, TorchCallback::Context*) {});
  const auto time = [](const std::function<void()>& work) {
    work();  // first run: torch refreshes its list of callbacks
    operators = of_engine = 0;
    const int64_t began = base::thread_cpu_ns();
    work();
    return static_cast<double>(base::thread_cpu_ns() - began);
  };
  // The time that the callbacks add to `work`: the median of several rounds.
  const auto added = [&](const std::function<void()>& work) {
    constexpr std::size_t kRounds = 7;
    std::array<double, kRounds> times{};
    for (double& each : times) {
      const double alone = time(work);
      const uint64_t handle = torch.add_callback(counting);
      try {
        each = time(work) - alone;
      } catch (...) {
        torch.remove_callback(handle);
        throw;
      }
      torch.remove_callback(handle);
    }
    std::ranges::nth_element(times, times.begin() + kRounds / 2);
    return times[kRounds / 2];
  };
  const auto each_of = [](double time, uint64_t count) {
    constexpr double kMost = 100'000;
    return count != 0 ? static_cast<uint32_t>(std::clamp(time / static_cast<double>(count), 0.0, kMost)) : 0;
  };
  CallCost cost;
  const double by_operators = added(forward);
  cost.operator_ns = each_of(by_operators, operators);
  cost.backward_ns = cost.operator_ns;
  if (backward) {
    const double by_engine = added(backward);
    cost.backward_ns = each_of(by_engine - static_cast<double>(operators) * cost.operator_ns, of_engine);
  }
  return call_costs_[needs_of(wanted)] = cost;
}

void OperatorCallbacks::start(const driver::Torch& torch, const Options& options) {
  stop(torch);
  const Options wanted = known(options);
  const bool concrete = wanted.shapes && wanted.concrete && layout_.list != Layout::kUnknown &&
                        (torch.records_concrete_inputs == nullptr || torch.records_concrete_inputs());
  const bool overloads = wanted.overloads && torch.overload_name != nullptr;
  const bool modules = wanted.modules && torch.module_hierarchy != nullptr;
  set_reading(torch);
  logs_inputs_.store(wanted.shapes, std::memory_order_relaxed);
  const CallCost& cost = call_costs_[needs_of(wanted)];
  operator_ns.store(cost.operator_ns, std::memory_order_relaxed);
  backward_ns.store(cost.backward_ns, std::memory_order_relaxed);
  const uint32_t what = (wanted.shapes ? kShapes : 0) | (wanted.numbers ? kNumbers : 0) | (concrete ? kConcrete : 0) |
                        (overloads ? kOverloads : 0) | (modules ? kModules : 0);
  handle_ = torch.add_callback(callback_of(wanted, kStarts[what], wanted.results ? &end<true> : &end<false>));
}

void OperatorCallbacks::stop(const driver::Torch& torch) {
  if (handle_ != 0) {
    torch.remove_callback(handle_);
    handle_ = 0;
    logs_inputs_.store(false, std::memory_order_relaxed);
  }
}

}  // namespace gpuscope::torch
