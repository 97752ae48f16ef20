// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpuscope/driver/torch.h"
#include "gpuscope/torch/layout.h"

namespace gpuscope::torch {

/// torch's operators, of every thread, by torch's own callbacks around them. They cost a fraction of its text ranges
/// (OperatorRanges), have shapes and types of all arguments, and work beside any profiler of torch's.
///
/// study, start, stop: one thread at a time. The callbacks come on any thread.
class OperatorCallbacks {
 public:
  struct Options {
    bool shapes = false;  // and types
    bool results = false;
  };

  static OperatorCallbacks& process();

  struct Work {
    std::vector<KnownTensor> tensors;
    std::vector<KnownCall> calls;
  };
  /// Infers torch's layout from the operators that `work` calls on this thread and returns, and from a range that it
  /// names `user_name`. Returns why it could not be inferred.
  std::string study(const driver::Torch& torch, const std::string& user_name, const std::function<Work()>& work);
  const Layout& layout() const noexcept { return layout_; }

  /// Logs every operator from now on. Only after a study that succeeded.
  void start(const driver::Torch& torch, const Options& options);
  void stop(const driver::Torch& torch);

 private:
  Layout layout_;
  uint64_t handle_ = 0;
};

}  // namespace gpuscope::torch
