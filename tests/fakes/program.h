// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "fakes/cupti.h"
#include "gpuscope/activity/buffers.h"
#include "gpuscope/attribution/decoder.h"
#include "gpuscope/base/event_logs.h"
#include "gpuscope/base/strings.h"

namespace gpuscope::fakes {

/// A thread that runs the given actions one after another: it has an event log of its own.
class Puppet {
 public:
  Puppet() : thread_([this] { live(); }) {
    run([this] { system_id_ = static_cast<uint64_t>(syscall(SYS_gettid)); });
  }
  ~Puppet() {
    run(nullptr);
    thread_.join();
  }
  Puppet(const Puppet&) = delete;
  Puppet& operator=(const Puppet&) = delete;

  void run(std::function<void()> action) {
    std::unique_lock lock(mutex_);
    action_ = std::move(action);
    busy_ = true;
    turn_.notify_all();
    turn_.wait(lock, [this] { return !busy_; });
  }
  uint64_t system_id() const noexcept { return system_id_; }

 private:
  void live() {
    std::unique_lock lock(mutex_);
    for (bool alive = true; alive;) {
      turn_.wait(lock, [this] { return busy_; });
      alive = action_ != nullptr;
      if (alive) {
        action_();
      }
      busy_ = false;
      turn_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable turn_;
  std::function<void()> action_;
  bool busy_ = false;
  uint64_t system_id_ = 0;
  std::thread thread_;
};

/// A random program on several threads, logged for a decoder and kept in plain structs for comparison.
class Program {
 public:
  struct Options {
    attribution::Settings settings;
    uint32_t seed = 1;
    uint32_t first_correlation = 1;
  };
  struct Region {
    std::string path;
    std::string name;
    int64_t start_ns;
    int64_t end_ns = INT64_MAX;
    int parent;
    std::size_t thread;
  };
  struct Work {
    uint32_t kind;  // activity::Kind
    std::string name;
    std::string path;
    int region;  // index of the region that launched it, -1 for none
    int64_t launched_ns;
    int64_t duration_ns;
    uint64_t bytes;
    std::string capture;
    bool in_graph;
    bool delivered;
  };
  struct Call {
    std::string name;
    std::string path;
    int region;
    int64_t start_ns, end_ns;
    std::size_t thread;
  };
  static constexpr std::size_t kThreads = 4;

  explicit Program(const Options& options)
      : options_(options), random_(options.seed), correlation_(options.first_correlation) {
    base::EventLogs::process().each([](base::EventLog& log) {
      log.skip_all();
      log.take_dropped();
      base::EventLogs::release_if_done(log);
    });
    for (std::size_t number = 0; number < kThreads; ++number) {
      threads_.push_back({std::make_unique<Puppet>(), {}, 0, 0, INT64_MIN});
    }
    threads_[0].puppet->run([] { base::EventLogs::current(); });  // as the thread that starts a session does
    decoder_ = std::make_unique<attribution::Decoder>(options.settings, Cupti::instance().table(),
                                                      threads_[0].puppet->system_id());
    decoder_->discard_logs();
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      act();
    }
  }
  void open() { decoder_->window().open_ns = open_ns = now(); }
  /// Ends the window; `late`: how many records of GPU work come only after it.
  std::unique_ptr<store::Store> cut(std::size_t late) {
    decoder_->window().close_ns = close_ns = now();
    std::shuffle(pending_.begin(), pending_.end(), random_);
    std::stable_partition(pending_.begin(), pending_.end(), [](const Pending& each) { return each.work == nullptr; });
    const auto calls_waiting = static_cast<std::size_t>(
        std::count_if(pending_.begin(), pending_.end(), [](const Pending& each) { return each.work == nullptr; }));
    const std::size_t now_delivered = std::max(calls_waiting, pending_.size() - std::min(late, pending_.size()));
    deliver(now_delivered);
    counters = decoder_->state().counters;
    return decoder_->finish(close_ns);
  }
  void forget_window() {
    calls.clear();
    for (auto& [correlation, work] : works) {
      for (Work& each : work) {
        each.launched_ns = INT64_MIN;
      }
    }
  }
  /// The path of work that was launched in a region: without those around it that had been left by then.
  std::string work_path(int region, int64_t at_ns) const {
    std::string path;
    const Region* inner = nullptr;
    for (int at = region; at >= 0; at = inner->parent) {
      const Region& around = regions[static_cast<std::size_t>(at)];
      const bool was_left = inner != nullptr && around.thread == inner->thread && around.end_ns <= at_ns;
      path = was_left ? path : "/" + around.name + path;
      inner = &around;
    }
    return path;
  }
  bool launched_inside(int64_t at_ns) const { return at_ns >= open_ns && at_ns < close_ns; }
  /// Whether the thread did anything inside the window.
  bool logged_inside(std::size_t thread) const { return threads_[thread].last_ns >= open_ns || thread == 0; }

  int64_t open_ns = INT64_MAX;
  int64_t close_ns = INT64_MAX;
  std::vector<Region> regions;
  std::map<uint32_t, std::vector<Work>> works;  // by correlation id
  std::vector<Call> calls;                      // of the window
  attribution::Counters counters;

 private:
  struct Task {
    uint64_t key;
    std::vector<int> stack;
  };
  struct Thread {
    std::unique_ptr<Puppet> puppet;
    std::vector<Task> tasks;  // the first is what the thread ran before its first task
    std::size_t current;
    uint64_t logged_key;  // of the newest task switch in its log
    int64_t last_ns;
  };
  struct Pending {
    Record record;
    Work* work;  // nullptr for records of calls
  };
  struct Graph {
    std::vector<std::pair<uint64_t, std::string>> nodes;
  };

  // The runtime's call above a driver's (cupti_runtime_cbid.h).
  static uint32_t runtime_call(uint32_t driver_call) {
    return driver_call == kMemcpyAsync   ? 41
           : driver_call == kMemsetAsync ? 51
           : driver_call == kGraphLaunch ? 311
                                         : 211;
  }
  uint32_t draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  static int64_t now() { return base::Clock::process().now_ns(); }

  int innermost(const Thread& thread) const {
    if (!thread.tasks.empty()) {
      for (const Task* task : {&thread.tasks[thread.current], &thread.tasks[0]}) {
        if (!task->stack.empty()) {
          return task->stack.back();
        }
      }
    }
    return -1;
  }
  int place(std::size_t thread) const {
    const int own = innermost(threads_[thread]);
    return own >= 0 || thread == 0 ? own : innermost(threads_[0]);
  }
  std::string path_of(int region) const {
    return region >= 0 ? regions[static_cast<std::size_t>(region)].path : std::string();
  }

  // One logged event on its thread; the time that it bears.
  int64_t say(std::size_t number, uint32_t id, base::Op op, uint32_t detail = 0) {
    uint64_t ticks = 0;
    Thread& thread = threads_[number];
    thread.puppet->run([&] {
      ticks = base::ticks();
      base::EventLogs::current()->append(ticks, id, op, detail);
    });
    thread.last_ns = base::Clock::process().to_ns(ticks);
    return thread.last_ns;
  }
  void say_word(std::size_t number, uint64_t word, base::Op op, uint32_t detail = 0) {
    threads_[number].puppet->run([&] { base::EventLogs::current()->append(word, 0, op, detail); });
  }

  // A region event belongs to a task, which is logged when it changes.
  void choose_task(std::size_t number) {
    Thread& thread = threads_[number];
    if (thread.tasks.empty()) {
      thread.tasks.push_back({1000, {}});
    }
    if (thread.logged_key != 0 && draw(4) == 0) {
      thread.current = draw(4);
      while (thread.tasks.size() <= thread.current) {
        thread.tasks.push_back({1000 + thread.tasks.size(), {}});
      }
    }
    if (thread.logged_key != thread.tasks[thread.current].key) {
      thread.logged_key = thread.tasks[thread.current].key;
      say_word(number, thread.logged_key, base::Op::Strand);
    }
  }

  void enter(std::size_t number) {
    choose_task(number);
    Thread& thread = threads_[number];
    std::vector<int>& stack = thread.tasks[thread.current].stack;
    if (stack.size() >= 6) {
      return exit(number);
    }
    std::string name = "region ";
    name += std::to_string(draw(5));
    const int parent = innermost(thread);
    const int64_t at = say(number, base::Names::process().intern(name), base::Op::Enter);
    regions.push_back({path_of(parent) + "/" + name, name, at, INT64_MAX, parent, number});
    stack.push_back(static_cast<int>(regions.size() - 1));
  }

  void exit(std::size_t number) {
    choose_task(number);
    Thread& thread = threads_[number];
    std::vector<int>& stack = thread.tasks[thread.current].stack;
    if (stack.empty()) {
      return mark(number);
    }
    const std::size_t wanted = draw(5) != 0 ? stack.size() - 1 : draw(uint32_t(stack.size()));
    const std::string name = regions[static_cast<std::size_t>(stack[wanted])].name;
    const int64_t at = say(number, base::Names::process().intern(name), base::Op::Exit);
    for (std::size_t depth = stack.size(); depth-- > 0;) {
      Region& region = regions[static_cast<std::size_t>(stack[depth])];
      if (region.name == name) {
        region.end_ns = at;
        stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(depth));
        return;
      }
    }
  }

