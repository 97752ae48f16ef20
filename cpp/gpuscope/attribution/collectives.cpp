// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/attribution/collectives.h"

#include <array>
#include <utility>

namespace gpuscope::attribution {
namespace {

using store::CollectiveKind;

// Bounds the memory of programs that create communicators without end: later ones are not told apart.
constexpr std::size_t kMostCommunicators = std::size_t{1} << 16;

// The functions of nccl.h. Prefixes of other names come after them.
constexpr std::array<std::pair<std::string_view, CollectiveKind>, 10> kFunctions{{
    {"ncclAllReduce", CollectiveKind::AllReduce},
    {"ncclAllGather", CollectiveKind::AllGather},
    {"ncclReduceScatter", CollectiveKind::ReduceScatter},
    {"ncclBroadcast", CollectiveKind::Broadcast},
    {"ncclReduce", CollectiveKind::Reduce},
    {"ncclAlltoAll", CollectiveKind::AllToAll},
    {"ncclSend", CollectiveKind::Send},
    {"ncclRecv", CollectiveKind::Recv},
    {"ncclGather", CollectiveKind::Gather},
    {"ncclScatter", CollectiveKind::Scatter},
}};

bool creates_communicator(std::string_view name) noexcept {
  return name.starts_with("ncclCommInit") || name.starts_with("ncclCommSplit") || name.starts_with("ncclCommShrink") ||
         name.starts_with("ncclCommGrow");
}

}  // namespace

void Collectives::read(std::string_view name, uint64_t value, Payload& into) noexcept {
  if (name == "NCCL communicator ID") {
    into.communicator = value;
  } else if (name == "Message size [bytes]") {
    into.bytes = value;
  } else if (name == "No. of ranks") {
    into.size = value;
  } else if (name == "Rank") {
    into.rank = value;
  }
}

std::optional<store::Collectives::Row> Collectives::call(std::string_view name, const Payload& payload, int64_t at_ns) {
  if (!payload.communicator.has_value()) {
    return std::nullopt;
  }
  store::Communicators::Row& communicator = find(*payload.communicator, at_ns);
  if (creates_communicator(name)) {
    if (payload.size.has_value()) {
      const auto size = static_cast<uint32_t>(*payload.size);
      const auto rank = static_cast<uint32_t>(payload.rank.value_or(store::kNone));
      if (communicator.ranks == 0 && communicator.calls == 0) {
        communicator.ranks = size;
        communicator.rank = rank;
      } else {
        add({at_ns, *payload.communicator, 0, communicator.epoch + 1, size, rank});
      }
    }
    return std::nullopt;
  }
  for (const auto& [function, kind] : kFunctions) {
    if (name == function) {
      return store::Collectives::Row{at_ns,
                                     communicator.id,
                                     communicator.calls++,
                                     payload.bytes.value_or(0),
                                     communicator.epoch,
                                     store::kNone,
                                     static_cast<uint16_t>(kind)};
    }
  }
  return std::nullopt;
}

store::Communicators::Row& Collectives::find(uint64_t id, int64_t at_ns) {
  const uint32_t* known = latest_.find(id);
  return known != nullptr ? communicators_[*known] : add({at_ns, id, 0, 0, 0, store::kNone});
}

store::Communicators::Row& Collectives::add(const store::Communicators::Row& row) {
  if (communicators_.size() < kMostCommunicators) {
    communicators_.push_back(row);
    latest_.set(row.id, static_cast<uint32_t>(communicators_.size() - 1));
  }
  return communicators_.back();
}

void Collectives::write(store::Store& store) const {
  store.communicator.truncate(0);  // rows of an earlier call
  for (const store::Communicators::Row& row : communicators_) {
    store.communicator.append(row);
  }
}

}  // namespace gpuscope::attribution
