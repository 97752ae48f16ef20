// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "gpuscope/store/store.h"

namespace gpuscope::fakes {

/// A Store built row by row, with the names and numbers that a test does not care about filled in.
class StoreBuilder {
 public:
  StoreBuilder() : store_(std::make_unique<store::Store>()) {
    store_->set_info("session.mode", "full");
    store_->set_info("process.id", "4242");
    store_->set_info("process.argv", "train.py");
    store_->device.append({0, id("NVIDIA H100"), id("GPU-0"), 132, 9, 0, uint64_t{80} << 30});
  }

  uint32_t id(std::string_view text) { return store_->strings.intern(text); }

  uint16_t thread(uint64_t system_id, std::string_view name = "") {
    return static_cast<uint16_t>(store_->thread.append({system_id, id(name), 0}));
  }
  uint16_t track(uint32_t stream, uint32_t context = 1, uint32_t device = 0) {
    return static_cast<uint16_t>(store_->track.append({device, context, stream}));
  }
  uint32_t path(std::string_view name, uint32_t parent = store::kNone) {
    const uint32_t depth = parent == store::kNone ? 0 : store_->path.depth[parent] + 1;
    return store_->path.append({parent, id(name), depth, 0, 0});
  }
  uint32_t variant(std::string_view name) {
    return store_->variant.append({id(name), 4, 2, 1, 128, 1, 1, 1, 1, 1, 1024, 512, 0, 32});
  }
  uint16_t call(std::string_view name, store::CallKind kind = store::CallKind::Launch) {
    return static_cast<uint16_t>(store_->call.append({id(name), static_cast<uint16_t>(kind), 0, 0}));
  }

  uint32_t region(uint32_t path, int64_t start_ns, int64_t end_ns, uint32_t parent = store::kNone,
                  uint16_t thread = 0) {
    return store_->region.append({start_ns, end_ns - start_ns, parent, path, thread, 0});
  }
  uint32_t api(uint16_t call, int64_t start_ns, int64_t end_ns, uint32_t correlation, uint32_t region = store::kNone,
               uint16_t thread = 0) {
    return store_->api.append({start_ns, end_ns - start_ns, correlation, region, call, thread});
  }
  uint32_t kernel(uint32_t variant, int64_t start_ns, int64_t end_ns, uint32_t correlation = 0,
                  uint32_t region = store::kNone, uint16_t track = 0, uint16_t flags = 0) {
    return store_->kernel.append({start_ns, end_ns - start_ns, correlation, variant, region, track, flags});
  }

  store::Store& store() { return *store_; }
  std::unique_ptr<store::Store> take() { return std::move(store_); }

