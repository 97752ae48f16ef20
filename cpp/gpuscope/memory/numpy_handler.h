// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace gpuscope::memory {

/// NumPy's PyDataMem_Handler of version 1 (NEP 49): the functions that allocate array memory.
struct NumpyHandler {
  struct Functions {
    void* context = nullptr;
    void* (*malloc)(void* context, std::size_t bytes) = nullptr;
    void* (*calloc)(void* context, std::size_t count, std::size_t bytes) = nullptr;
    void* (*realloc)(void* context, void* address, std::size_t bytes) = nullptr;
    void (*free)(void* context, void* address, std::size_t bytes) = nullptr;
  };
  static constexpr uint8_t kVersion = 1;

  std::array<char, 127> name{};
  uint8_t version = kVersion;
  Functions functions;
};
static_assert(offsetof(NumpyHandler, functions) == 128 && sizeof(NumpyHandler) == 128 + 5 * sizeof(void*));

/// Records allocations and releases of NumPy's default handler in History::process().
///
/// The functions are exchanged inside NumPy's own handler. A separate handler would be a context variable: later
/// threads lack it, and copies of a context keep it permanently. The exchanged functions serve all threads and
/// contexts, and arrays that are older or outlive the recording. NumPy frees each array with its current function, and
/// all functions end in NumPy's own.
///
/// watch, unwatch: under one lock, Python's GIL. The recording functions: any thread, any time.
class NumpyDefault {
 public:
  static NumpyDefault& process() noexcept;

  /// Begins to record, or adds a user. Returns "" on success, otherwise why the handler is not supported.
  std::string watch(NumpyHandler& handler);
  /// Once for each `watch` that returned "". The last call restores NumPy's own functions. Functions that other tools
  /// have exchanged since stay, as they may call ours.
  void unwatch() noexcept;

 private:
  NumpyHandler* handler_ = nullptr;  // the handler watched last
  int users_ = 0;
};

/// A handler that records the allocations of another one. The other one must outlive it, and it must outlive the arrays
/// that it allocated. Its functions: any thread, any time.
class NumpyWrapper {
 public:
  explicit NumpyWrapper(const NumpyHandler& wrapped) noexcept;
  NumpyWrapper(const NumpyWrapper&) = delete;
  NumpyWrapper& operator=(const NumpyWrapper&) = delete;

  NumpyHandler& handler() noexcept { return handler_; }

 private:
  NumpyHandler handler_;
  NumpyHandler::Functions wrapped_;
};

/// Excludes allocations of the calling thread from now on, for code that examines the history. Releases are still
/// recorded. Returns the previous setting.
bool leave_out_numpy(bool leave_out) noexcept;

/// Whether a handler's functions already record.
bool records(const NumpyHandler& handler) noexcept;

}  // namespace gpuscope::memory
