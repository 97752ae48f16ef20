// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpuscope::base {

/// The system's number of the calling thread, asked for once a thread. Any thread, any moment.
uint32_t thread_id() noexcept;

/// For the child of a fork: its one thread has another number than the one it was copied from.
void forget_thread_id() noexcept;

}  // namespace gpuscope::base