  void mark(std::size_t number) { say(number, base::Names::process().intern("mark"), base::Op::Mark); }

  // A driver call; true when it went well.
  bool call(std::size_t number, uint32_t id, const char* name, uint32_t correlation,
            const std::function<void()>& inside = {}) {
    const uint32_t result = draw(20) == 0 && !inside ? 700 : 0;
    const int region = place(number);
    int64_t start = 0;
    int64_t end = 0;
    if (options_.settings.by_time) {
      start = now();
      end = start + 1;
      threads_[number].last_ns = start;
      pending_.push_back(
          {api_record(
               activity::kDriver, id,
               {.correlation = correlation, .start = static_cast<uint64_t>(start), .end = static_cast<uint64_t>(end)},
               threads_[number].puppet->system_id(), result),
           nullptr});
      if (draw(2) == 0) {  // the runtime's call above it tells of the same launch
        pending_.push_back(
            {api_record(
                 activity::kRuntime, runtime_call(id),
                 {.correlation = correlation, .start = static_cast<uint64_t>(start), .end = static_cast<uint64_t>(end)},
                 threads_[number].puppet->system_id(), result),
             nullptr});
      }
    } else {
      start = say(number, correlation, base::Op::CallEnter, id);
      if (inside) {
        inside();
      }
      end = say(number, result, base::Op::CallExit, id);
    }
    if (launched_inside(start)) {
      calls.push_back({name, path_of(region), region, start, end, number});
    }
    return result == 0;
  }

