// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/driver/nvml.h"

namespace gpuscope::driver {

Nvml Nvml::open() {
  Nvml table;
  table.library = Library::open({"libnvidia-ml.so.1"}, {"libnvidia-ml.so.1", "libnvidia-ml.so"});
#define GPUSCOPE_RESOLVE(name, member, ...) \
  table.member = reinterpret_cast<decltype(table.member)>(table.library.symbol(name));
  GPUSCOPE_NVML_FUNCTIONS(GPUSCOPE_RESOLVE)
#undef GPUSCOPE_RESOLVE
  return table;
}

}  // namespace gpuscope::driver
