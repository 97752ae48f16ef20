// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/memory_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

namespace gpuscope::base {
namespace {

// User space ends at 2^47 (x86-64) or 2^48 (aarch64). An address beyond it makes the whole copy fail.
constexpr uintptr_t kFirstAddress = 4096;
#ifdef __aarch64__
constexpr int kAddressBits = 48;
#else
constexpr int kAddressBits = 47;
#endif
constexpr uintptr_t kLastAddress = (uintptr_t{1} << kAddressBits) - 4096;

constexpr unsigned kUnshareFiles = 2;  // CLOSE_RANGE_UNSHARE, of Linux 5.9
#ifdef SYS_close_range
constexpr long kCloseRange = SYS_close_range;
#else
constexpr long kCloseRange = 436;  // on every architecture
#endif

}  // namespace

MemoryReader::~MemoryReader() {
  if (data_ != nullptr) {
    munmap(data_, kMaxBytes);
  }
  // The thread's end closes the file. On any other thread its number is a file of the program.
}

bool MemoryReader::open_file() noexcept {
  if (syscall(kCloseRange, 0U, ~0U, kUnshareFiles) != 0) {
    return false;
  }
  // Sealed: another process of the user could truncate it, and an access beyond its end would end the program.
  file_ = memfd_create("gpuscope", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file_ < 0 || ftruncate(file_, kMaxBytes) != 0 || fcntl(file_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return false;
  }
  void* mapped = mmap(nullptr, kMaxBytes, PROT_READ, MAP_SHARED, file_, 0);
  if (mapped == MAP_FAILED) {
    return false;
  }
  data_ = static_cast<std::byte*>(mapped);
  return true;
}

/// Whether present memory is copied, and missing memory is reported.
bool MemoryReader::is_copied() noexcept {
  constexpr std::string_view kText = "gpuscope";
  const std::array pieces{Piece{reinterpret_cast<uintptr_t>(kText.data()), static_cast<uint32_t>(kText.size())},
                          Piece{kFirstAddress, 8}};
  const std::size_t copied = copy(pieces);
  return copied == 1 && std::memcmp(data_, kText.data(), kText.size()) == 0;
}

bool MemoryReader::open() noexcept {
  way_ = Way::File;
  if (open_file() && is_copied()) {
    return true;
  }
  if (data_ != nullptr) {
    munmap(data_, kMaxBytes);
    data_ = nullptr;
  }
  void* memory = mmap(nullptr, kMaxBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    way_ = Way::None;
    return false;
  }
  data_ = static_cast<std::byte*>(memory);
  way_ = Way::Call;
  if (is_copied()) {
    return true;
  }
  way_ = Way::None;
  return false;
}

std::size_t MemoryReader::copy(std::span<const Piece> pieces) noexcept {
  std::array<iovec, kMaxPieces> parts;
  std::size_t count = 0;
  std::size_t wanted = 0;
  for (const Piece& piece : pieces) {
    if (count == kMaxPieces || piece.address < kFirstAddress || piece.address > kLastAddress - piece.bytes ||
        wanted + piece.bytes > kMaxBytes) {
      break;
    }
    wanted += piece.bytes;
    parts[count++] = {reinterpret_cast<void*>(piece.address), piece.bytes};
  }
  if (count == 0 || way_ == Way::None) {
    return 0;
  }
  // Direct system calls: ThreadSanitizer would report a race for the C library's functions.
  long copied = -1;
  if (way_ == Way::File) {
    copied = syscall(SYS_pwritev, file_, parts.data(), count, 0L, 0L);
  } else {
    const iovec target{data_, wanted};
    copied = syscall(SYS_process_vm_readv, getpid(), &target, 1UL, parts.data(), count, 0UL);
  }
  std::size_t whole = 0;
  for (long left = copied; whole < count && left >= static_cast<long>(parts[whole].iov_len); ++whole) {
    left -= static_cast<long>(parts[whole].iov_len);
  }
  return whole;
}

}  // namespace gpuscope::base