  void work(std::size_t number) {
    const uint32_t correlation = correlation_++;
    const uint32_t kind = draw(4);
    const int region = place(number);
    const int64_t before = now();
    const bool good = kind == 0   ? call(number, kMemcpyAsync, "cuMemcpyAsync", correlation)
                      : kind == 1 ? call(number, kMemsetAsync, "cuMemsetD8Async", correlation)
                                  : call(number, kLaunchKernel, "cuLaunchKernel", correlation);
    const int64_t after = now();
    if (!good) {
      return;
    }
    // The launch lay between these two: only that it was inside the window matters.
    const int64_t launched = launched_inside(before) && launched_inside(after) ? before : INT64_MIN;
    std::string name = "kernel ";
    name += std::to_string(draw(3));
    const int64_t duration = 1 + draw(1000);
    Gpu gpu{.correlation = correlation,
            .start = static_cast<uint64_t>(after),
            .end = static_cast<uint64_t>(after + duration),
            .device = draw(2),
            .stream = draw(3)};
    const uint64_t bytes = draw(5000);
    std::vector<Work>& list = works[correlation];
    list.reserve(1);
    if (kind == 0) {
      list.push_back({activity::kMemcpy, "Memcpy HtoD (Pageable -> Device)", path_of(region), region, launched,
                      duration, bytes, "", false, false});
      pending_.push_back({memcpy_record(gpu, bytes), &list[0]});
    } else if (kind == 1) {
      list.push_back(
          {activity::kMemset, "Memset (Device)", path_of(region), region, launched, duration, bytes, "", false, false});
      pending_.push_back({memset_record(gpu, bytes), &list[0]});
    } else {
      list.push_back(
          {activity::kConcurrentKernel, name, path_of(region), region, launched, duration, 0, "", false, false});
      pending_.push_back({kernel_record(gpu, pinned(name), int32_t(1 + draw(4))), &list[0]});
    }
  }

