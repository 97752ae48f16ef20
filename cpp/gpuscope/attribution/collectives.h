// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "gpuscope/base/flat_map.h"
#include "gpuscope/store/store.h"

namespace gpuscope::attribution {

/// NCCL's communicators, and the numbers of the calls on them. Only for the decode thread.
///
/// A number counts the calls since the session began to listen, in windows and between them.
class Collectives {
 public:
  /// What NCCL's NVTX payload says of a call. Values of fields that it does not have are empty.
  struct Payload {
    std::optional<uint64_t> communicator, bytes, size, rank;
  };
  /// Takes one field of a payload.
  static void read(std::string_view name, uint64_t value, Payload& into) noexcept;

  /// A call of the NCCL function `name`. Returns its row without the region if it is a collective, a send or a receive.
  std::optional<store::Collectives::Row> call(std::string_view name, const Payload& payload, int64_t at_ns);
  /// At the end of a window, or during it: writes a row for each communicator.
  void write(store::Store& store) const;

 private:
  store::Communicators::Row& find(uint64_t id, int64_t at_ns);
  store::Communicators::Row& add(const store::Communicators::Row& row);

  std::vector<store::Communicators::Row> communicators_;
  base::FlatMap<uint32_t> latest_;  // by id
};

}  // namespace gpuscope::attribution
