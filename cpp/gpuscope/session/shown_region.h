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

/// Writes the program's current region into a part of a file: a checksum (FNV-1a, 32 bits) and the name, truncated or
/// padded with zeros. `monitor/programs.py` reads it.
///
/// The file is not mapped: a truncation would then end the program. The descriptor stays open permanently, so that the
/// decode thread never writes to another file with its number. Nothing is written if the program closed it. `show`: the
/// decode thread. The rest: one thread at a time. Does nothing in a forked child.
class ShownRegion {
 public:
  static constexpr std::size_t kBytes = 200;

  static ShownRegion& process();

  /// Duplicates the descriptor. Throws std::system_error if there is none left.
  void begin(int file, int64_t offset);
  void end() noexcept { process_.store(0); }
  void show(std::string_view name) noexcept;

 private:
  using Bytes = std::array<char, kBytes>;

  bool holds_file() const noexcept;

  std::atomic<pid_t> process_{0};  // the process that shows regions; 0: none
  std::atomic<bool> is_new_{false};
  std::atomic<int> file_{-1};
  std::atomic<dev_t> device_{0};  // and inode: identify the descriptor's file
  std::atomic<ino_t> inode_{0};
  std::atomic<int64_t> offset_{0};
  Bytes last_{};  // that was written
};

}  // namespace gpuscope::session
