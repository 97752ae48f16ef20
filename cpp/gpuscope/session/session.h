// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "gpuscope/session/recorder.h"
#include "gpuscope/store/store.h"

namespace gpuscope::session {

/// One span of collecting, with any number of recorded windows in it.
///
/// open, cut, stop: any thread, one at a time (they lock); they wait for the decode thread, which does all the work. A
/// forked child does not destroy its parent's: see base::DeleteOwn.
class Session {
 public:
  /// Starts collecting. Throws InvalidArgument while another session is active in the process.
  Session(Vendor& vendor, Options options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// What is launched from now on is recorded.
  void open();
  /// Ends the window: what was launched before this call is waited for, at most so long, and handed over, what is
  /// launched later is not recorded. Nothing without an open window, and in the child of a fork. Throws std::bad_alloc
  /// when there is no memory to hand it over in.
  std::unique_ptr<store::Store> cut(std::chrono::nanoseconds wait_limit = kGpuWaitLimit);
  /// Ends collecting; the open window's store, if one is open. Further calls do nothing.
  std::unique_ptr<store::Store> stop(std::chrono::nanoseconds wait_limit = kGpuWaitLimit);

  /// Ends the recording of GPU work for the rest of the session, as another client needs CUPTI. Waits as cut does.
  /// False when none was recorded.
  bool release_cupti();
  /// Within the open window: whether calls of the driver, and the GPU work that they launch, are recorded from now on.
  /// Each window begins with all of it.
  void switch_gpu(bool on);
  /// The same for regions, operators and marks; what is launched inside belongs to the recorded region around them.
  void switch_regions(bool on);

  const std::string& tier() const noexcept { return tier_; }
  const std::string& tier_reason() const noexcept { return tier_reason_; }

  static bool active() noexcept;
  /// True in a child of a process that collected: neither CUPTI nor our thread survives a fork.
  static bool forked() noexcept;
  /// Registers the fork handlers: a child finds the process's dictionaries unlocked and nothing recorded. Any number of
  /// times.
  static void watch_forks();

 private:
  enum class Request { None, Cut, Stop, ReleaseCupti };

  void choose_tier();
  bool gets_raw_timestamps();
  void start_thread();
  bool in_forked_child() const noexcept;
  void run();
  std::unique_ptr<store::Store> request(Request what, std::chrono::nanoseconds wait_limit);
  /// Has the decode thread do it, and waits.
  std::unique_ptr<store::Store> hand_over(Request what, std::chrono::nanoseconds wait_limit = kGpuWaitLimit);
  void turn(attribution::Switch attribution::Window::*which, bool on);

  Vendor& vendor_;
  Options options_;
  std::string tier_;
  std::string tier_reason_;
  Recorder recorder_;
  bool collecting_ = false;
  bool released_ = false;  // CUPTI, before the end
  bool stopped_ = false;

  std::mutex calls_;  // one caller at a time
  std::mutex mutex_;  // guards what follows; never held over a call into CUPTI
  std::condition_variable done_;
  Request request_ = Request::None;
  std::chrono::nanoseconds wait_limit_{};  // of the request
  std::unique_ptr<store::Store> result_;
  std::exception_ptr error_;  // instead of a result

  std::thread thread_;
  std::binary_semaphore entered_{0};  // by the thread, which has what it needs to run where memory is short
  const pid_t process_;
};

}  // namespace gpuscope::session
