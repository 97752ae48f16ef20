// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace gpuscope::base {

/// A regular file open for reading. Failures are base::Error with the system's words for them.
class InputFile {
 public:
  explicit InputFile(std::string path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const noexcept { return path_; }
  uint64_t size() const noexcept { return size_; }
  /// Reads up to `bytes` from `offset`; fewer only at the file's end.
  std::size_t read(uint64_t offset, void* into, std::size_t bytes) const;

 private:
  std::string path_;
  int descriptor_;
  uint64_t size_ = 0;
};

/// Takes the next bytes of a file in the making.
using Write = std::function<void(std::string_view)>;

/// A small file's content; empty when it cannot be read. Any thread.
///
/// Not by iostreams, here or elsewhere in this library: `import torch` (2.11) crashes inside libstdc++'s streams when
/// they were used in the process before.
std::string read_file(const char* path);

/// CRC-32C (Castagnoli, as in iSCSI, RFC 3720) of `data` going on from `crc`; begin with 0. Any thread.
uint32_t crc32c(const void* data, std::size_t bytes, uint32_t crc = 0) noexcept;

/// The same without the processor's help.
uint32_t crc32c_portable(const void* data, std::size_t bytes, uint32_t crc = 0) noexcept;

}  // namespace gpuscope::base
