// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gpuscope/analysis/kind.h"
#include "gpuscope/store/store.h"

namespace gpuscope::analysis {

/// The name of one row of the event table that `kind` is about; kernels are demangled.
std::string event_name(const store::Store& store, Kind kind, std::size_t row);

}  // namespace gpuscope::analysis
