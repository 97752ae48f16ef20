// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpuscope/activity/collector.h"
#include "gpuscope/attribution/decoder.h"
#include "gpuscope/device/region_timer.h"
#include "gpuscope/driver/cuda.h"
#include "gpuscope/session/clock_map.h"
#include "gpuscope/session/info.h"
#include "gpuscope/store/store.h"

namespace gpuscope::session {

/// The vendor libraries and the collector of this process: one each, opened when first wanted, never closed.
struct Vendor {
  explicit Vendor(const std::vector<std::string>& cupti_wheels)
      : cuda(driver::Cuda::open()), collector(driver::Cupti::open(cupti_wheels)), region_timer(cuda) {}
  Vendor(driver::Cuda with_cuda, const driver::Cupti& with_cupti)
      : cuda(std::move(with_cuda)), collector(with_cupti), region_timer(cuda) {}

  driver::Cuda cuda;
  activity::Collector collector;
  device::RegionTimer region_timer;
};

struct Options {
  attribution::Settings settings;
  bool cuda = true;
  std::string no_cuda_reason;  // why `cuda` is false
  bool synchronization = false;
  bool may_share_cupti = false;
};

/// One span of collecting, with any number of recorded windows in it.
///
/// open, cut, stop: any thread, one at a time (they lock); they wait for the decode thread, which does all the work.
class Session {
 public:
  /// Starts collecting. Throws InvalidArgument while another session is active in the process.
  Session(Vendor& vendor, const Options& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// What is launched from now on is recorded.
  void open();
  /// Ends the window: waits for its GPU work, at most two seconds, and hands over what was recorded. Nothing without an
  /// open window, and in the child of a fork. Throws std::bad_alloc when there is no memory to hand it over in.
  std::unique_ptr<store::Store> cut();
  /// Ends collecting; the open window's store, if one is open. Further calls do nothing.
  std::unique_ptr<store::Store> stop();

  const std::string& tier() const noexcept { return tier_; }
  const std::string& tier_reason() const noexcept { return tier_reason_; }

  static bool active() noexcept;
  /// True in a child of a process that collected: CUPTI and our thread did not come along.
  static bool forked() noexcept;

 private:
  enum class Request { None, Cut, Stop };

  void choose_tier();
  void make_decoder();
  void start_thread();
  /// In the child of a fork, which has neither our thread nor CUPTI.
  bool left_behind() const noexcept;
  void run();
  void decode_once(bool flush);
  std::unique_ptr<store::Store> end_window(int64_t open_ns, int64_t close_ns);
  void settle();
  void settle_without_callbacks();
  void read_gpu_spans();
  Facts gather_facts(int64_t open_ns, int64_t close_ns);
  std::unique_ptr<store::Store> request(Request what);

  Vendor& vendor_;
  Options options_;
  std::string tier_;
  std::string tier_reason_;
  std::string notes_;
  std::unique_ptr<attribution::Decoder> decoder_;
  uint64_t main_thread_ = 0;
  ClockMap clock_;
  bool collecting_ = false;
  bool stopped_ = false;

  std::mutex calls_;  // one caller at a time
  std::mutex mutex_;  // guards what follows; never held over a call into CUPTI
  std::condition_variable done_;
  Request request_ = Request::None;
  std::unique_ptr<store::Store> result_;
  std::exception_ptr error_;  // instead of a result

  // The decode thread's.
  int64_t decode_cpu_start_ns_ = 0;
  int64_t flush_cpu_ns_ = 0;
  int64_t decode_lag_max_ns_ = 0;
  bool failed_ = false;  // memory ran out: the rest of the window is thrown away
  uint64_t unloads_ = 0;
  uint64_t exhausted_start_ = 0;
  uint64_t foreign_start_ = 0;
  uint64_t dropped_start_ = 0;
  std::unique_ptr<std::thread> thread_;
  const pid_t process_;
};

}  // namespace gpuscope::session
