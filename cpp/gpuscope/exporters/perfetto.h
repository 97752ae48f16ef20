// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpuscope/exporters/output.h"
#include "gpuscope/store/store.h"

namespace gpuscope::exporters {

/// Writes a recording as Perfetto's own trace packets; a chunk handed to `write` never splits a packet.
///
/// Throws InvalidArgument for a recording that has totals and no events; what `write` throws passes through.
void write_perfetto(const store::Store& store, Write write);

}  // namespace gpuscope::exporters
