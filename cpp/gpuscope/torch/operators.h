// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gpuscope/base/event_log.h"
#include "gpuscope/driver/libraries.h"
#include "gpuscope/torch/layout.h"

namespace gpuscope::torch {

/// The parts of the text that torch writes for an operator's range, such as `aten::add_, seq = 4, op_id = 17, sizes =
/// [[2, 3], []], input_op_ids = [(16,0), (0,-1)]`.
struct RangeText {
  std::string_view name;
  int64_t sequence = -1;    // autograd's number
  uint32_t op = 0;          // the operator's own number
  std::string_view shapes;  // "[[2, 3], []]", empty if absent
  uint32_t producer = 0;    // number of the operator that made its first tensor
};

/// Whether a range with that name and autograd number is an operator or autograd function. False for ranges that a
/// program or library named with record_function.
bool names_op(std::string_view name, int64_t sequence) noexcept;

/// Parses the text. Text in another form is the name. Does not allocate.
RangeText parse_range(std::string_view text) noexcept;

/// Logs torch's operator ranges and allocator reports in the event logs. Allocator reports also go to the memory
/// history, while it is recorded, and to open memory::Peaks.
///
/// Torch's profiler has a mode that sends every operator to the functions registered by a device, for NVTX ranges. This
/// class registers itself there, once per process and permanently. While nothing is wanted, it forwards everything to
/// the previous registration, so other tools keep working. Works with and without CUDA, at any time, and needs no
/// libtorch headers.
///
/// install, want, use: one thread, with torch's profiler off. Torch calls the rest on any thread.
class OperatorRanges {
 public:
  enum Want : uint32_t {
    kNothing = 0,
    kRanges = 1,
    kOperands = 2,  // the origin of an operator's first tensor
    kMemory = 4,
  };
  struct Counts {
    uint32_t pushes = 0;  // texts of operators
    uint32_t pops = 0;
    uint32_t reports = 0;  // of kProbeBytes
  };
  static constexpr int64_t kProbeBytes = 12'345'664;

  static OperatorRanges& process();

  /// Registers with torch, once. False if this libtorch has no such registration.
  bool install(const driver::Torch& torch);
  void want(uint32_t what) noexcept;
  /// Whether to count operators and allocations of kProbeBytes instead of logging them.
  void probe(bool on) noexcept;
  /// Whether torch's profiler is active for this package on some thread, even if nothing is wanted. Without a GPU,
  /// torch calls enabled() before it enables its ranges.
  void use(bool used) noexcept;
  /// Reports the allocations of the calling thread, on which torch's profiler was just started. Its ranges are reported
  /// only with `keep_ranges`. False if impossible.
  bool watch_memory(const driver::Torch& torch, bool keep_ranges = false) noexcept;
  /// Drops the ranges of the calling thread, on which torch's profiler was just started. Operators then cost nothing,
  /// and torch's code sees an active profiler. False if impossible.
  bool drop_ranges(const driver::Torch& torch) noexcept;
  /// Makes torch's profiler on the calling thread, just started for this package, identify itself as Kineto's instead
  /// of the NVTX one. False if there is none.
  bool name_kineto(const driver::Torch& torch, bool on) noexcept;
  /// Restricts logged regions and operators to threads with an active torch profiler: the thread that started it, and
  /// threads that work for it. False if impossible. While a session records.
  bool only_profiled(const driver::Torch& torch, bool on) noexcept;
  /// Whether the calling thread is recorded under only_profiled. Any thread.
  static bool profiled_here() noexcept;
  /// The counts since the last call.
  Counts take_counts() noexcept;
};

/// Logs torch's operators on every thread with torch's own callbacks. Unlike its text ranges (OperatorRanges), they
/// have shapes and types of all arguments, and work next to any torch profiler.
///
/// study, start, stop: one thread at a time. The callbacks come on any thread.
class OperatorCallbacks {
 public:
  struct Options {
    bool shapes = false;    // and strides and types
    bool concrete = false;  // with shapes also the numbers among the inputs, unless torch's own switch is off
    bool results = false;
    bool numbers = false;  // that torch gives them
    bool overloads = false;
    bool modules = false;  // TorchScript's
  };

  static OperatorCallbacks& process();

  struct KnownWork {
    std::vector<KnownTensor> tensors;
    std::vector<KnownCall> calls;
    std::vector<KnownArguments> arguments;
  };
  /// Infers torch's layout from the operators that `work` calls on this thread and returns, and from a range named
  /// `user_name`. Returns why it could not be inferred.
  std::string study(const driver::Torch& torch, const std::string& user_name, const std::function<KnownWork()>& work);
  const Layout& layout() const noexcept { return layout_; }

  /// Torch's cost of a callback's call, in ns. Higher for operators called by autograd's engine, as torch then makes a
  /// text.
  struct CallCost {
    uint32_t operator_ns = 0;
    uint32_t backward_ns = 0;
  };
  /// Measures CallCost with these options, with the operators that `forward` calls on this thread, and those that
  /// `backward`, if given, makes the engine call. start() adds it to the cost of recording. Only after a successful
  /// study.
  CallCost measure(const driver::Torch& torch, const Options& options, const std::function<void()>& forward,
                   const std::function<void()>& backward);

  /// Logs every operator from now on. Only after a successful study.
  void start(const driver::Torch& torch, const Options& options);
  void stop(const driver::Torch& torch);
  /// Whether input shapes are logged. Any thread.
  bool logs_inputs() const noexcept { return logs_inputs_.load(std::memory_order_relaxed); }

  /// In this scope, a range on this thread represents a region that the program opens or closes. If numbers are logged,
  /// the region gets the range's number. No row is added.
  class StandIn {
   public:
    StandIn() noexcept { here_ = true; }
    ~StandIn() { here_ = false; }
    StandIn(const StandIn&) = delete;
    StandIn& operator=(const StandIn&) = delete;
    static bool here() noexcept { return here_; }

   private:
    inline static thread_local bool here_ = false;
  };

 private:
  /// The options that can be met with the known layout.
  Options known(const Options& options) const noexcept;
  void set_reading(const driver::Torch& torch) noexcept;

  Layout layout_;
  std::array<CallCost, 8> call_costs_;  // by the requested data
  uint64_t handle_ = 0;
  std::atomic<bool> logs_inputs_{false};
};

/// Logs the text input of a range for the region that comes next.
void log_text_input(base::EventLog& log) noexcept;

}  // namespace gpuscope::torch
