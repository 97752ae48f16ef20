// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "gpuscope/exporters/output.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// The trace's head, up to the first of its events.
void put_head(Output& out, const store::Store& store, int64_t base_ns);

/// An event that names or orders a process or thread; `arguments` is JSON without its braces.
void put_metadata(Output& out, std::string_view what, uint64_t process, uint64_t thread, std::string_view arguments);

}  // namespace gpuscope::exporters
