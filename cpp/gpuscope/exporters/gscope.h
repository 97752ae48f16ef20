// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// Writes a store as a .gscope file, in one step: an interrupted save leaves what had the name before.
void write_gscope(const store::Store& store, const std::string& path);

}  // namespace gpuscope::exporters
