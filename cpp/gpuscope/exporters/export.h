// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "gpuscope/exporters/output.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// Writes a recording as torch.profiler would: JSON for Perfetto, chrome://tracing and Holistic Trace Analysis.
///
/// Regions are annotations, operators or modules by their kind; kernels, launches and operators are joined by their
/// "External id". A driver call stands under the name of the runtime's function that makes it ("cudaLaunchKernel" for
/// "cuLaunchKernel"), since that is what readers of such files look for, and says so in "driver call". Its times are
/// the driver call's own, which begins later and ends earlier than the runtime's around it. What this cannot know is
/// whether the program called the driver itself, as Triton does; torch.profiler then writes the driver's name.
///
/// Throws InvalidArgument for a recording that has totals and no events; what `write` throws passes through.
void write_chrome(const store::Store& store, Write write);

/// Writes a recording as Perfetto's own trace packets; a chunk handed to `write` never splits a packet.
///
/// Throws InvalidArgument for a recording that has totals and no events; what `write` throws passes through.
void write_perfetto(const store::Store& store, Write write);

}  // namespace gpuscope::exporters
