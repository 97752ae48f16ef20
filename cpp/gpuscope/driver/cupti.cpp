// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/driver/cupti.h"

#include <cstdlib>

namespace gpuscope::driver {
namespace {

// Kernel records gained the fields read here with CUDA 12.0 (CUpti_ActivityKernel9).
constexpr uint32_t kOldest = 19;

std::vector<std::string> search_paths(const std::vector<std::string>& wheel_paths) {
  std::vector<std::string> paths = wheel_paths;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* home = std::getenv(variable); home != nullptr && *home != '\0') {
      for (const char* folder : {"/extras/CUPTI/lib64/", "/lib64/"}) {
        paths.push_back(std::string(home) + folder + "libcupti.so");
      }
    }
  }
  for (const char* name : {"libcupti.so.13", "libcupti.so.12", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so",
                           "/usr/local/cuda/lib64/libcupti.so"}) {
    paths.emplace_back(name);
  }
  return paths;
}

}  // namespace

Cupti Cupti::open(const std::vector<std::string>& wheel_paths) {
  Cupti table;
  // A second copy of libcupti in one process would fight the first for the driver.
  table.library = Library::open({"libcupti.so.13", "libcupti.so.12"}, search_paths(wheel_paths));
#define GPUSCOPE_RESOLVE(name, member, ...) table.library.load(name, table.member);
  GPUSCOPE_CUPTI_FUNCTIONS(GPUSCOPE_RESOLVE)
#undef GPUSCOPE_RESOLVE
  if (table.get_version != nullptr) {
    table.get_version(&table.version);
  }
  return table;
}

std::string Cupti::error_name(CuptiResult code) const {
  const char* name = nullptr;
  if (get_result_string != nullptr && get_result_string(code, &name) == kCuptiSuccess && name != nullptr) {
    return name;
  }
  return "CUptiResult";
}

std::string cupti_shortcoming(const Cupti& table) {
  if (table.get_version == nullptr) {
    return "libcupti was not found" + (table.library.why().empty() ? "" : " (" + table.library.why() + ")");
  }
  if (table.version == 0) {
    return "libcupti at " + table.library.path() + " did not tell its version, as happens without a driver";
  }
  if (table.version < kOldest) {
    return "libcupti at " + table.library.path() + " is version " + std::to_string(table.version) +
           ", older than CUDA 12.0's (19)";
  }
  if (table.subscribe == nullptr || table.unsubscribe == nullptr || table.enable_callback == nullptr ||
      table.register_callbacks == nullptr || table.activity_enable == nullptr || table.activity_disable == nullptr ||
      table.flush_all == nullptr || table.get_next_record == nullptr) {
    return "libcupti at " + table.library.path() + " lacks a function that tracing needs";
  }
  return "";
}

}  // namespace gpuscope::driver
