// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/thread_id.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace gpuscope::base {
namespace {

#if defined(__x86_64__) || defined(__aarch64__)
[[gnu::tls_model("initial-exec")]]  // as in event_log.h
#endif
constinit thread_local uint32_t known = 0;

}  // namespace

uint32_t thread_id() noexcept {
  if (known == 0) [[unlikely]] {
    known = static_cast<uint32_t>(syscall(SYS_gettid));
  }
  return known;
}

void forget_thread_id() noexcept { known = 0; }

}  // namespace gpuscope::base
