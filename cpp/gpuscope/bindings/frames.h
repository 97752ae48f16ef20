// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpuscope::bindings {

/// Whether Python frames can be read in this version of Python.
bool knows_stacks() noexcept;

/// Makes the Python frames of the calling thread the base::stack_source. Needs the GIL; false where they cannot be
/// read.
bool watch_stacks();

}  // namespace gpuscope::bindings
