// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/driver/library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>

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

}  // namespace gpuscope::driver
