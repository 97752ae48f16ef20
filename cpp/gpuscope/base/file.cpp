// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "gpuscope/base/errors.h"

#ifdef __x86_64__
#include <nmmintrin.h>
#endif

namespace gpuscope::base {
namespace {

[[noreturn]] void fail(const char* doing, const std::string& path) {
  throw base::Error(std::string("cannot ") + doing + " " + path + ": " + std::strerror(errno));
}

}  // namespace

InputFile::InputFile(std::string path)
    // Non-blocking: otherwise a named pipe would wait for its writer.
    : path_(std::move(path)), descriptor_(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) {
    fail("open", path_);
  }
  struct stat status {};
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    throw base::Error("cannot open " + path_ + ": it is " + (S_ISDIR(status.st_mode) ? "a directory" : "no file"));
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

InputFile::~InputFile() { close(descriptor_); }

std::size_t InputFile::read(uint64_t offset, void* into, std::size_t bytes) const {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        pread(descriptor_, static_cast<char*>(into) + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno != EINTR) {
      fail("read", path_);
    }
    if (got == 0) {
      break;
    }
    done += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return done;
}

namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

// table[k][b]: the CRC of byte b followed by k zero bytes. Eight bytes then need eight independent look-ups.
constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kPolynomial : 0U);
    }
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8) ^ tables[0][crc & 0xFFU];
    }
  }
  return tables;
}();

uint64_t load8(const unsigned char* at) noexcept {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const void* data, std::size_t bytes, uint32_t crc) noexcept {
  const auto* at = static_cast<const unsigned char*>(data);
  uint64_t state = ~crc;
  for (; bytes >= 8; at += 8, bytes -= 8) {
    state = _mm_crc32_u64(state, load8(at));
  }
  auto narrow = static_cast<uint32_t>(state);
  for (; bytes > 0; ++at, --bytes) {
    narrow = _mm_crc32_u8(narrow, *at);
  }
  return ~narrow;
}
#endif

}  // namespace

std::string read_file(const char* path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb"), &std::fclose);
  std::string content;
  char chunk[4096];
  while (file != nullptr) {
    const std::size_t got = std::fread(chunk, 1, sizeof(chunk), file.get());
    if (got == 0) {
      break;
    }
    content.append(chunk, got);
  }
  return content;
}

uint32_t crc32c_portable(const void* data, std::size_t bytes, uint32_t crc) noexcept {
  const auto* at = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; bytes >= 8; at += 8, bytes -= 8) {
    const uint64_t word = load8(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFFU];
    }
  }
  for (; bytes > 0; ++at, --bytes) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xFFU];
  }
  return ~crc;
}

uint32_t crc32c(const void* data, std::size_t bytes, uint32_t crc) noexcept {
#ifdef __x86_64__
  static const bool fast = __builtin_cpu_supports("sse4.2") != 0;
  if (fast) {
    return crc32c_sse42(data, bytes, crc);
  }
#endif
  return crc32c_portable(data, bytes, crc);
}

}  // namespace gpuscope::base