  // Captures a graph of a few nodes, instantiates it elsewhere.
  void capture(std::size_t number) {
    if (options_.settings.by_time) {
      return;
    }
    Graph graph;
    const uint32_t count = 1 + draw(5);
    std::vector<uint64_t> originals;
    for (uint32_t index = 0; index < count; ++index) {
      const int region = place(number);
      originals.push_back(++node_);
      call(number, kLaunchKernel, "cuLaunchKernel", correlation_++,
           [&] { say_word(number, originals.back(), base::Op::Node); });
      graph.nodes.emplace_back(0, path_of(region));
      if (draw(2) == 0) {
        enter(number);
      }
    }
    for (uint32_t index = 0; index < count; ++index) {
      graph.nodes[index].first = ++node_;
      say_word(number, node_, base::Op::Node);
      say_word(number, node_, base::Op::Node, 1);
      say_word(number, originals[index], base::Op::NodeOrigin);
    }
    graphs_.push_back(std::move(graph));
  }

  void launch_graph(std::size_t number) {
    if (graphs_.empty()) {
      return capture(number);
    }
    const uint32_t chosen = draw(uint32_t(graphs_.size()));
    const uint32_t correlation = correlation_++;
    const int region = place(number);
    const int64_t before = now();
    const bool good = call(number, kGraphLaunch, "cuGraphLaunch", correlation);
    const int64_t after = now();
    if (!good) {
      return;
    }
    const int64_t launched = launched_inside(before) && launched_inside(after) ? before : INT64_MIN;
    std::vector<Work>& list = works[correlation];
    list.reserve(graphs_[chosen].nodes.size());
    for (const auto& [node, path] : graphs_[chosen].nodes) {
      const int64_t duration = 1 + draw(100);
      list.push_back(
          {activity::kConcurrentKernel, "node", path_of(region), region, launched, duration, 0, path, true, false});
      pending_.push_back({kernel_record({.correlation = correlation,
                                         .start = static_cast<uint64_t>(after),
                                         .end = static_cast<uint64_t>(after + duration),
                                         .graph = chosen + 1,
                                         .node = node},
                                        pinned("node")),
                          &list.back()});
    }
  }

  const char* pinned(const std::string& name) { return names_.try_emplace(name, name).first->second.c_str(); }

  void deliver(std::size_t count) {
    count = std::min(count, pending_.size());
    for (std::size_t next = 0; next < count;) {
      uint8_t* buffer = pool_.take();
      size_t used = 0;
      const std::size_t most = 1 + draw(60);
      for (std::size_t held = 0; next < count && held < most; ++next, ++held) {
        std::memcpy(buffer + used, pending_[next].record.bytes, pending_[next].record.size);
        used += pending_[next].record.size;
        if (pending_[next].work != nullptr) {
          pending_[next].work->delivered = true;
        }
      }
      pool_.complete(nullptr, 0, buffer, used);
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(count));
    decoder_->decode(pool_);
  }

  // A thread other than the main one ends, and another one begins.
  void replace(std::size_t number) {
    Thread& thread = threads_[number];
    for (Task& task : thread.tasks) {
      if (!task.stack.empty()) {
        return;
      }
    }
    if (number != 0) {
      thread = {std::make_unique<Puppet>(), {}, 0, 0, INT64_MIN};
    }
  }

  void act() {
    const std::size_t number = draw(kThreads);
    const uint32_t what = draw(100);
    if (what < 20) {
      enter(number);
    } else if (what < 39) {
      exit(number);
    } else if (what < 42) {
      choose_task(number);
      mark(number);
    } else if (what < 80) {
      work(number);
    } else if (what < 90) {
      launch_graph(number);
    } else if (what < 91) {
      capture(number);
    } else if (what < 92) {
      replace(number);
    } else if (what < 95) {
      std::shuffle(pending_.begin(), pending_.end(), random_);
      deliver(draw(uint32_t(pending_.size() + 1)));
    } else if (what < 97) {
      decoder_->decode(pool_);
    }
  }

  Options options_;
  std::mt19937 random_;
  activity::BufferPool pool_;
  std::unique_ptr<attribution::Decoder> decoder_;
  std::vector<Thread> threads_;
  std::vector<Pending> pending_;
  std::vector<Graph> graphs_;
  std::map<std::string, std::string> names_;
  uint64_t node_ = 0;
  uint32_t correlation_;
};

}  // namespace gpuscope::fakes
