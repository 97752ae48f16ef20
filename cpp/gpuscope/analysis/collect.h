// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpuscope/analysis/call_paths.h"
#include "gpuscope/analysis/display_names.h"
#include "gpuscope/analysis/summary.h"

namespace gpuscope::analysis {

// Both fill paths (CPU side), work and totals (durations and bytes) of a summary whose paths are sized and named; what
// follows from the call tree is left to summarize.

/// From the rows of full and ring mode.
void collect_events(const store::Store& store, const CallPaths& paths, DisplayNames& names, Summary& summary);

/// From the rows of aggregate mode.
void collect_totals(const store::Store& store, const CallPaths& paths, DisplayNames& names, Summary& summary);

}  // namespace gpuscope::analysis
