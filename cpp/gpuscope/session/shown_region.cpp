// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/shown_region.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace gpuscope::session {
namespace {

constexpr std::size_t kTextAt = sizeof(uint32_t);

uint32_t checksum(std::string_view bytes) noexcept {
  uint32_t sum = 2166136261U;
  for (const char byte : bytes) {
    sum = (sum ^ static_cast<unsigned char>(byte)) * 16777619U;
  }
  return sum;
}

/// The text up to `most` bytes, without a partial UTF-8 character.
std::string_view cut(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) {
    return text;
  }
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) {
    --most;
  }
  return text.substr(0, most);
}

}  // namespace

ShownRegion& ShownRegion::process() {
  static ShownRegion shown;
  return shown;
}

bool ShownRegion::holds_file() const noexcept {
  struct stat found {};
  return file_ >= 0 && fstat(file_, &found) == 0 && found.st_dev == device_ && found.st_ino == inode_;
}

void ShownRegion::begin(int file, int64_t offset) {
  end();
  struct stat found {};
  const int copy = fstat(file, &found) == 0 ? fcntl(file, F_DUPFD_CLOEXEC, 0) : -1;
  if (copy < 0) {
    throw std::system_error(errno, std::generic_category(), "fcntl");
  }
  if (!holds_file()) {  // the first call, or the program closed the descriptor and may have reused its number
    file_ = copy;
  } else {
    dup3(copy, file_, O_CLOEXEC);
    close(copy);
  }
  device_ = found.st_dev;
  inode_ = found.st_ino;
  offset_ = offset;
  is_new_.store(true);
  process_.store(getpid());
}

void ShownRegion::show(std::string_view name) noexcept {
  const pid_t process = process_.load();
  if (process == 0 || process != getpid()) {
    return;
  }
  Bytes bytes{};
  const std::string_view text = cut(name, kBytes - kTextAt);
  std::ranges::copy(text, bytes.begin() + kTextAt);
  const uint32_t sum = checksum({bytes.data() + kTextAt, kBytes - kTextAt});
  std::memcpy(bytes.data(), &sum, sizeof(sum));
  if ((is_new_.exchange(false) || bytes != last_) && holds_file()) {
    last_ = bytes;
    static_cast<void>(!pwrite(file_, bytes.data(), bytes.size(), offset_));
  }
}

}  // namespace gpuscope::session
