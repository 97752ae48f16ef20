// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/memory/numpy_handler.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "gpuscope/memory/history.h"

namespace gpuscope::memory {
namespace {

using Functions = NumpyHandler::Functions;

constexpr std::string_view kDefaultName = "default_allocator";

// Numbers briefly become arrays of 8 bytes in operations with arrays: half of all events or more. For such small
// arrays, the array object itself (100 bytes) is the larger leak.
constexpr int64_t kSmallest = 64;

// NumPy's own functions, of the handler watched last. Set before they are called.
constinit Functions own;

#if defined(__x86_64__) || defined(__aarch64__)
[[gnu::tls_model("initial-exec")]]
#endif
constinit thread_local struct {
  bool within = false;    // a recording function
  bool left_out = false;  // by leave_out_numpy
} here;

/// A call of a recording function. A wrapped handler may call NumPy's own: that is the same memory.
struct RecordedCall {
  explicit RecordedCall(void* context) noexcept
      : is_outer(!std::exchange(here.within, true)),
        to(context != nullptr ? *static_cast<const Functions*>(context) : own) {}
  ~RecordedCall() { here.within = !is_outer; }
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;

  void record(const void* address, int64_t bytes) const noexcept {
    if (is_outer && address != nullptr && (std::abs(bytes) >= kSmallest || bytes == kUnknownRelease)) {
      History::process().record({reinterpret_cast<uint64_t>(address), bytes, 0, 0, kHost, Source::Numpy});
    }
  }

  void record_taken(const void* address, std::size_t bytes) const noexcept {
    if (!here.left_out) {
      record(address, static_cast<int64_t>(bytes));
    }
  }

  const bool is_outer;
  const Functions& to;
};

// Releases are recorded first: another thread may get the address at once.

void* record_malloc(void* context, std::size_t bytes) noexcept {
  const RecordedCall call(context);
  void* address = call.to.malloc(call.to.context, bytes);
  call.record_taken(address, bytes);
  return address;
}

void* record_calloc(void* context, std::size_t count, std::size_t bytes) noexcept {
  const RecordedCall call(context);
  void* address = call.to.calloc(call.to.context, count, bytes);
  call.record_taken(address, count * bytes);
  return address;
}

void* record_realloc(void* context, void* before, std::size_t bytes) noexcept {
  const RecordedCall call(context);
  call.record(before, kUnknownRelease);
  void* address = call.to.realloc(call.to.context, before, bytes);
  call.record_taken(address, bytes);
  return address;
}

void record_free(void* context, void* address, std::size_t bytes) noexcept {
  const RecordedCall call(context);
  call.record(address, bytes != 0 ? -static_cast<int64_t>(bytes) : kUnknownRelease);
  call.to.free(call.to.context, address, bytes);
}

constexpr Functions kRecording{nullptr, &record_malloc, &record_calloc, &record_realloc, &record_free};

/// Whether the process may write to the memory. The kernel writes the existing content, and returns an error instead of
/// crashing.
bool is_writable(Functions& functions) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return false;
  }
  constexpr ssize_t kSize = sizeof(functions);
  const bool writable = write(ends[1], &functions, kSize) == kSize && read(ends[0], &functions, kSize) == kSize;
  close(ends[0]);
  close(ends[1]);
  return writable;
}

/// Exchanges each function atomically, if it has the expected value: other threads may be calling them.
void exchange(Functions& functions, const Functions& from, const Functions& to) noexcept {
  const auto each = [&](auto member) {
    auto expected = from.*member;
    std::atomic_ref(functions.*member).compare_exchange_strong(expected, to.*member, std::memory_order_acq_rel);
  };
  each(&Functions::malloc), each(&Functions::calloc), each(&Functions::realloc), each(&Functions::free);
}

}  // namespace

NumpyDefault& NumpyDefault::process() noexcept {
  static constinit NumpyDefault watch;
  return watch;
}

std::string NumpyDefault::watch(NumpyHandler& handler) {
  const std::string_view name(handler.name.data(), std::ranges::find(handler.name, '\0') - handler.name.begin());
  Functions& functions = handler.functions;
  if (name != kDefaultName || handler.version != NumpyHandler::kVersion || functions.context != nullptr) {
    return std::string("NumPy's default handler is \"").append(name) + "\" of version " +
           std::to_string(handler.version) + ", which is not known";
  }
  if (handler_ != &handler) {
    if (users_ != 0 || records(handler) || !is_writable(functions)) {
      return "NumPy's default handler cannot be changed";
    }
    own = functions;
    handler_ = &handler;
  }
  if (users_++ == 0) {
    exchange(functions, own, kRecording);
  }
  return "";
}

void NumpyDefault::unwatch() noexcept {
  if (users_ == 0) {
    return;
  }
  --users_;
  if (users_ == 0) {
    exchange(handler_->functions, kRecording, own);
  }
}

NumpyWrapper::NumpyWrapper(const NumpyHandler& wrapped) noexcept : handler_(wrapped), wrapped_(wrapped.functions) {
  handler_.functions = kRecording;
  handler_.functions.context = &wrapped_;
}

bool leave_out_numpy(bool leave_out) noexcept { return std::exchange(here.left_out, leave_out); }

bool records(const NumpyHandler& handler) noexcept { return handler.functions.malloc == &record_malloc; }

}  // namespace gpuscope::memory
