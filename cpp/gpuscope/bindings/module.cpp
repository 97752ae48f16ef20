// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/bindings/bind.h"

PYBIND11_MODULE(_core, module) {
  using namespace gpuscope::bindings;
  module.doc() = "The C++ core of gpuscope; use the names that the package itself exports.";
  module.attr("__version__") = GPUSCOPE_VERSION;
  bind_errors(module);
  bind_store(module);
  bind_analysis(module);
  bind_exporters(module);
  bind_regions(module);
  bind_device(module);
  bind_sampling(module);
  bind_timing(module);
  bind_session(module);
  bind_torch(module);
  bind_memory_history(module);
  bind_environment(module);
  bind_nvtx(module);
  bind_memory_info(module);
  bind_memory_watch(module);
}
