// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpuscope/nvtx/ranges.h"

struct nvtxEventAttributes_v2;

namespace gpuscope::nvtx {

/// The Names id of a text, "(no name)" for null.
template <class Text>
uint32_t text_id(Thread& thread, const Text* text) noexcept {
  if (text == nullptr) {
    return no_name();
  }
  TextCache* texts = thread.texts();
  constexpr auto kEncoding = Encoding{sizeof(Text)};
  return texts != nullptr ? texts->id_of(bytes_of(text), kEncoding) : intern(bytes_of(text), kEncoding);
}

/// Appends category and payload as Arguments and returns the id of the message.
uint32_t describe(Thread& thread, base::EventLog& log, Domain domain,
                  const nvtxEventAttributes_v2* attributes) noexcept;

}  // namespace gpuscope::nvtx
