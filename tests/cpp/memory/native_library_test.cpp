// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gpuscope/memory/ledger.h"

namespace gpuscope::memory {
namespace {

TEST(LibraryNames, AreThoseOfTheFiles) {
  EXPECT_EQ(library_name("/opt/cuda/lib64/libcublasLt.so.13"), "libcublasLt.so.13");
  EXPECT_EQ(library_name("/v/lib/python3.12/site-packages/torch/lib/libc10_cuda.so"), "libc10_cuda.so");
  EXPECT_EQ(library_name("libcudnn_graph.so.9"), "libcudnn_graph.so.9");
  EXPECT_EQ(library_name("/home/me/train"), "train");
}

TEST(LibraryNames, OfExtensionsSayThePackage) {
  EXPECT_EQ(
      library_name("/v/lib/python3.12/site-packages/cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so"),
      "cupy_backends/runtime.cpython-312-x86_64-linux-gnu.so");
  EXPECT_EQ(library_name("/usr/lib/python3/dist-packages/jax_plugins/xla_cuda12/xla_cuda_plugin.so"),
            "jax_plugins/xla_cuda_plugin.so");
  EXPECT_EQ(library_name("/home/me/mine/fast.abi3.so"), "mine/fast.abi3.so");
  EXPECT_EQ(library_name("/v/lib/python3.12/site-packages/fast.abi3.so"), "fast.abi3.so");
  EXPECT_EQ(library_name("/v/lib/python3.12/site-packages/rmm/librmm.so"), "librmm.so");
}

TEST(LibraryNames, OfTheInterpreterSayPython) {
  EXPECT_EQ(library_name("/usr/bin/python3.12"), "python");
  EXPECT_EQ(library_name("/usr/lib/x86_64-linux-gnu/libpython3.12.so.1.0"), "python");
}

TEST(LibraryNames, AreNotThoseOfWhoPassesCallsOn) {
  for (const char* path :
       {"/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06",
        "/v/site-packages/nvidia/cu13/lib/libcudart.so.13", "/v/site-packages/nvidia/cu13/lib/libcupti.so.13",
        "/usr/lib/libnvidia-ptxjitcompiler.so.1", "/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/libstdc++.so.6",
        "/lib64/ld-linux-x86-64.so.2", "linux-vdso.so.1", "/usr/lib/libffi.so.8",
        "/usr/lib/python3.12/lib-dynload/_ctypes.cpython-312-x86_64-linux-gnu.so",
        "/v/site-packages/gpuscope/_core.cpython-312-x86_64-linux-gnu.so",
        "/home/me/python/gpuscope/_core.cpython-312-x86_64-linux-gnu.so"}) {
    EXPECT_EQ(library_name(path), "") << path;
  }
}

TEST(NativeLibraryWalks, FindTheProgramItself) {
  NativeLibraries libraries;
  const uint32_t here = libraries.caller();
  EXPECT_EQ(libraries.names().at(here), "gpuscope_tests");
}

TEST(NativeLibraryWalks, FindTheProgramBehindALibraryThatPassesOn) {
  static NativeLibraries libraries;
  static uint32_t found;
  found = 0;
  int numbers[] = {2, 1};
  std::qsort(numbers, 2, sizeof(int), [](const void*, const void*) {  // libc's frames lie between
    found = libraries.caller();
    return 0;
  });
  EXPECT_EQ(libraries.names().at(found), "gpuscope_tests");
}

TEST(NativeLibraryWalks, GiveEachLibraryOneNumber) {
  NativeLibraries libraries;
  const uint32_t here = libraries.caller();
  EXPECT_EQ(libraries.caller(), here);
  EXPECT_EQ(libraries.names(), (std::vector<std::string>{"", "gpuscope_tests"}));
}

TEST(NativeLibraryWalks, AgreeOnManyThreads) {
  NativeLibraries libraries;
  std::vector<uint32_t> found(4);
  std::vector<std::thread> threads;
  for (uint32_t& mine : found) {
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        mine = libraries.caller();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(found, std::vector<uint32_t>(4, 1));
}

TEST(NativeLibrary, NamesCanBeReadInChildrenForkedWhileAnotherThreadReadsThem) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP();
#endif
  Ledger::process();
  std::atomic<bool> ends{false};
  std::thread reading([&] {
    while (!ends) {
      (void)NativeLibraries::process().names();
    }
  });
  int failed = 0;
  for (int forks = 0; forks < 200 && failed == 0; ++forks) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(5);  // a child that hangs says no
      (void)NativeLibraries::process().names();
      _exit(0);
    }
    waitpid(child, &failed, 0);
  }
  ends = true;
  reading.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace gpuscope::memory
