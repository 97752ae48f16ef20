// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/driver/libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

namespace gpuscope::driver {

Library Library::open(const std::vector<std::string>& sonames, const std::vector<std::string>& paths) {
  Library library;
  for (const std::string& soname : sonames) {
    library.handle_ = dlopen(soname.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (library.handle_ != nullptr) {
      break;
    }
  }
  for (auto path = paths.begin(); library.handle_ == nullptr && path != paths.end(); ++path) {
    library.handle_ = dlopen(path->c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle_ == nullptr) {
      const char* message = dlerror();
      library.why_ = message != nullptr ? message : "dlopen failed";
    }
  }
  link_map* map = nullptr;
  if (library.handle_ != nullptr && dlinfo(library.handle_, RTLD_DI_LINKMAP, &map) == 0) {
    library.path_ = map->l_name;
  }
  return library;
}

void* Library::symbol(const char* name) const noexcept { return handle_ != nullptr ? dlsym(handle_, name) : nullptr; }

std::vector<std::string> mapped_files(const std::string& prefix) {
  struct Search {
    const std::string& prefix;
    std::vector<std::string> found;
  } search{prefix, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* into = static_cast<Search*>(data);
        const std::string path = info->dlpi_name;
        const std::size_t slash = path.rfind('/');
        if (path.compare(slash == std::string::npos ? 0 : slash + 1, into->prefix.size(), into->prefix) == 0) {
          into->found.push_back(path);
        }
        return 0;
      },
      &search);
  std::sort(search.found.begin(), search.found.end());
  search.found.erase(std::unique(search.found.begin(), search.found.end()), search.found.end());
  return search.found;
}

std::string uuid_text(const CuUuid& uuid) {
  std::string text = "GPU";
  for (int index = 0; index < 16; ++index) {
    std::array<char, 3> pair{};
    std::snprintf(pair.data(), pair.size(), "%02x", uuid.bytes[index]);
    text.append(index == 0 || index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "").append(pair.data());
  }
  return text;
}

Cuda Cuda::open() {
  Cuda table;
  table.library = Library::open({"libcuda.so.1"}, {"libcuda.so.1", "libcuda.so"});
  GPUSCOPE_CUDA_FUNCTIONS(GPUSCOPE_LOAD_FUNCTION)
  return table;
}

std::string Cuda::error_name(CuResult code) const {
  const char* name = nullptr;
  if (get_error_name != nullptr && get_error_name(code, &name) == 0 && name != nullptr) {
    return name;
  }
  return "CUresult";
}

namespace {

// CUDA 12.0 introduced the kernel record fields read here (CUpti_ActivityKernel9).
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
  // Two copies of libcupti in one process would conflict over the driver.
  table.library = Library::open({"libcupti.so.13", "libcupti.so.12"}, search_paths(wheel_paths));
  GPUSCOPE_CUPTI_FUNCTIONS(GPUSCOPE_LOAD_FUNCTION)
  GPUSCOPE_CUPTI_PROFILER_FUNCTIONS(GPUSCOPE_LOAD_FUNCTION)
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
