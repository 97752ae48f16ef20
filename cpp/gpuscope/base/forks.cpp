// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/forks.h"

#include <pthread.h>

#include <mutex>

#include "gpuscope/base/names.h"
#include "gpuscope/base/stacks.h"
#include "gpuscope/base/thread_id.h"

namespace gpuscope::base {
namespace {

void hold() {
  Names::process().hold();
  Stacks::process().hold();
}
void let_go() {
  Stacks::process().let_go();
  Names::process().let_go();
}
void let_go_in_child() {
  let_go();
  forget_thread_id();
}

}  // namespace

void survive_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(hold, let_go, let_go_in_child); });
}

}  // namespace gpuscope::base
