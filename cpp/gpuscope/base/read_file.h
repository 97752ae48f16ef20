// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace gpuscope::base {

/// A small file's content; empty when it cannot be read.
///
/// Not by iostreams, here or elsewhere in this library: `import torch` (2.11) crashes inside libstdc++'s streams when
/// they were used in the process before.
inline std::string read_file(const char* path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb"), &std::fclose);
  std::string content;
  char piece[4096];
  while (file != nullptr) {
    const std::size_t got = std::fread(piece, 1, sizeof(piece), file.get());
    if (got == 0) {
      break;
    }
    content.append(piece, got);
  }
  return content;
}

}  // namespace gpuscope::base
