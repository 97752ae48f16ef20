// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace gpuscope::base {

/// Copies memory of this process that other threads may free or unmap meanwhile. Missing memory is not copied, and
/// nothing faults. Present memory may change during the copy.
///
/// Only for the thread that opens it, which must be a thread of this package: open detaches it from the program's file
/// descriptors. The kernel copies into a memory file, whose descriptor no other thread can close or reuse. If a sandbox
/// forbids that, the slower process_vm_readv is used.
class MemoryReader {
 public:
  struct Piece {
    uintptr_t address;
    uint32_t bytes;
  };
  static constexpr std::size_t kMaxPieces = 512;  // per copy; the system allows 1024
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 18;

  MemoryReader() = default;
  MemoryReader(const MemoryReader&) = delete;
  MemoryReader& operator=(const MemoryReader&) = delete;
  ~MemoryReader();

  /// False if the system offers no way.
  bool open() noexcept;

  /// Copies the pieces one after another to `data()`. Returns how many leading pieces are complete.
  std::size_t copy(std::span<const Piece> pieces) noexcept;
  /// Of the latest copy.
  const std::byte* data() const noexcept { return data_; }

  /// Reads one value. False if the memory is missing.
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
