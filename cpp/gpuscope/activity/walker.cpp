// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/activity/walker.h"

namespace gpuscope::activity {

std::size_t Walker::measure(uint8_t* data, std::size_t valid, std::size_t at, uint32_t kind) {
  // Asked for the record after this one, CUPTI reveals this one's length; for the last record it is all that is left.
  void* record = data + at;
  std::size_t end = valid;
  const driver::CuptiResult code = get_next_record_(data, valid, &record);
  if (code == driver::kCuptiSuccess) {
    end = static_cast<std::size_t>(static_cast<uint8_t*>(record) - data);
  } else if (code != driver::kCuptiMaxLimitReached) {
    return 0;  // CUPTI cannot read it either
  }
  if (end <= at || end > valid) {
    return 0;
  }
  const std::size_t stride = end - at;
  // A last record's stride is not learnt: trailing bytes may belong to it or not.
  if (end < valid && kind < strides_.size() && stride <= UINT16_MAX) {
    strides_[kind] = static_cast<uint16_t>(stride);
  }
  return stride;
}

}  // namespace gpuscope::activity
