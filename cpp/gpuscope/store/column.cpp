// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/store/column.h"

#include <sys/mman.h>

#include <cstdint>

namespace gpuscope::store {
namespace {

#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // Linux 5.14; older systems refuse it, which does no harm
#endif
constexpr uintptr_t kPage = 4096;

}  // namespace

void populate(void* first, void* last) noexcept {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(first) & ~(kPage - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(last) & ~(kPage - 1);
  if (end > begin) {
    madvise(reinterpret_cast<void*>(begin), end - begin, kPopulateWrite);
  }
}

}  // namespace gpuscope::store
