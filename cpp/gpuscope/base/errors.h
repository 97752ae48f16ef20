// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace gpuscope::base {

/// Base of all errors that gpuscope raises. gpuscope.errors has the same tree.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A function of libcuda returned an error code. Refusals of CUPTI and NVML are no errors: results report them.
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

/// A feature that this machine or process lacks: the feature, the reason, and the fix.
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

/// Makes the C++ library allocate its per-thread exception state now. If a throw finds no memory for it, glibc ends the
/// process. Volatile, as the function is declared pure.
inline void prepare_to_throw() noexcept { [[maybe_unused]] const volatile int count = std::uncaught_exceptions(); }

}  // namespace gpuscope::base
