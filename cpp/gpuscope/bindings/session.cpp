// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/bindings/bind.h"

namespace gpuscope::bindings {

void bind_session(pybind11::module_&) {}

}  // namespace gpuscope::bindings
