// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace gpuscope::store {

/// The CUDA runtime function that makes a driver call: "cudaLaunchKernel" for "cuLaunchKernel". Empty if no function
/// does only that.
std::string_view runtime_name(std::string_view driver_call) noexcept;

/// The name of a driver call in results: the runtime function, as in torch.profiler, or the call itself if there is
/// none.
std::string_view call_name(std::string_view driver_call) noexcept;

}  // namespace gpuscope::store
