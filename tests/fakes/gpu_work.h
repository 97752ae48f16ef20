// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fakes/cuda.h"
#include "gpuscope/timing/sampler.h"

namespace gpuscope::fakes {

/// The fake driver with kernels, memory and captures. It notes what it is asked to do; work runs when it is waited for.
/// One thread; reset between tests.
struct GpuWork {
  static GpuWork& instance() {
    static GpuWork state;
    return state;
  }
  static GpuWork& reset() {
    Cuda::reset();
    instance() = GpuWork();
    return instance();
  }

  std::vector<std::string> log;  // kernels' names; "record", "wait", "fill", "reset lines", "begin", "end", ...
  std::vector<driver::CuContext> contexts;
  int allocations = 0;  // of all kinds, modules too, that have not been given back
  std::map<int, int> attributes;
  uint64_t gate_ns = 100'000;  // how long a gate or meter stays
  uint64_t gate_cycles = 150'000;
  int wait_code = 0;
  int end_capture_code = 0;
  int instantiate_code = 0;
  std::size_t nodes = 3;

  std::size_t count(const std::string& entry) const { return static_cast<std::size_t>(std::ranges::count(log, entry)); }

  driver::Cuda table() {
    driver::Cuda table = Cuda::instance().table();
    table.init = [](unsigned) { return 0; };
    table.primary_context_retain = [](driver::CuContext* context, driver::CuDevice) {
      *context = Cuda::context(7);
      Cuda::instance().active_contexts = 1;
      return 0;
    };
    table.primary_context_release = [](driver::CuDevice) { return 0; };
    table.context_push = [](driver::CuContext context) {
      instance().contexts.push_back(Cuda::instance().current.exchange(context));
      return 0;
    };
    table.context_pop = [](driver::CuContext* context) {
      *context = Cuda::instance().current.exchange(instance().contexts.back());
      instance().contexts.pop_back();
      return 0;
    };
    table.context_synchronize = [] { return instance().wait(); };
    table.device_get_attribute = [](int* value, int attribute, driver::CuDevice) {
      const auto found = instance().attributes.find(attribute);
      *value = found == instance().attributes.end() ? 0 : found->second;
      return 0;
    };
    table.module_load_data = [](driver::CuModule* module, const void*) {
      *module = instance().handle<driver::CuModule>();
      return 0;
    };
    table.module_unload = [](driver::CuModule) { return instance().give_back(); };
    table.module_get_function = [](driver::CuFunction* function, driver::CuModule, const char* name) {
      instance().functions_.push_back(name);
      *function = reinterpret_cast<driver::CuFunction>(instance().functions_.size());
      return 0;
    };
    table.launch_kernel = [](driver::CuFunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, driver::CuStream, void** arguments,
                             void**) { return instance().launch(function, arguments); };
    table.mem_alloc = [](driver::CuPointer* address, size_t) {
      *address = reinterpret_cast<uintptr_t>(instance().handle<void*>());
      return 0;
    };
    table.mem_free = [](driver::CuPointer) { return instance().give_back(); };
    table.mem_host_alloc = [](void** memory, size_t bytes, unsigned) {
      *memory = std::malloc(bytes);
      ++instance().allocations;
      return 0;
    };
    table.mem_host_get_device_pointer = [](driver::CuPointer* address, void* memory, unsigned) {
      *address = reinterpret_cast<uintptr_t>(memory);
      return 0;
    };
    table.mem_free_host = [](void* memory) {
      std::free(memory);
      return instance().give_back();
    };
    table.fill = [](driver::CuPointer, unsigned char, size_t, driver::CuStream) { return instance().note("fill"); };
    table.reset_persisting_l2 = [] { return instance().note("reset lines"); };
    table.event_create = [](driver::CuEvent* event, unsigned) {
      Cuda& state = Cuda::instance();
      ++instance().allocations;
      *event = reinterpret_cast<driver::CuEvent>(static_cast<uintptr_t>(++state.created));
      state.events[*event] = {state.current.load(), false, 0};
      return 0;
    };
    table.event_destroy = [](driver::CuEvent) { return instance().give_back(); };
    static const auto record = table.event_record;
    table.event_record = [](driver::CuEvent event, driver::CuStream stream) {
      instance().note("record");
      return record(event, stream);
    };
    table.stream_begin_capture = [](driver::CuStream, int mode) {
      Cuda::instance().capturing = 1;
      return instance().note("begin " + std::to_string(mode));
    };
    table.stream_end_capture = [](driver::CuStream, driver::CuGraph* graph) {
      Cuda::instance().capturing = 0;
      instance().note("end");
      *graph = instance().end_capture_code == 0 ? instance().handle<driver::CuGraph>() : nullptr;
      return instance().end_capture_code;
    };
    table.graph_get_nodes = [](driver::CuGraph, CUgraphNode_st**, size_t* count) {
      *count = instance().nodes;
      return 0;
    };
    table.graph_instantiate = [](driver::CuGraphExec* exec, driver::CuGraph, unsigned long long) {
      if (instance().instantiate_code == 0) {
        *exec = instance().handle<driver::CuGraphExec>();
      }
      return instance().instantiate_code;
    };
    table.graph_launch = [](driver::CuGraphExec, driver::CuStream) { return instance().note("launch"); };
    table.graph_destroy = [](driver::CuGraph) { return instance().give_back(); };
    table.graph_exec_destroy = [](driver::CuGraphExec) { return instance().give_back(); };
    return table;
  }

  /// The GPU does all that is queued; a gate that is still closed lets go because its time is up.
  int wait() {
    if (gate_ != nullptr) {
      *gate_ = {gate_->open,     gate_->open != 0 ? timing::Gate::kOpened : timing::Gate::kTimedOut,
                1'000,           5'000,
                1'000 + gate_ns, 5'000 + gate_cycles};
      gate_ = nullptr;
    }
    note("wait");
    return wait_code;
  }
  bool gate_closed() const { return gate_ != nullptr && gate_->open == 0; }
  int note(const std::string& what) {
    log.push_back(what);
    return 0;
  }

 private:
  template <class Handle>
  Handle handle() {
    ++allocations;
    return reinterpret_cast<Handle>(++handles_);
  }
  int give_back() {
    --allocations;
    return 0;
  }
  int launch(driver::CuFunction function, void** arguments) {
    const std::string& name = functions_[reinterpret_cast<uintptr_t>(function) - 1];
    if (name == "gpuscope_gate" || name == "gpuscope_meter") {
      gate_ = reinterpret_cast<timing::Gate::Words*>(*static_cast<driver::CuPointer*>(arguments[0]));
    }
    return note(name);
  }

  std::vector<std::string> functions_;
  uintptr_t handles_ = 0;
  timing::Gate::Words* gate_ = nullptr;
};

/// A program of one C++ function, which gets the number of the call. It logs its calls in the fake GPU.
struct CalledProgram : timing::Program {
  explicit CalledProgram(std::function<void(uint32_t)> function = [](uint32_t) {}) : called(std::move(function)) {}

  void call(uint32_t number, uint32_t times) override {
    for (uint32_t call = 0; call < times; ++call) {
      GpuWork::instance().note("call " + std::to_string(number));
      called(number);
    }
  }
  void check() override {
    if (interrupted) {
      throw std::runtime_error("interrupted");
    }
  }
  void wait(const std::function<void()>& blocking) override {
    ++waits;
    blocking();
  }

  std::function<void(uint32_t)> called;
  bool interrupted = false;
  int waits = 0;
};

}  // namespace gpuscope::fakes
