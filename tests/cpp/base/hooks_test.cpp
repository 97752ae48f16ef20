// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/hooks.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <mutex>

namespace gpuscope::base {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kForksAreTested = false;  // the sanitizer allows no threads in the child
#else
constexpr bool kForksAreTested = true;
#endif

bool in_child(const std::function<bool()>& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);  // a child that hangs says no
    _exit(child() ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

struct Locked {
  std::mutex mutex;
};

TEST(ObjectsOfTheProcess, AreOneInIt) { EXPECT_EQ(&of_process<Locked>(), &of_process<Locked>()); }

TEST(ObjectsOfTheProcess, AreOthersInAForkedChild) {
  if (!kForksAreTested) {
    GTEST_SKIP();
  }
  const std::lock_guard held(of_process<Locked>().mutex);
  EXPECT_TRUE(in_child([] {
    const std::lock_guard lock(of_process<Locked>().mutex);
    return true;
  }));
}

TEST(ObjectsOfTheProcess, AreLeftAsTheyAreByAForkedChild) {
  if (!kForksAreTested) {
    GTEST_SKIP();
  }
  struct Counts {
    explicit Counts(int& destroyed) : destroyed_(destroyed) {}
    ~Counts() { ++destroyed_; }
    int& destroyed_;
  };
  int destroyed = 0;
  std::unique_ptr<Counts, DeleteOwn> object(new Counts(destroyed));
  EXPECT_TRUE(in_child([&] {
    object.reset();
    return destroyed == 0;
  }));
  object.reset();
  EXPECT_EQ(destroyed, 1);
}

TEST(ThreadsOfOurs, TakeNoSignalOfTheProgram) {
  sigset_t blocked;
  start_thread("a test", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); }).join();
  EXPECT_EQ(sigismember(&blocked, SIGUSR1), 1);
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGUSR1), 0);
}

}  // namespace
}  // namespace gpuscope::base
