// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace gpuscope::base {

/// Copies memory of this process that other threads may free or unmap at that moment: what is not there is not copied,
/// and nothing faults. What is there may change while it is copied.
///
/// The thread that opens it, alone. It gives up the program's files, so that it must be a thread of ours: the kernel
/// copies into a file in memory, whose number no other thread can close or use again. That costs a microsecond and 50
/// ns a piece; process_vm_readv, the way where a sandbox forbids that, three times and 20 times as much.
class MemoryReader {
 public:
  struct Piece {
    uintptr_t address;
    uint32_t bytes;
  };
  static constexpr std::size_t kMaxPieces = 512;  // of one copy; the system takes 1024
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 18;

  MemoryReader() = default;
  MemoryReader(const MemoryReader&) = delete;
  MemoryReader& operator=(const MemoryReader&) = delete;
  ~MemoryReader();

  /// False where the system offers no way.
  bool open() noexcept;

  /// Copies the pieces one behind the other to `data()`; returns how many of them, from the first on, are whole.
  std::size_t copy(std::span<const Piece> pieces) noexcept;
  /// Of the latest copy.
  const std::byte* data() const noexcept { return data_; }

  /// One value; false when it is not there.
  template <class T>
  bool read(uintptr_t address, T& value) noexcept {
    const std::array pieces{Piece{address, sizeof(T)}};
    if (copy(pieces) != 1) {
      return false;
    }
    std::memcpy(&value, data_, sizeof(T));
    return true;
  }

 private:
  enum class Way { None, File, Call };

  bool open_file() noexcept;
  bool is_copied() noexcept;

  Way way_ = Way::None;
  int file_ = -1;
  std::byte* data_ = nullptr;  // the mapped file, or memory
};

}  // namespace gpuscope::base
