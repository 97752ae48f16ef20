// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "gpuscope/exporters/output.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// Writes a recording like torch.profiler: JSON for Perfetto, chrome://tracing and Holistic Trace Analysis.
///
/// Regions are annotations, operators or modules, by kind. "External id" joins kernels, launches and operators. Driver
/// calls have the name of the calling runtime function ("cudaLaunchKernel" for "cuLaunchKernel"), which readers expect,
/// and their own name in "driver call". Their times are the driver call's, slightly shorter than the runtime call's. If
/// the program itself calls the driver, like Triton, torch.profiler writes the driver's name. This function cannot
/// detect that.
///
/// Throws InvalidArgument for a recording with totals but without events. Exceptions of `write` pass through.
void write_chrome(const store::Store& store, Write write);

/// Writes a recording as Perfetto's trace packets. A chunk passed to `write` never splits a packet.
///
/// Throws InvalidArgument for a recording with totals but without events. Exceptions of `write` pass through.
void write_perfetto(const store::Store& store, Write write);

}  // namespace gpuscope::exporters
