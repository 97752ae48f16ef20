// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>

#include "gpuscope/driver/library.h"

namespace gpuscope::driver {

// X(symbol in libnvidia-ml, member, return type and arguments). NVML's return codes are ints, 0 for success.
#define GPUSCOPE_NVML_FUNCTIONS(X)                                                        \
  X("nvmlInit_v2", init, int())                                                           \
  X("nvmlShutdown", shutdown, int())                                                      \
  X("nvmlSystemGetDriverVersion", system_get_driver_version, int(char*, unsigned length)) \
  X("nvmlErrorString", error_string, const char*(int))

/// libnvidia-ml as a value: one pointer a function, nullptr where the driver lacks it.
struct Nvml {
#define GPUSCOPE_MEMBER(symbol, member, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
  GPUSCOPE_NVML_FUNCTIONS(GPUSCOPE_MEMBER)
#undef GPUSCOPE_MEMBER
  Library library;

  static Nvml open();
};

}  // namespace gpuscope::driver
