// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gpuscope/driver/cupti.h"

namespace gpuscope::session {

/// Which clock CUPTI stamps its records with: ours, unless another client registered its own.
struct ClockMap {
  std::function<int64_t(uint64_t)> to_ns;  // empty: CUPTI's timestamps are ns of our clock
  std::string note;                        // "" for our clock

  static ClockMap detect(const driver::Cupti& cupti);
};

}  // namespace gpuscope::session
