// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/allocation_watch.h"

#include "gpuscope/base/hooks.h"
#include "gpuscope/session/session.h"

namespace gpuscope::session {
namespace {

constexpr const char* kForked =
    "this process was forked from one that watched allocations, and CUPTI does not survive a fork";

/// False if each function is loaded on first use: the default since CUDA 12.2.
bool loads_whole_modules(const driver::Cuda& cuda) {
  constexpr int kLazy = 2;  // CU_MODULE_LAZY_LOADING
  int mode = 0;
  return cuda.module_loading_mode == nullptr || cuda.module_loading_mode(&mode) != 0 || mode != kLazy;
}

}  // namespace

bool AllocationWatch::in_forked_child() const noexcept { return vendor_.collector.in_forked_child(); }

std::string AllocationWatch::watch(bool stacks) {
  if (in_forked_child()) {
    return kForked;
  }
  const std::lock_guard lock(mutex_);
  std::string why = paused_ ? why_ : begin(stacks);
  if (why.empty()) {
    ++users_;
  }
  return why;
}

std::string AllocationWatch::begin(bool stacks) {
  if (!vendor_.cuda.library) {
    return why_ = "no NVIDIA driver was found (" + vendor_.cuda.library.why() + ")";
  }
  memory::Ledger& ledger = memory::Ledger::process();
  if (users_ == 0) {
    Session::watch_forks();
    ledger.begin(stacks);
    from_start_ = !has_context(vendor_.cuda);
    gaps_ = 0;
    loaded_before_ = vendor_.collector.loaded();
  } else if (stacks) {
    ledger.want_stacks();
  }
  base::allocation_sink.store(&memory::Ledger::on_allocation, std::memory_order_release);
  why_ = vendor_.collector.watch_allocations();
  if (!why_.empty()) {
    base::allocation_sink.store(nullptr, std::memory_order_relaxed);
    if (users_ == 0) {
      ledger.forget();
    }
  }
  return why_;
}

void AllocationWatch::unwatch() noexcept {
  if (in_forked_child()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (users_ == 0) {
    return;
  }
  --users_;
  if (users_ > 0) {
    return;
  }
  vendor_.collector.unwatch_allocations();
  base::allocation_sink.store(nullptr, std::memory_order_relaxed);
  memory::Ledger::process().forget();
  if (!paused_) {
    why_.clear();
  }
}

void AllocationWatch::pause(const std::string& why) {
  if (in_forked_child()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (paused_ || users_ == 0) {
    return;
  }
  paused_ = true;
  why_ = why;
  if (vendor_.collector.watches_allocations()) {
    vendor_.collector.unwatch_allocations();
    ++gaps_;
  }
}

std::string AllocationWatch::resume() {
  if (in_forked_child()) {
    return kForked;
  }
  const std::lock_guard lock(mutex_);
  if (!paused_) {
    return {};
  }
  paused_ = false;
  why_.clear();
  return users_ > 0 ? begin(false) : std::string();
}

AllocationWatch::State AllocationWatch::state() {
  State state;
  if (in_forked_child()) {
    state.why = kForked;
    return state;
  }
  const std::lock_guard lock(mutex_);
  const activity::Collector& collector = vendor_.collector;
  state.watching = users_ > 0 && collector.watches_allocations() && !collector.broken();
  state.why = !why_.empty() || state.watching || users_ == 0 ? why_ : "CUPTI ended after an error in it or the program";
  state.from_start = from_start_;
  state.gaps = gaps_;
  state.counts = memory::Ledger::process().counts();
  state.failures = memory::Ledger::process().failures();
  const activity::Collector::Loaded now = collector.loaded();
  state.loaded = {now.contexts - loaded_before_.contexts, now.modules - loaded_before_.modules,
                  now.code_bytes - loaded_before_.code_bytes, now.services};
  state.loads_whole_modules = loads_whole_modules(vendor_.cuda);
  return state;
}

std::vector<memory::Allocation> AllocationWatch::live() {
  if (in_forked_child()) {
    return {};
  }
  const std::lock_guard lock(mutex_);
  return users_ > 0 ? memory::Ledger::process().live() : std::vector<memory::Allocation>();
}

}  // namespace gpuscope::session
