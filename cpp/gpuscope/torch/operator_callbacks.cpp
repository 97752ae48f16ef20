// SPDX-License-Identifier: Apache-2.0

#include <atomic>
#include <bit>
#include <thread>

#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_log.h"
#include "gpuscope/base/hooks.h"
#include "gpuscope/torch/operators.h"

namespace gpuscope::torch {
namespace {

using base::Argument;
using base::EnterDetail;
using base::EventLog;
using base::EventLogs;
using base::Op;
using base::RegionKind;
using driver::TorchCallback;

// What the callbacks read. Written once, as callbacks of an earlier recording may still run.
struct Reading {
  Layout layout;
  const void* undefined_tensor = nullptr;
  decltype(driver::Torch::function_name) name = nullptr;
};
Reading reading;

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
EventLog* log_to_write(uint32_t listening) noexcept { return listening != 0 ? EventLogs::current() : nullptr; }

void log_inputs(EventLog& log, const void* function, uint32_t& shapes) noexcept {
  const Layout& layout = reading.layout;
  const Values inputs{load<const char*>(function, layout.inputs),
                      load<std::size_t>(function, layout.inputs + sizeof(uint64_t))};
  if (inputs.count == 0) {
    return;
  }
  const ArgumentText arguments(layout, reading.undefined_tensor);
  ShortText text;
  arguments.put_shapes(text, inputs);
  shapes = log.id_of(text.view());
  if (layout.strides) {
    ShortText strides;
    arguments.put_strides(strides, inputs);
    log.add_argument(Argument::Strides, log.id_of(strides.view()));
  }
  if (layout.dtype != Layout::kUnknown) {
    ShortText types;
    arguments.put_types(types, inputs);
    log.add_argument(Argument::Types, log.id_of(types.view()));
  }
}

template <bool kShapes, bool kNumbers>
std::unique_ptr<TorchCallback::Context> start(const void* function) {
  const uint32_t listening = base::listening.load(std::memory_order_relaxed);
  EventLog* log = log_to_write(listening);
  if (log == nullptr) {
    return nullptr;
  }
  const Layout& layout = reading.layout;
  if constexpr (kNumbers) {
    if (layout.number != Layout::kUnknown) {
      log->add_argument(Argument::Operands, static_cast<uint32_t>(load<uint64_t>(function, layout.number)));
    }
    if (OperatorCallbacks::StandIn::here()) {
      return nullptr;
    }
  }
  const std::string_view name = reading.name(function);
  const auto sequence = load<int64_t>(function, layout.sequence);
  uint32_t shapes = 0;
  if constexpr (kShapes) {
    log_inputs(*log, function, shapes);
  }
  if (sequence >= 0 || shapes != 0) {
    log->add_argument(Argument::Operator, std::bit_cast<uint64_t>(sequence), shapes);
  }
  if ((listening & base::kListenStacks) != 0) [[unlikely]] {
    base::append_stack(*log);
  }
  const bool is_op =
      layout.scope != Layout::kUnknown ? load<uint8_t>(function, layout.scope) != kUserScope : names_op(name, sequence);
  const uint32_t id = log->id_of(name);
  log->append(base::ticks(), id, Op::Enter,
              EnterDetail::make(is_op ? RegionKind::Op : RegionKind::Range, EnterDetail::kTorchRange));
  return nullptr;
}

template <bool kResults, bool kNumbers>
void end(const void* function, TorchCallback::Context*) {
  EventLog* log = log_to_write(base::listening.load(std::memory_order_relaxed));
  if (log == nullptr || (kNumbers && OperatorCallbacks::StandIn::here())) {
    return;
  }
  if constexpr (kResults) {
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

template <bool kNumbers>
TorchCallback make_callback(bool shapes, bool results) {
  return {.start = shapes ? &start<true, kNumbers> : &start<false, kNumbers>,
          .end = results ? &end<true, kNumbers> : &end<false, kNumbers>,
          .needs_inputs = shapes,
          .needs_outputs = results,
          .needs_ids = kNumbers};
}

TorchCallback every_scope(TorchCallback callback) {
  callback.scopes.fill(true);
  return callback;
}

}  // namespace

OperatorCallbacks& OperatorCallbacks::process() {
  static OperatorCallbacks callbacks;
  return callbacks;
}

std::string OperatorCallbacks::study(const driver::Torch& torch, const std::string& user_name,
                                     const std::function<Work()>& work) {
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
  Work known;
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

void OperatorCallbacks::start(const driver::Torch& torch, const Options& options) {
  stop(torch);
  const bool shapes = options.shapes && layout_.inputs != Layout::kUnknown && layout_.sizes != Layout::kUnknown;
  const bool results = options.results && layout_.outputs != Layout::kUnknown && layout_.sizes != Layout::kUnknown;
  if (reading.name == nullptr) {
    reading = {layout_, torch.undefined_tensor, torch.function_name};
  }
  handle_ = torch.add_callback(
      every_scope(options.numbers ? make_callback<true>(shapes, results) : make_callback<false>(shapes, results)));
}

void OperatorCallbacks::stop(const driver::Torch& torch) {
  if (handle_ != 0) {
    torch.remove_callback(handle_);
    handle_ = 0;
  }
}

}  // namespace gpuscope::torch
