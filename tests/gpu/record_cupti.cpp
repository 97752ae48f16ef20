// SPDX-License-Identifier: Apache-2.0
// Writes tests/golden/*.cupti: runs a small program with kernels, copies, fills, a graph, two threads and two streams,
// and saves what CUPTI and the threads' logs delivered.
//   gpuscope_record OUT.cupti [libcupti.so]
#include <cstdio>
#include <map>
#include <thread>

#include "fakes/recorded.h"
#include "gpuscope/activity/collector.h"
#include "gpuscope/activity/layout.h"
#include "gpuscope/base/clock.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/strings.h"
#include "gpuscope/timing/kernels.h"

namespace {

using namespace gpuscope;

class Region {
 public:
  explicit Region(const char* name) : id_(base::Names::process().intern(name)) {
    base::EventLogs::current()->append(base::ticks(), id_, base::Op::Enter);
  }
  ~Region() { base::EventLogs::current()->append(base::ticks(), id_, base::Op::Exit); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  uint32_t id_;
};

void run(const driver::Cuda& cuda) {
  timing::Kernels kernels(cuda);
  timing::PrimaryContext context(cuda, 0);
  const timing::PrimaryContext::Current current(context);
  driver::CuStream streams[2] = {};
  for (auto& stream : streams) {
    GPUSCOPE_CUDA(cuda, stream_create, &stream, 1);
  }
  const auto handle = [](driver::CuStream stream) { return reinterpret_cast<uint64_t>(stream); };
  kernels.saxpy(1 << 20, 0);  // outside every region
  {
    const Region outer("outer");
    kernels.copy_in(1 << 20, handle(streams[0]));
    for (int step = 0; step < 5; ++step) {
      const Region inner("inner");
      kernels.saxpy(1 << 16, handle(streams[0]));
      kernels.spin(20'000, handle(streams[1]));
    }
    kernels.fill(1 << 20, handle(streams[1]));
    kernels.copy_out(1 << 16, handle(streams[0]));
  }
  driver::CuGraph graph = nullptr;
  driver::CuGraphExec executable = nullptr;
  GPUSCOPE_CUDA(cuda, stream_begin_capture, streams[0], 2);
  {
    const Region first("captured first");
    kernels.saxpy(1 << 12, handle(streams[0]));
    kernels.reduce(1 << 12, handle(streams[0]));
  }
  {
    const Region second("captured second");
    kernels.spin(1'000, handle(streams[0]));
    kernels.fill(1 << 12, handle(streams[0]));
  }
  GPUSCOPE_CUDA(cuda, stream_end_capture, streams[0], &graph);
  GPUSCOPE_CUDA(cuda, graph_instantiate, &executable, graph, 0);
  for (int replay = 0; replay < 3; ++replay) {
    const Region launch("replay");
    GPUSCOPE_CUDA(cuda, graph_launch, executable, streams[0]);
  }
  std::thread other([&] {
    const Region region("other thread");
    for (int step = 0; step < 7; ++step) {
      kernels.spin(5'000, handle(streams[1]));
    }
  });
  other.join();
  kernels.synchronize();
  GPUSCOPE_CUDA(cuda, graph_exec_destroy, executable);
  GPUSCOPE_CUDA(cuda, graph_destroy, graph);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: gpuscope_record OUT.cupti [libcupti.so]\n");
    return 2;
  }
  const driver::Cuda cuda = driver::Cuda::open();
  auto* collector = new activity::Collector(
      driver::Cupti::open(count > 2 ? std::vector<std::string>{arguments[2]} : std::vector<std::string>{}));
  if (collector->start({}) != activity::Tier::Sole) {
    std::fprintf(stderr, "%s\n", collector->why().c_str());
    return 1;
  }
  run(cuda);
  collector->flush(true);

  fakes::Recorded recorded;
  recorded.about = "CUPTI " + std::to_string(collector->cupti().version);
  recorded.strides.resize(64);
  std::map<const char*, uint64_t> names;
  for (auto* buffer = collector->buffers().take_completed(); buffer != nullptr; buffer = buffer->next) {
    void* record = nullptr;
    while (collector->cupti().get_next_record(buffer->data, buffer->valid, &record) == driver::kCuptiSuccess) {
      const uint32_t kind = *static_cast<uint32_t*>(record);
      void* next = record;
      const bool more = collector->cupti().get_next_record(buffer->data, buffer->valid, &next) == driver::kCuptiSuccess;
      const auto* end = more ? static_cast<uint8_t*>(next) : buffer->data + buffer->valid;
      recorded.strides[kind] = static_cast<uint32_t>(end - static_cast<uint8_t*>(record));
      if (kind == activity::kConcurrentKernel) {
        auto* kernel = static_cast<activity::KernelRecord*>(record);
        const auto [place, fresh] = names.emplace(kernel->name, names.size());
        if (fresh) {
          recorded.names.emplace_back(kernel->name);
        }
        kernel->name = reinterpret_cast<const char*>(place->second);
      }
    }
    fakes::Recorded::Buffer copy;
    copy.valid = static_cast<uint32_t>(buffer->valid);
    copy.words.resize((buffer->valid + 7) / 8);
    std::memcpy(copy.words.data(), buffer->data, buffer->valid);
    recorded.buffers.push_back(std::move(copy));
  }
  base::EventLogs::process().each([&](base::EventLog& log) {
    std::vector<base::Event> events;
    log.read(log.end(), [&](const base::Event& event) { events.push_back(event); });
    recorded.threads.insert(recorded.threads.begin(), std::move(events));
  });
  for (uint32_t id = 0; id < 64; ++id) {
    recorded.regions.emplace_back(base::Names::process().text(id));
  }
  recorded.save(arguments[1]);
  std::printf("%zu buffers, %zu threads, %zu kernel names\n", recorded.buffers.size(), recorded.threads.size(),
              recorded.names.size());
  collector->stop();
  return 0;
}
