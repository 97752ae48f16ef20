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

/// A time of collecting, with any number of recorded windows.
///
/// open, cut, stop: any thread, one at a time (they lock). They wait for the decode thread, which does all the work. A
/// forked child does not destroy its parent's session: see base::DeleteOwn.
class Session {
 public:
  /// Starts collecting. Throws InvalidArgument while another session is active in the process.
  Session(Vendor& vendor, Options options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Begins a window: later launches are recorded. With a folder, rows are written there as segments, and the store
  /// that ends the window has only those of the last one. Throws Error if the folder cannot be opened.
  void open(const std::string& folder = {});
  /// Ends the window: waits for work launched before this call, at most `wait_limit`, and returns it. Later launches
  /// are not recorded. Null without an open window, and in a forked child. Throws std::bad_alloc if there is no memory
  /// for the result.
  std::unique_ptr<store::Store> cut(std::chrono::nanoseconds wait_limit = kGpuWaitLimit);
  /// Ends collecting. Returns the open window's store, if any. Further calls do nothing.
  std::unique_ptr<store::Store> stop(std::chrono::nanoseconds wait_limit = kGpuWaitLimit);

  /// Ends the recording of GPU work for the rest of the session, as another client needs CUPTI. Waits like cut. False
  /// if no GPU work was recorded.
  bool release_cupti();
  /// In the open window: whether driver calls and their GPU work are recorded from now on. Each window begins with both
  /// on.
  void switch_gpu(bool on);
  /// The same for regions, operators and marks. Launches inside belong to the recorded region around them.
  void switch_regions(bool on);

  const std::string& tier() const noexcept { return tier_; }
  const std::string& tier_reason() const noexcept { return tier_reason_; }

  static bool active() noexcept;
  /// True in a child of a collecting process: neither CUPTI nor our thread survives a fork.
  static bool forked() noexcept;
  /// Registers the fork handlers: in a child the process's dictionaries are unlocked, and nothing is recorded.
  /// Idempotent.
  static void watch_forks();

 private:
  enum class Request { None, Cut, Stop, ReleaseCupti };

  void choose_tier();
  bool gets_raw_timestamps();
  void start_thread();
  bool in_forked_child() const noexcept;
  void run();
  std::unique_ptr<store::Store> request(Request what, std::chrono::nanoseconds wait_limit);
  /// Passes the request to the decode thread, and waits.
  std::unique_ptr<store::Store> hand_over(Request what, std::chrono::nanoseconds wait_limit = kGpuWaitLimit);
  void turn(attribution::SwitchTimes attribution::Window::*which, bool on);

  Vendor& vendor_;
  Options options_;
  std::string tier_;
  std::string tier_reason_;
  Recorder recorder_;
  bool collecting_ = false;
  bool released_ = false;  // CUPTI, before the end
  bool stopped_ = false;

  std::mutex calls_;  // one caller at a time
  std::mutex mutex_;  // guards the members below; never held during a call of CUPTI
  std::condition_variable done_;
  Request request_ = Request::None;
  std::chrono::nanoseconds wait_limit_{};  // of the request
  std::unique_ptr<store::Store> result_;
  std::exception_ptr error_;  // instead of a result

  std::thread thread_;
  std::binary_semaphore entered_{0};  // released when the thread has the memory that it needs to run
  const pid_t process_;
};

}  // namespace gpuscope::session
