// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpuscope::session {

/// Says in a part of a file in which region the program is: a checksum (FNV-1a, 32 bits) and the name, cut to what fits
/// and filled up with zeros. `monitor/programs.py` reads it.
///
/// The file is written to and not mapped, as whoever cuts it short would end the program. Once there is one, its
/// descriptor stays for good, so that the decode thread never writes to another file that has its number; where the
/// program has closed it, nothing is written. `show` is the decode thread's, the rest one thread's at a time. Nothing
/// in the child of a fork.
class ShownRegion {
 public:
  static constexpr std::size_t kBytes = 200;

  static ShownRegion& process();

  /// The descriptor is duplicated. Throws std::system_error where there is none left.
  void begin(int file, int64_t offset);
  void end() noexcept { process_.store(0); }
  void show(std::string_view name) noexcept;

 private:
  using Bytes = std::array<char, kBytes>;

  bool holds_file() const noexcept;

  std::atomic<pid_t> process_{0};  // that shows something; 0: nothing is shown
  std::atomic<bool> is_new_{false};
  std::atomic<int> file_{-1};
  std::atomic<dev_t> device_{0};  // and inode: which file the descriptor is of
  std::atomic<ino_t> inode_{0};
  std::atomic<int64_t> offset_{0};
  Bytes last_{};  // that was written
};

}  // namespace gpuscope::session
