// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace gpuscope::base {

/// Root of everything gpuscope raises on purpose; Python sees the same tree in gpuscope.errors.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A function of libcuda returned an error code. What CUPTI and NVML refuse is no error: it is said in results.
class CudaError : public Error {
 public:
  CudaError(std::string call, int code, const std::string& name)
      : Error(call + " failed with " + name + " (" + std::to_string(code) + ")"), call_(std::move(call)), code_(code) {}
  const std::string& call() const noexcept { return call_; }
  int code() const noexcept { return code_; }

 private:
  std::string call_;
  int code_;
};

/// Something this machine or process cannot give: what, why, and the one step that would change it.
class NotAvailable : public Error {
 public:
  NotAvailable(const std::string& what, const std::string& why, const std::string& fix)
      : Error(what + " is not available: " + why + (fix.empty() ? "" : "; " + fix)) {}
};

class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A trace file that cannot be read past `offset`.
class CorruptTrace : public Error {
 public:
  CorruptTrace(const std::string& path, uint64_t offset, const std::string& why, std::string_view advice = {})
      : Error(path + ": " + why + " at byte " + std::to_string(offset) + std::string(advice)),
        path_(path),
        offset_(offset) {}
  const std::string& path() const noexcept { return path_; }
  uint64_t offset() const noexcept { return offset_; }

 private:
  std::string path_;
  uint64_t offset_;
};

/// Has the C++ library take the memory now that it needs once a thread: where it finds none at a throw, glibc ends the
/// process. Volatile, as the function is declared to be pure.
inline void prepare_to_throw() noexcept { [[maybe_unused]] const volatile int count = std::uncaught_exceptions(); }

}  // namespace gpuscope::base
