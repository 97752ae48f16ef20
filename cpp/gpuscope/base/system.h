// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace gpuscope::base {

/// The system's number of the calling thread, asked for once a thread. Any thread, any moment.
uint32_t thread_id() noexcept;

/// Keeps the process's dictionaries (Names, Stacks) and thread_id usable in children that it forks: none inherits a
/// lock that nobody will release. From the first call on; to be called by whatever has other threads use them. Any
/// thread.
void survive_forks();

/// A small file's content; empty when it cannot be read. Any thread.
///
/// Not by iostreams, here or elsewhere in this library: `import torch` (2.11) crashes inside libstdc++'s streams when
/// they were used in the process before.
std::string read_file(const char* path);

}  // namespace gpuscope::base