 private:
  std::unique_ptr<store::Store> store_;
};

/// At least one row in every table, every id in range.
inline std::unique_ptr<store::Store> make_small_store() {
  using namespace store;
  constexpr int64_t kStart = 1'700'000'000'000'000'000;
  StoreBuilder make;
  make.thread(4242, "MainThread");
  make.track(7);
  make.track(7, 2);
  const uint32_t step = make.path("step");
  const uint32_t forward = make.path("forward", step);
  const uint32_t gemm = make.variant("_Z4gemmPKfS0_Pfi");
  const uint16_t launch = make.call("cuLaunchKernel");
  const uint16_t copy = make.call("cuMemcpyHtoDAsync", CallKind::Memcpy);
  const uint32_t outer = make.region(step, kStart, kStart + 9000);
  const uint32_t inner = make.region(forward, kStart + 1000, kStart + 8000, outer);
  make.api(copy, kStart + 1100, kStart + 1900, 11, inner);
  make.api(launch, kStart + 2000, kStart + 2500, 12, inner);
  make.kernel(gemm, kStart + 3001, kStart + 5003, 12, inner);
  Store& store = make.store();
  store.memcpy.append({kStart + 1500, 1000, 4096, 11, inner, 0, 0, 1, 2, 3, 255});
  store.memset.append({kStart + 5500, 100, 256, 0, 13, inner, 1, kNoLaunch});
  store.sync.append({kStart + 6000, 500, 14, inner, 0, static_cast<uint16_t>(SyncKind::Stream)});
  store.overhead.append({kStart + 2100, 300, static_cast<uint32_t>(OverheadKind::LazyFunctionLoading), 7});
  store.mark.append({kStart + 7000, make.id("epoch"), inner, 0, 0});
  store.graph_node.append({0, 5, 77, forward, static_cast<uint16_t>(Work::Kernel), 0});
  store.graph_launch.append({kStart + 7000, 900, 15, 5, outer, 0, 0});
  store.region_gpu.append({inner, forward, 2002});
  store.resumption.append({0, inner, inner});
  store.region_total.append({forward, 0, 1, 7000, 500, 7000, 7000, 0});
  store.work_total.append({forward, make.id("_Z4gemmPKfS0_Pfi"), 1, 1, 1, 0, 2002, 2002, 2002});
  store.stack.append({kNone, make.id("main"), make.id("train.py"), 7, 21});
  store.detail.append({3, inner, make.id("['float']"), make.id("[[2, 3]]"), make.id("[[2, 3]]"), make.id("[[3, 1]]"),
                       make.id("['']"), make.id("Tensor"), kNone, 17, 0, 0});
  store.payload.append({4096, inner, make.id("bytes"), static_cast<uint16_t>(PayloadType::Unsigned)});
  store.collective.append({kStart + 1900, 0xABC, 41, 4096, 0, inner, static_cast<uint16_t>(CollectiveKind::AllReduce)});
  store.communicator.append({kStart + 10, 0xABC, 42, 0, 8, 3});
  store.anchor.append({kStart + 5, kStart + 7, 5000});
  store.loss.append({kStart + 6, 10, 3, store.strings.intern("No space left on device")});
  store.allocation.append({kStart + 2000, 512, 0x1000, 512, 2048, inner, kNone, 0, 0});
  store.failed_allocation.append({kStart + 2200, 1 << 30, 512, 2048, inner, 0, 0});
  store.device_memory.append({kStart + 2100, 2 << 20, 0x7000, 0x9000, 32 << 20, 2 << 20, 16, inner,
                              make.id("/lib/libtorch_cuda.so"), 0, 0, static_cast<uint8_t>(MemoryKind::Device)});
  store.memory_pool.append(
      {kStart + 2050, 0x9000, 0, 0, 4096, 17, inner, 0, 0, static_cast<uint8_t>(PoolOperation::Created)});
  store.call_stack.append({1, 0});
  store.python_function.append({kStart, 9000, make.id("train.py(3): <module>"), kNone, kNone, 0, 0, 0});
  store.python_sample.append({kStart + 100, 2000, 1500, 0, 2, 0});
  store.counter.append({make.id("dram__bytes_read.sum"), make.id("byte"), make.id("# of bytes read from DRAM")});
  store.counter_value.append({store.counter_sample.append({kStart + 100, 100'000, 0}), 0, 1.5e6F});
  store.device_sample.append(
      {kStart + 150, 1 << 20, 4, 0, 312'500, 700'000, kNotRead, 1980, kNotRead, 2619, 41, 99, 25});
  store.device_counter.append({kStart + 160, 5'000'000, kStart - 90'000, 4000, 7, kNotRead, 0, 0, 0, 0});
  store.thread_wait.append({kStart + 200, 4000, 1000, 2500, 0});
  store.process_usage.append({kStart + 100, 5000, 3000, -1, 4096, 4243});
  store.control_group_usage.append({kStart + 100, 5000, 2000, 1, -1});
  store.histogram.append({0, 100, 1});
  store.histogram.append({1, 90, 1});
  return make.take();
}

/// A training-like run: `kernels` launches on one thread and one stream, a region around every five.
inline std::unique_ptr<store::Store> make_large_store(uint32_t kernels) {
  constexpr int64_t kStart = 1'700'000'000'000'000'000;
  constexpr uint32_t kVariants = 40;
  StoreBuilder make;
  make.thread(4242, "MainThread");
  make.track(7);
  const uint32_t step = make.path("step");
  const uint32_t layers[] = {make.path("forward", step), make.path("backward", step), make.path("optimizer", step)};
  for (uint32_t at = 0; at < kVariants; ++at) {
    make.variant("_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi" + std::to_string(at));
  }
  const uint16_t launch = make.call("cuLaunchKernel");
  int64_t cpu_ns = kStart;
  int64_t gpu_ns = kStart + 10'000;
  uint32_t noise = 1;
  uint32_t region = 0;
  for (uint32_t at = 0; at < kernels; ++at) {
    noise = noise * 1664525 + 1013904223;
    const int64_t call_ns = 2000 + (noise >> 22);
    const int64_t kernel_ns = 1500 + (noise >> 18) % 8000;
    if (at % 5 == 0) {
      region = make.region(layers[at / 5 % 3], cpu_ns + 100, cpu_ns + 5 * 4000);
    }
    make.api(launch, cpu_ns + 300, cpu_ns + 300 + call_ns, at + 1, region);
    gpu_ns = std::max(gpu_ns, cpu_ns + call_ns) + 800 + (noise >> 24);
    make.kernel((noise >> 16) % kVariants, gpu_ns, gpu_ns + kernel_ns, at + 1, region);
    gpu_ns += kernel_ns;
    cpu_ns += 4010;
  }
  return make.take();
}

}  // namespace gpuscope::fakes
