// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpuscope/driver/cuda.h"

namespace gpuscope::timing {

/// CUDA's names for the default streams: 0, the legacy one (1), the calling thread's (2).
constexpr bool is_default_stream(uint64_t stream) noexcept { return stream <= 2; }

/// The device of a stream; of a default stream that of the current context. 0 without a driver or a context.
int stream_device(const driver::Cuda& cuda, uint64_t stream);

/// Whether what is put on a stream of the current context goes into a CUDA graph.
bool is_capturing(const driver::Cuda& cuda, driver::CuStream stream);

/// Waits for everything on a device's primary context, which CUDA's runtime and all frameworks use; seconds waited.
/// A context that nobody has made yet stays unmade, and there is nothing to wait for.
double synchronize(const driver::Cuda& cuda, int device);
/// Waits for one stream; seconds waited.
double synchronize_stream(const driver::Cuda& cuda, uint64_t stream, int device);

}  // namespace gpuscope::timing
