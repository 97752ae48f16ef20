// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpuscope/store/store.h"

namespace gpuscope::store {

/// Adds all that `from` holds behind what `to` holds: events row by row, totals summed path by path, dictionaries
/// without doubles. Both are of one process, so that correlation ids and operators' numbers tell apart what they
/// should.
///
/// Facts: counters of the audit add up, notes stand once each, the window reaches from the first's start to the last's
/// end, and of other facts the later one holds. Throws std::bad_alloc, and then `to` is of no more use.
void append(Store& to, const Store& from);

}  // namespace gpuscope::store
