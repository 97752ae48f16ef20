// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/exporters/perfetto_sequence.h"

namespace gpuscope::exporters {

using namespace perfetto;

void PerfettoSequence::begin_track(uint64_t track, int64_t base_ns) {
  event_names_.restart();
  categories_.restart();
  labels_.restart();
  texts_.restart();
  ++sequence_;
  last_ns_ = base_ns;

  const std::size_t in_packet = proto_.begin(kTracePacket);
  proto_.number(packet::kSequence, sequence_);
  proto_.number(packet::kSequenceFlags, kIncrementalStateCleared);
  const std::size_t in_defaults = proto_.begin(packet::kDefaults);
  proto_.number(defaults::kTimestampClock, kDeltaClock);
  const std::size_t in_event = proto_.begin(defaults::kTrackEvent);
  proto_.number(event::kTrack, track);
  proto_.end(in_event);
  proto_.end(in_defaults);
  const std::size_t in_snapshot = proto_.begin(packet::kClockSnapshot);
  for (const uint64_t clock : {kDeltaClock, kBoottime}) {
    const std::size_t in_clock = proto_.begin(snapshot::kClock);
    proto_.number(snapshot::kClockId, clock);
    proto_.number(snapshot::kTimestamp, static_cast<uint64_t>(base_ns));
    if (clock == kDeltaClock) {
      proto_.number(snapshot::kIsIncremental, 1);
    }
    proto_.end(in_clock);
  }
  proto_.end(in_snapshot);
  proto_.end(in_packet);
  out_.cut();
}

void PerfettoSequence::end_slice(int64_t at_ns) {
  const std::size_t in_packet = begin_packet(at_ns);
  const std::size_t in_event = proto_.begin(packet::kTrackEvent);
  proto_.number(event::kType, static_cast<uint64_t>(EventType::End));
  proto_.end(in_event);
  proto_.end(in_packet);
  out_.cut();
}

void PerfettoSequence::put_counter(int64_t at_ns, uint64_t value) {
  const std::size_t in_packet = begin_packet(at_ns);
  const std::size_t in_event = proto_.begin(packet::kTrackEvent);
  proto_.number(event::kType, static_cast<uint64_t>(EventType::Counter));
  proto_.number(event::kCounterValue, value);
  proto_.end(in_event);
  proto_.end(in_packet);
  out_.cut();
}

void PerfettoSequence::put(EventType type, int64_t at_ns, uint32_t name, const EventDetails& details) {
  const std::size_t in_packet = begin_packet(at_ns);
  const std::size_t in_event = proto_.begin(packet::kTrackEvent);
  proto_.number(event::kType, static_cast<uint64_t>(type));
  proto_.number(event::kName, intern(event_names_, interned::kEventNames, name));
  if (details.category != store::kNone) {
    proto_.number(event::kCategory, intern(categories_, interned::kCategories, details.category));
  }
  for (const uint64_t flow : {details.flow, details.backward_flow}) {
    if (flow != 0) {
      proto_.number(event::kFlow, flow);
    }
  }
  for (const auto& [label, text] : details.texts) {
    const std::size_t in_annotation = proto_.begin(event::kAnnotation);
    proto_.number(annotation::kName, intern(labels_, interned::kAnnotationNames, label));
    proto_.number(annotation::kText, intern(texts_, interned::kTexts, text));
    proto_.end(in_annotation);
  }
  for (const auto& [label, value] : details.numbers) {
    const std::size_t in_annotation = proto_.begin(event::kAnnotation);
    proto_.number(annotation::kName, intern(labels_, interned::kAnnotationNames, label));
    proto_.number(annotation::kNumber, value);
    proto_.end(in_annotation);
  }
  proto_.end(in_event);
  if (!new_.empty()) {
    const std::size_t in_data = proto_.begin(packet::kInternedData);
    for (const New& entry : new_) {
      const std::size_t in_entry = proto_.begin(entry.field);
      proto_.number(interned::kId, entry.id);
      proto_.text(interned::kValue, names_.text(entry.name));
      proto_.end(in_entry);
    }
    proto_.end(in_data);
    new_.clear();
  }
  proto_.end(in_packet);
  out_.cut();
}

std::size_t PerfettoSequence::begin_packet(int64_t at_ns) {
  const std::size_t in_packet = proto_.begin(kTracePacket);
  proto_.number(packet::kTimestamp, static_cast<uint64_t>(at_ns - last_ns_));
  proto_.number(packet::kSequence, sequence_);
  last_ns_ = at_ns;
  return in_packet;
}

uint32_t PerfettoSequence::intern(Interner& interner, uint32_t field, uint32_t name) {
  uint32_t id = 0;
  if (interner.add(name, id)) {
    new_.push_back({field, id, name});
  }
  return id;
}

}  // namespace gpuscope::exporters
