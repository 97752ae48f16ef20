// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace gpuscope::base {

/// A regular file open for reading. Failures are base::Error with the system's message.
class InputFile {
 public:
  explicit InputFile(std::string path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const noexcept { return path_; }
  uint64_t size() const noexcept { return size_; }
  /// Reads up to `bytes` from `offset`. Fewer only at the end of the file.
  std::size_t read(uint64_t offset, void* into, std::size_t bytes) const;

 private:
  std::string path_;
  int descriptor_;
  uint64_t size_ = 0;
};

/// Takes the next bytes of an output file.
using Write = std::function<void(std::string_view)>;

/// A small file's content. Empty if it cannot be read. Any thread.
///
/// This library uses no iostreams: `import torch` (2.11) crashes inside libstdc++'s streams if the process used them
/// before.
std::string read_file(const char* path);

/// The CRC-32C (Castagnoli, as in iSCSI, RFC 3720) of `data`, continued from `crc`, at first 0. Any thread.
uint32_t crc32c(const void* data, std::size_t bytes, uint32_t crc = 0) noexcept;

/// crc32c without processor instructions.
uint32_t crc32c_portable(const void* data, std::size_t bytes, uint32_t crc = 0) noexcept;

}  // namespace gpuscope::base
