// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpuscope::driver {

/// A vendor library opened at run time, never closed: its threads and callbacks outlive any use of ours.
class Library {
 public:
  Library() = default;

  /// Takes the first of: a copy already mapped into the process, the given paths in their order. Not loaded when none
  /// opens; why() then tells what dlopen said of the last one.
  static Library open(const std::vector<std::string>& sonames, const std::vector<std::string>& paths);

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// nullptr when the library lacks it.
  void* symbol(const char* name) const noexcept;
  template <class Function>
  void load(const char* name, Function*& function) const noexcept {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  /// The file the library was mapped from.
  const std::string& path() const noexcept { return path_; }
  const std::string& why() const noexcept { return why_; }

 private:
  void* handle_ = nullptr;
  std::string path_;
  std::string why_;
};

/// Files mapped into this process whose name begins with `prefix`, as "libcupti.so".
std::vector<std::string> mapped_files(const std::string& prefix);

}  // namespace gpuscope::driver
