// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "gpuscope/store/store.h"

namespace gpuscope::readers {

/// Reads a .gscope file; the result is safe for every reader of stores.
///
/// A file that lost its tail opens up to its last whole block and says so in info `file.truncated_at` (a byte offset).
/// Throws CorruptTrace for anything else that is wrong with the content, Error when the system cannot read it.
std::unique_ptr<store::Store> read_gscope(const std::string& path);

}  // namespace gpuscope::readers
