// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpuscope::nvtx {

// Each library that uses NVTX carries a copy of it of its own. At the copy's first call it loads the tool that
// NVTX_INJECTION64_PATH names, and the tool's two entry points end here: they put our functions into its tables.

/// How a copy of NVTX hands out its tables (NvtxGetExportTableFunc_t).
using GetExportTable = const void* (*)(uint32_t table);

/// Becomes the tool of one copy of NVTX; false when it is none that is known.
bool attach(GetExportTable get_export_table) noexcept;

/// Becomes the tool of one of its extensions (nvtxExtModuleInfo_t). Extensions that are not known are left alone.
bool attach_extension(const void* module) noexcept;

/// The files of the libraries that we are the tool of, in order.
std::vector<std::string> attached_libraries();

}  // namespace gpuscope::nvtx
