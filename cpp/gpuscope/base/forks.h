// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpuscope::base {

/// Keeps the process's dictionaries (Names, Stacks) usable in children that it forks: none inherits a lock that nobody
/// will release. From the first call on; to be called by whatever has other threads use them. Any thread.
void survive_forks();

}  // namespace gpuscope::base
