// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace gpuscope::memory {

/// What a loaded file is called in results: "libcublasLt.so.13",
/// "cupy_backends/runtime.cpython-312-x86_64-linux-gnu.so" for an extension module, with the package that it came in,
/// "python" for the interpreter. "" for what is not the author of a call but passes it on: CUDA's driver and runtime,
/// the C and C++ runtimes, foreign-function interfaces and gpuscope itself.
std::string library_name(std::string_view path);

/// The libraries that call the driver, as small numbers. Any thread.
///
/// Called inside the driver, whose locks the thread may hold. So a file is looked up with dl_iterate_phdr, not with
/// dladdr: dladdr takes the lock under which dlopen runs constructors, and a constructor may be waiting for the driver;
/// dl_iterate_phdr takes the one of the list of files, under which nobody waits for anything.
class NativeLibraries {
 public:
  static NativeLibraries& process();

  /// The nearest file on the calling thread's native stack that has a name; 0 when there is none within 32 frames.
  uint32_t caller() noexcept;
  /// By number. The first is "".
  std::vector<std::string> names();

 private:
  struct Walk;

  uint32_t of_address(uint64_t address) noexcept;
  uint32_t intern(const std::string& name);
  void forget_unloaded() noexcept;

  static constexpr std::size_t kSlots = 4096;  // a program has some hundred ways to call the driver
  static constexpr unsigned kNumberBits = 16;  // below the address, of which the upper 16 bits are zero

  std::array<std::atomic<uint64_t>, kSlots> known_{};  // address and number in one word, 0 for none
  std::atomic<uint64_t> unloads_{0};                   // of the process, when known_ was valid
  std::mutex mutex_;                                   // guards names_
  std::vector<std::string> names_ = std::vector<std::string>(1);
};

}  // namespace gpuscope::memory
