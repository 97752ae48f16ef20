// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace gpuscope::device {

/// The functions that are measured, whatever language they are written in. One thread.
class Program {
 public:
  virtual ~Program() = default;

  /// Calls a function by its number. What it throws goes through to whoever asked for the measurement.
  virtual void call(uint32_t function) = 0;
  /// Between two calls, outside of what is timed; may throw to end the measurement.
  virtual void check() {}
  /// Runs something that blocks, with whatever the program's threads share let go. `blocking` does not throw.
  virtual void wait(const std::function<void()>& blocking) { blocking(); }
};

}  // namespace gpuscope::device
