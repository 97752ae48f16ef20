// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace gpuscope::device {

/// FP32 FMAs that one thread of gpuscope_fma makes a round.
constexpr unsigned kFmasPerRound = 128;

/// The text of the built-in kernels. PTX 6.0 for compute capability 5.0: every driver that CUPTI 12 accepts compiles
/// it.
std::string kernels_ptx();

}  // namespace gpuscope::device
