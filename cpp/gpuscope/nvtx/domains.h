// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpuscope::nvtx {

/// The number of a domain; domains of one name are one domain.
using Domain = uint32_t;
inline constexpr Domain kDefaultDomain = 0;

/// The domain of that base::Names id. Past the most that are told apart, the default one.
Domain domain_of(uint32_t name) noexcept;
/// Its name as a base::Names id, 0 for the default domain and for numbers that are none.
uint32_t domain_name(Domain domain) noexcept;

/// What a category of a domain is called, as a base::Names id.
void name_category(Domain domain, uint32_t category, uint32_t name) noexcept;
/// 0 for a category that was not named.
uint32_t category_name(Domain domain, uint32_t category) noexcept;

/// What a thread of the system is called, as a base::Names id.
void name_thread(uint32_t system_id, uint32_t name) noexcept;
/// 0 for a thread that was not named.
uint32_t thread_name(uint64_t system_id) noexcept;

}  // namespace gpuscope::nvtx
