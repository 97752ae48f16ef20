// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "gpuscope/base/errors.h"

namespace gpuscope::base {
namespace {

[[noreturn]] void fail(const char* doing, const std::string& path) {
  throw base::Error(std::string("cannot ") + doing + " " + path + ": " + std::strerror(errno));
}

/// A name in the same folder, the only place from which a file can take another name in one step. It owes nothing to
/// the path's own name, which may be as long as names can be.
std::string temporary_beside(const std::string& path) {
  static std::atomic<unsigned> count{0};
  const std::size_t folder = path.rfind('/');
  return path.substr(0, folder == std::string::npos ? 0 : folder + 1) + ".gpuscope-" + std::to_string(getpid()) + "-c" +
         std::to_string(count.fetch_add(1)) + ".tmp";
}

}  // namespace

InputFile::InputFile(std::string path)
    // Non-blocking, or a named pipe would wait here for its writer.
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

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  do {  // a process that died may have left a file of that name
    temporary_ = temporary_beside(path_);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) {
    fail("write", path_);
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) {
    close(descriptor_);
    unlink(temporary_.c_str());
  }
}

void OutputFile::write(const void* data, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t put = ::write(descriptor_, static_cast<const char*>(data) + done, bytes - done);
    if (put < 0 && errno != EINTR) {
      fail("write", path_);
    }
    done += put > 0 ? static_cast<std::size_t>(put) : 0;
  }
}

void OutputFile::commit() {
  // The name changes hands before the descriptor closes, so that a failure here still finds a file to remove.
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("write", path_);
  }
  close(std::exchange(descriptor_, -1));
}

}  // namespace gpuscope::base
