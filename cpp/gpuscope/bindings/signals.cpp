// SPDX-License-Identifier: Apache-2.0
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>

#include "gpuscope/bindings/bind.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

// Signals that do not end a process by default, fault signals, and SIGQUIT, which must still end a process at once.
// SIGINT, SIGPIPE and SIGXFSZ have the default action only if the program set it: Python sets another.
constexpr std::array kLeftAlone{SIGCHLD, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH, SIGILL,
                                SIGTRAP, SIGABRT, SIGBUS,  SIGFPE,  SIGSEGV, SIGSYS, SIGQUIT};

// timeout(1) sends its signal twice, and systemd sends two signals at once. Only a later one counts as a second signal.
constexpr int64_t kSecondNs = 2'000'000'000;
// If a thread holds the GIL for longer, Python does not run at all.
constexpr std::chrono::seconds kGilLimit(10);

/// Calls a Python function before one of these signals ends the process. The function runs on a separate thread, as the
/// main thread may be inside a call that does not return. For the program, the signals keep their default action: its
/// signal.signal or sigaction replaces this handler, and its children get the default.
///
/// All functions except `handle`: one thread at a time, with the GIL. `unwatch` releases it while a signal is handled.
/// Leaked: a signal may come at any moment.
class EndingSignals {
 public:
  static EndingSignals& process() {
    static auto* signals = new EndingSignals;
    return *signals;
  }

  void watch(py::function on_signal, const std::string& given_up) {
    unwatch();
    on_signal_ = std::move(on_signal);
    given_up_ = given_up;
    owner_.store(getpid());
    first_.store(0);
    while (sem_trywait(&wake_) == 0) {  // posts of a signal that came while the previous watch ended
    }
    std::shared_ptr<Waiting> waiting = waiting_ = std::make_shared<Waiting>();
    base::start_thread("what is written where a signal ends the program", [this, waiting] { wait(*waiting); }).detach();
    for (int number = 1; number <= SIGRTMAX; ++number) {
      take(number);
    }
  }

  void unwatch() {
    for (int number = 1; number <= SIGRTMAX; ++number) {
      struct sigaction now {};
      if (sigaction(number, nullptr, &now) == 0 && now.sa_handler == &handle) {
        signal(number, SIG_DFL);
      }
    }
    const std::shared_ptr<Waiting> waiting = std::exchange(waiting_, nullptr);
    const bool is_own = owner_.load() == getpid() && waiting != nullptr;
    if (is_own && first_.load() == 0) {
      waiting->stopped.release();
      sem_post(&wake_);
    } else if (is_own && !is_called_) {  // the function must not run while the interpreter ends
      const py::gil_scoped_release released;
      waiting->over.acquire();
    }
    if (const pid_t owner = owner_.exchange(0); owner != 0 && owner != getpid()) {
      sem_init(&wake_, 0, 0);  // the parent's thread waits on it
    }
  }

  /// Takes a signal that has the default action, if that action ends the process.
  void take(int number) {
    struct sigaction now {};
    if (owner_.load() != getpid() || sigaction(number, nullptr, &now) != 0 || now.sa_handler != SIG_DFL ||
        std::ranges::find(kLeftAlone, number) != kLeftAlone.end()) {
      return;
    }
    struct sigaction ours {};
    ours.sa_handler = &handle;
    ours.sa_flags = SA_RESTART | SA_ONSTACK;
    sigaction(number, &ours, nullptr);
  }

 private:
  /// State of the thread that waits for a signal.
  struct Waiting {
    std::binary_semaphore stopped{0};
    std::binary_semaphore over{0};  // the handling of a signal is over, if the process survives
  };

  EndingSignals() { sem_init(&wake_, 0, 0); }

  // Calls only async-signal-safe functions.
  static void handle(int number) {
    const int error = errno;
    int none = 0;
    if (getpid() != owner_.load()) {  // a child
      end_by(number);
    } else if (first_.compare_exchange_strong(none, number)) {
      first_ns_.store(now_ns());
      sem_post(&wake_);
    } else if (number != SIGPIPE && now_ns() - first_ns_.load() > kSecondNs) {  // each write to a closed pipe sends it
      say(given_up_);
      end_by(number);
    }
    errno = error;
  }

  void wait(Waiting& waiting) {
    pthread_setname_np(pthread_self(), "gpuscope-signal");
    while (sem_wait(&wake_) != 0) {
    }
    if (waiting.stopped.try_acquire()) {
      return;
    }
    struct Progress {
      std::binary_semaphore began{0};
      std::binary_semaphore ended{0};
    };
    const int number = first_.load();
    const auto progress = std::make_shared<Progress>();
    const auto call = [this, number, progress] {
      const py::gil_scoped_acquire gil;
      is_called_ = true;
      progress->began.release();
      try {
        on_signal_(number);
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("gpuscope: at the end by a signal");
      }
      progress->ended.release();
    };
    try {
      base::start_thread("what is written where a signal ends the program", call).detach();
    } catch (const base::Error&) {  // then without the limit
      call();
    }
    if (progress->began.try_acquire_for(kGilLimit)) {
      progress->ended.acquire();
    } else {
      say(given_up_);
    }
    end_by(number);  // has no effect on the first process of a container, which continues
    waiting.over.release();
  }

  /// Performs the signal's default action.
  static void end_by(int number) {
    signal(number, SIG_DFL);
    kill(getpid(), number);
    sigset_t own;  // a handler runs with its signal blocked
    sigemptyset(&own);
    sigaddset(&own, number);
    pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
  }

  static int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
  }

  static void say(const std::string& sentence) {
    if (write(STDERR_FILENO, sentence.data(), sentence.size()) < 0) {
      return;  // stderr is closed
    }
  }

  inline static std::atomic<pid_t> owner_{0};
  inline static std::atomic<int> first_{0};
  inline static std::atomic<int64_t> first_ns_{0};
  inline static sem_t wake_{};
  inline static std::string given_up_;
  inline static thread_local bool is_called_ = false;  // here the function runs
  py::function on_signal_;
  std::shared_ptr<Waiting> waiting_;
};

}  // namespace

void bind_signals(py::module_& module) {
  module.def(
      "watch_signals",
      [](py::function on_signal, const std::string& given_up) {
        EndingSignals::process().watch(std::move(on_signal), given_up);
      },
      py::arg("on_signal"), py::arg("given_up"),
      "Has a function called with the number of a signal that ends the process, before it does, on a thread of its "
      "own. `given_up`: what is written to standard error where a second signal, or a thread that keeps the GIL, ends "
      "it before the function has returned.");
  module.def(
      "watch_signal", [](int number) { EndingSignals::process().take(number); }, py::arg("number"),
      "The program has given a signal its default action: it is watched again, if it was.");
  module.def(
      "unwatch_signals", [] { EndingSignals::process().unwatch(); }, "Ends what watch_signals began.");
}

}  // namespace gpuscope::bindings
