// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace gpuscope::store {

/// The function of the CUDA runtime that makes a driver call, as "cudaLaunchKernel" for "cuLaunchKernel"; empty where
/// there is none that does nothing else.
std::string_view runtime_name(std::string_view driver_call) noexcept;

/// What results call a driver call: that function, as in torch.profiler; where there is none, the call itself.
std::string_view call_name(std::string_view driver_call) noexcept;

}  // namespace gpuscope::store
