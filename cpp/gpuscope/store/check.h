// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "gpuscope/store/store.h"

namespace gpuscope::store {

/// The first thing in a store that would lead a reader astray, as a clause; empty when there is none.
///
/// Checked: every id and row number lies in its table, paths and regions have no cycles, times can be added.
std::string find_bad_reference(const Store& store);

}  // namespace gpuscope::store
