// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gpuscope/exporters/output.h"
#include "gpuscope/exporters/perfetto_fields.h"
#include "gpuscope/exporters/perfetto_names.h"
#include "gpuscope/exporters/proto_writer.h"

namespace gpuscope::exporters {

/// What an event tells beside its name. Reused from event to event.
struct EventDetails {
  struct Number {
    uint32_t label;
    uint64_t value;
  };
  struct Text {
    uint32_t label;
    uint32_t name;
  };
  uint64_t flow = 0;           // an arrow that begins or ends here; 0 for none
  uint64_t backward_flow = 0;  // another, from a forward operator
  uint32_t category = store::kNone;
  std::vector<Number> numbers;
  std::vector<Text> texts;

  void clear() {
    flow = backward_flow = 0;
    category = store::kNone;
    numbers.clear();
    texts.clear();
  }
};

/// The events of one track after another, each track a packet sequence of its own: its defaults name the track and a
/// clock that counts from packet to packet, which leaves about ten bytes an event. Times of a track must not go back.
class PerfettoSequence {
 public:
  PerfettoSequence(Output& out, PerfettoNames& names) : out_(out), proto_(out), names_(names) {}

  void begin_track(uint64_t track, int64_t base_ns);
  void begin_slice(int64_t at_ns, uint32_t name, const EventDetails& details) {
    put(perfetto::EventType::Begin, at_ns, name, details);
  }
  void put_instant(int64_t at_ns, uint32_t name, const EventDetails& details) {
    put(perfetto::EventType::Instant, at_ns, name, details);
  }
  void end_slice(int64_t at_ns);
  void put_counter(int64_t at_ns, uint64_t value);

 private:
  struct New {
    uint32_t field;
    uint32_t id;
    uint32_t name;
  };
  void put(perfetto::EventType type, int64_t at_ns, uint32_t name, const EventDetails& details);
  std::size_t begin_packet(int64_t at_ns);
  uint32_t intern(Interner& interner, uint32_t field, uint32_t name);

  Output& out_;
  ProtoWriter proto_;
  PerfettoNames& names_;
  Interner event_names_, categories_, labels_, texts_;
  std::vector<New> new_;
  uint32_t sequence_ = 1;  // 1 is the sequence of the tracks' descriptions
  int64_t last_ns_ = 0;
};

}  // namespace gpuscope::exporters
