// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace gpuscope::memory {

/// NumPy's PyDataMem_Handler of version 1 (NEP 49): the functions that hand out the memory of arrays.
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

/// Records in History::process() what NumPy's default handler hands out and takes back.
///
/// The functions are exchanged in NumPy's own handler. A handler of ours would be a context variable: threads that
/// start later do not have it, and copies of a context keep it for ever. The exchanged functions serve all threads and
/// contexts, and arrays that are older or outlive the recording: each is freed by the function that NumPy has for it
/// at that moment, and all of them end in NumPy's own.
///
/// watch, unwatch: under one lock, Python's GIL. The recording functions: any thread, any moment.
class NumpyDefault {
 public:
  static NumpyDefault& process() noexcept;

  /// Begins to record, or adds a user. Returns "", or why that cannot be: the handler is not the one known here.
  std::string watch(NumpyHandler& handler);
  /// Once for each `watch` that returned "": the last puts NumPy's own functions back. Those that somebody else has
  /// exchanged since are left as they are, as they may call ours.
  void unwatch() noexcept;

 private:
  NumpyHandler* handler_ = nullptr;  // the last one that was watched
  int users_ = 0;
};

/// A handler that records what another one hands out and takes back. The other one must outlive it; it must itself
/// outlive the arrays that it has handed out. Its functions: any thread, any moment.
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

/// Whether what the calling thread takes from now on is left out: it is taken to look at what was recorded. What it
/// gives back is recorded all the same. Returns what was so before.
bool leave_out_numpy(bool leave_out) noexcept;

/// Whether a handler's functions record already.
bool records(const NumpyHandler& handler) noexcept;

}  // namespace gpuscope::memory
