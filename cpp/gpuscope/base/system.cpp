// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/system.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <mutex>

#include "gpuscope/base/stacks.h"
#include "gpuscope/base/strings.h"

namespace gpuscope::base {
namespace {

#if defined(__x86_64__) || defined(__aarch64__)
[[gnu::tls_model("initial-exec")]]  // as in event_log.h
#endif
constinit thread_local uint32_t known_thread_id = 0;

void lock_dictionaries() {
  Names::process().lock();
  Stacks::process().lock();
}

void unlock_dictionaries() {
  Stacks::process().unlock();
  Names::process().unlock();
}

}  // namespace

uint32_t thread_id() noexcept {
  if (known_thread_id == 0) [[unlikely]] {
    known_thread_id = static_cast<uint32_t>(syscall(SYS_gettid));
  }
  return known_thread_id;
}

void survive_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(lock_dictionaries, unlock_dictionaries, [] {
      unlock_dictionaries();
      known_thread_id = 0;  // the child's one thread has a number of its own
    });
  });
}

std::string read_file(const char* path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb"), &std::fclose);
  std::string content;
  char piece[4096];
  while (file != nullptr) {
    const std::size_t got = std::fread(piece, 1, sizeof(piece), file.get());
    if (got == 0) {
      break;
    }
    content.append(piece, got);
  }
  return content;
}

}  // namespace gpuscope::base
