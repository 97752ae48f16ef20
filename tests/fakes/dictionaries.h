// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpuscope/attribution/dictionaries.h"

namespace gpuscope::fakes {

/// All that dictionaries hold so far, as a window's store has it.
inline store::Store copy_of(attribution::Dictionaries& dictionaries) {
  using store::Target;
  attribution::Renewal copy(dictionaries);
  for (const Target target : {Target::Strings, Target::Paths, Target::Stacks, Target::Variants, Target::Tracks,
                              Target::Threads, Target::Calls}) {
    for (uint64_t row = 0; row < uint64_t{1} << 17; ++row) {
      copy.keep(target, row);
    }
  }
  store::Store store;
  copy.take().move_into(store);
  return store;
}

}  // namespace gpuscope::fakes
