// SPDX-License-Identifier: Apache-2.0
// Makes us the tool of the copies of NVTX in the test program, as a static injection (nvtxInit.h): the tests below are
// clients like any other.
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtPayload.h>
#define NVTX_EXT_TYPES_GUARD
#include <nvtx3/nvtxDetail/nvtxExtTypes.h>
#undef NVTX_EXT_TYPES_GUARD

#include <cstdlib>

#include "gpuscope/nvtx/ranges.h"

namespace {

const int no_other_tool = unsetenv("NVTX_INJECTION64_PATH");

int attach(NvtxGetExportTableFunc_t get_export_table) { return gpuscope::nvtx::attach(get_export_table) ? 1 : 0; }
int attach_extension(nvtxExtModuleInfo_t* module) { return gpuscope::nvtx::attach_extension(module) ? 1 : 0; }

}  // namespace

extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = &attach;
NvtxExtInitializeInjectionFunc_t InitializeInjectionNvtxExtension_fnptr = &attach_extension;
}
