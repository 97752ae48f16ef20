// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "gpuscope/session/session.h"

namespace gpuscope::bindings {

/// The process's vendor libraries, opened at the first call; under the GIL.
session::Vendor& vendor();

/// libcupti files that Python wheels brought, those of CUDA 13 first.
std::vector<std::string> cupti_wheels();

}  // namespace gpuscope::bindings
