// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "gpuscope/attribution/recording.h"

namespace gpuscope::attribution {

/// Memory of the event rows, in bytes.
std::size_t event_bytes(const store::Store& store);

/// Keeps a recording within its memory: full mode refuses further rows at the cap, ring mode lets the oldest go. True
/// when rows were let go, so that open regions need new ones.
bool keep_in_bounds(Recording& recording);

/// Turns row ids that count from the window's start into row numbers of the tables as they are. Once, at the end.
void settle_references(Recording& recording);

}  // namespace gpuscope::attribution
