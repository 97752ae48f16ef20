// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "fakes/gpu_work.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/timing/device_clock.h"

namespace gpuscope::fakes {

/// A GPU with a clock of its own, whose kernels answer what it shows. Each runs on a thread; wait for them.
struct ClockKernels {
  using Words = timing::DeviceClock::Words;
  static constexpr int64_t kAheadNs = 5'000'000'000;  // of the process's clock

  static ClockKernels& instance() {
    static ClockKernels state;
    return state;
  }
  static uint64_t now_ns() { return static_cast<uint64_t>(base::Clock::process().now_ns() + kAheadNs); }

  std::atomic<bool> busy{false};   // kernels do not begin
  std::atomic<int> registered{0};  // pages of words

  std::size_t launched() {
    const std::lock_guard lock(mutex_);
    return kernels_.size();
  }
  void wait() {
    busy = false;
    std::vector<std::thread> kernels;
    {
      const std::lock_guard lock(mutex_);
      kernels.swap(kernels_);
    }
    for (std::thread& kernel : kernels) {
      kernel.join();
    }
  }

  driver::Cuda table() {
    driver::Cuda table = GpuWork::instance().table();
    registered = 0;
    table.mem_host_register = [](void*, size_t, unsigned) {
      ++instance().registered;
      return 0;
    };
    table.mem_host_unregister = [](void*) {
      --instance().registered;
      return 0;
    };
    table.stream_create = [](driver::CuStream* stream, unsigned flags) {
      *stream = nullptr;
      return flags == timing::kNonBlocking ? 0 : 1;
    };
    table.stream_destroy = [](driver::CuStream) { return 0; };
    table.launch_kernel = [](driver::CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             driver::CuStream, void** arguments, void**) {
      instance().launch(arguments);
      return 0;
    };
    return table;
  }
  void launch(void** arguments) {
    auto* words = reinterpret_cast<Words*>(*static_cast<driver::CuPointer*>(arguments[0]));
    const uint32_t questions = *static_cast<uint32_t*>(arguments[1]);
    const std::lock_guard lock(mutex_);
    kernels_.emplace_back([this, words, questions] {
      while (busy) {
        std::this_thread::yield();
      }
      for (uint32_t number = 1; number <= questions; ++number) {
        while (std::atomic_ref(words->asked).load() < number) {
          std::this_thread::yield();
        }
        std::atomic_ref(words->device_ns).store(now_ns());
      }
      std::atomic_ref(words->ended).store(1);
    });
  }

 private:
  std::mutex mutex_;
  std::vector<std::thread> kernels_;
};

}  // namespace gpuscope::fakes
