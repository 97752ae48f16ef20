// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "gpuscope/exporters/output.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// Writes a recording as torch.profiler would: JSON for Perfetto, chrome://tracing and Holistic Trace Analysis.
///
/// Throws InvalidArgument for a recording that has totals and no events; what `write` throws passes through.
void write_chrome(const store::Store& store, Write write);

}  // namespace gpuscope::exporters
