// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuscope::base {

/// CRC-32C (Castagnoli, as in iSCSI, RFC 3720) of `data` going on from `crc`; begin with 0. Any thread.
uint32_t crc32c(const void* data, std::size_t bytes, uint32_t crc = 0) noexcept;

/// The same without the processor's help.
uint32_t crc32c_portable(const void* data, std::size_t bytes, uint32_t crc = 0) noexcept;

}  // namespace gpuscope::base
