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

/// What torch writes into the text of an operator's range, as
/// `aten::add_, seq = 4, op_id = 17, sizes = [[2, 3], []], input_op_ids = [(16,0), (0,-1)]`.
struct RangeText {
  std::string_view name;
  int64_t sequence = -1;    // autograd's number
  uint32_t op = 0;          // the operator's own number
  std::string_view shapes;  // "[[2, 3], []]", empty where it has none
  uint32_t producer = 0;    // the number of the operator that made its first tensor
};

/// Whether a range of that name and number of autograd is an operator or autograd function, rather than what a program
/// or library named with record_function.
bool names_op(std::string_view name, int64_t sequence) noexcept;

/// Parses the text; text of another form is the name. Allocates nothing.
RangeText parse_range(std::string_view text) noexcept;

/// Takes torch's operator ranges, and what its allocators report, into the event logs. What they report goes to the
/// memory history too while one is recorded, and to the open memory::Peaks.
///
/// torch's profiler has a mode that sends every operator to the methods which a device registered, as NVTX ranges are
/// made. We register ourselves in that place, once a process and for good: while nothing is wanted everything is passed
/// on to who was there before, so that other tools find what they would have found. Works with and without CUDA, and
/// however late; nothing else of libtorch is touched, and no header of it is needed.
///
/// install, want, use: one thread, with torch's profiler off. The rest is called by torch on any thread.
class OperatorRanges {
 public:
  enum Want : uint32_t {
    kNothing = 0,
    kRanges = 1,
    kOperands = 2,  // who made an operator's first tensor
    kMemory = 4,
  };
  struct Counts {
    uint32_t pushes = 0;  // whose text is an operator's
    uint32_t pops = 0;
    uint32_t reports = 0;  // of kProbeBytes
  };
  static constexpr int64_t kProbeBytes = 12'345'664;

  static OperatorRanges& process();

  /// Registers with torch, unless done before. False when this libtorch offers no such place.
  bool install(const driver::Torch& torch);
  void want(uint32_t what) noexcept;
  /// Whether operators and allocations of kProbeBytes are counted, and not logged.
  void probe(bool on) noexcept;
  /// Whether torch's profiler is on for us on some thread, even if nothing is wanted: without a GPU torch calls
  /// enabled() before it enables its ranges.
  void use(bool used) noexcept;
  /// From now on the allocations of the calling thread, on which torch's profiler has just been switched on, are
  /// reported, and its ranges only if they are kept. False when that is not possible.
  bool watch_memory(const driver::Torch& torch, bool keep_ranges = false) noexcept;
  /// From now on the ranges of the calling thread, on which torch's profiler has just been switched on, come no more:
  /// operators cost nothing, and torch's code finds a profiler. False when that is not possible.
  bool drop_ranges(const driver::Torch& torch) noexcept;
  /// Whether the profiler of torch's on the calling thread, which has just been switched on for us, says that it is
  /// Kineto's, as torch's own does, rather than that it makes NVTX ranges. False when there is none.
  bool name_kineto(const driver::Torch& torch, bool on) noexcept;
  /// Whether regions and operators are logged of those threads alone on which torch's profiler is on: that where it was
  /// switched on, and those that torch has work for it. False when that is not possible. While a session collects.
  bool only_profiled(const driver::Torch& torch, bool on) noexcept;
  /// Whether those of the calling thread are, where not all are. Any thread.
  static bool profiled_here() noexcept;
  /// The counts since the last call.
  Counts take_counts() noexcept;
};

/// torch's operators, of every thread, by torch's own callbacks around them. They cost a fraction of its text ranges
/// (OperatorRanges), have shapes and types of all arguments, and work beside any profiler of torch's.
///
/// study, start, stop: one thread at a time. The callbacks come on any thread.
class OperatorCallbacks {
 public:
  struct Options {
    bool shapes = false;    // and strides and types
    bool concrete = false;  // with shapes, numbers among the inputs too, unless torch's own switch is off
    bool results = false;
    bool numbers = false;  // that torch gives them
    bool overloads = false;
    bool modules = false;  // TorchScript's
  };

  static OperatorCallbacks& process();

  struct Work {
    std::vector<KnownTensor> tensors;
    std::vector<KnownCall> calls;
    std::vector<KnownArguments> arguments;
  };
  /// Infers torch's layout from the operators that `work` calls on this thread and returns, and from a range that it
  /// names `user_name`. Returns why it could not be inferred.
  std::string study(const driver::Torch& torch, const std::string& user_name, const std::function<Work()>& work);
  const Layout& layout() const noexcept { return layout_; }

  /// What torch takes to call callbacks, in ns; much more for what autograd's engine calls, whose text it makes each
  /// time.
  struct CallCost {
    uint32_t operator_ns = 0;
    uint32_t backward_ns = 0;
  };
  /// Measures that for callbacks with these options, by the operators that `forward` calls on this thread and by what
  /// `backward`, where there is one, has the engine call: start() has it counted among what recording costs. Only after
  /// a study that succeeded.
  CallCost measure(const driver::Torch& torch, const Options& options, const std::function<void()>& forward,
                   const std::function<void()>& backward);

  /// Logs every operator from now on. Only after a study that succeeded.
  void start(const driver::Torch& torch, const Options& options);
  void stop(const driver::Torch& torch);
  /// Whether shapes of inputs are logged. Any thread.
  bool logs_inputs() const noexcept { return logs_inputs_.load(std::memory_order_relaxed); }

  /// While it lives, a range that begins or ends on this thread stands for a region that the program opens or closes:
  /// where numbers are logged, the region gets the number, and no row is added.
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
  /// Options as far as they are known how to be met, of which torch is asked for what lies in its objects.
  Options known(const Options& options) const noexcept;
  void set_reading(const driver::Torch& torch) noexcept;

  Layout layout_;
  std::array<CallCost, 8> call_costs_;  // by what torch is asked for
  uint64_t handle_ = 0;
  std::atomic<bool> logs_inputs_{false};
};

/// Logs what torch says of a range that has one input, a text: the region that comes next has it.
void log_text_input(base::EventLog& log) noexcept;

}  // namespace gpuscope::torch
