// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <pybind11/pybind11.h>

#include "gpuscope/base/hooks.h"

namespace gpuscope::bindings {

/// Whether Python frames can be read in this version of Python.
bool knows_stacks() noexcept;

/// Makes the Python frames of the calling thread the base::stack_source. Needs the GIL; false where they cannot be
/// read.
bool watch_stacks();

/// What Python keeps of the calling thread; null where it never ran Python, and while Python ends. Without the GIL.
const PyThreadState* this_thread() noexcept;

/// Whether a thread is somewhere in a Python program; always true where frames cannot be read.
bool runs_python(const PyThreadState* thread) noexcept;

}  // namespace gpuscope::bindings
