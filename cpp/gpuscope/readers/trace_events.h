// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpuscope/base/strings.h"
#include "gpuscope/readers/json.h"

namespace gpuscope::readers {

/// The value of an integer column if the event has none, or no valid one.
inline constexpr int64_t kNotGiven = INT64_MIN;

/// Events of a trace in Chrome's format, one row each. Texts are ids of TraceEvents::strings().
struct EventColumns {
  std::vector<uint8_t> phase;      // its letter
  std::vector<uint32_t> category;  // ids of texts, here and below: store::kNone for none
  std::vector<uint32_t> name;
  std::vector<uint32_t> place;                 // process and thread: index in TraceEvents::places()
  std::vector<int64_t> start_ns;               // since the beginning of the trace
  std::vector<int64_t> duration_ns;            // 0 for events without one; kNotGiven for spans without a valid one
  std::vector<int64_t> id;                     // of an arrow
  std::vector<std::vector<int64_t>> integers;  // of the requested arguments
  std::vector<std::vector<uint32_t>> texts;

  std::size_t size() const noexcept { return phase.size(); }
};

/// Reads a trace in Chrome's format in parts: `{"traceEvents": [...], ...}`, or only the list. One thread at a time.
///
/// take returns the rows, so memory is proportional to the events between two calls. Skips events of other phases, and
/// values that make no sense.
class TraceEvents {
 public:
  /// A process or thread in the trace: a number, a text or nothing.
  struct Tag {
    enum class Kind : uint8_t { None, Number, Text };
    Kind kind = Kind::None;
    int64_t value = 0;  // the number, or the text's id
    auto operator<=>(const Tag&) const = default;
  };
  using Place = std::pair<Tag, Tag>;

  /// `phases`: letters of the phases to read. `integers`, `texts`: arguments to read as numbers (possibly written as
  /// texts) or as texts. Lists and objects read as their JSON. `aliases`: other names of arguments.
  TraceEvents(std::string_view phases, const std::vector<std::string>& integers, const std::vector<std::string>& texts,
              const std::vector<std::pair<std::string, std::string>>& aliases = {});

  /// Reads the next part of the file. Throws CorruptTrace, without a path, if it is not JSON. Earlier events stay.
  void feed(std::string_view text);
  /// Nothing more comes.
  void finish();

  /// The events since the last call.
  EventColumns take();

  /// Whether there was a list of events.
  bool has_list() const noexcept { return has_list_; }
  /// Whether the file was complete, known after `finish`.
  bool is_whole() const noexcept;
  /// The end of the last complete value, in bytes.
  uint64_t offset() const noexcept { return offset_; }
  /// The first 1,000 values outside the list as JSON, except values above 1 MiB.
  const std::vector<std::pair<std::string, std::string>>& facts() const noexcept { return facts_; }
  const std::vector<Place>& places() const noexcept { return places_; }
  /// The deviations from JSON so far.
  JsonDialect dialect() const noexcept { return dialect_; }
  const base::StringTable& strings() const noexcept { return strings_; }
  base::StringTable& strings() noexcept { return strings_; }

 private:
  enum class State : uint8_t { Start, Members, Events, End };
  enum class Field : uint8_t { Other, Phase, Category, Name, Process, Thread, Start, Duration, Id, Arguments };
  struct Argument {
    bool is_text;
    std::size_t column;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return base::hash(text); }
  };
  struct Row;

  static Field field_of(std::string_view name) noexcept;
  void parse();
  void step(JsonScanner& json);
  void read_member(JsonScanner& json);
  void read_event(JsonScanner& json);
  void read_field(JsonScanner& json, Field field, Row& row);
  void read_arguments(JsonScanner& json);
  void append(const Row& row);
  uint32_t text_id(std::string_view text);
  Tag tag_of(const JsonValue& value);
  uint32_t place_of(const Place& place);

  std::string phases_;
  std::unordered_map<std::string, Argument, Hash, std::equal_to<>> arguments_;
  std::vector<int64_t> integers_;  // of the current event
  std::vector<uint32_t> texts_;
  EventColumns rows_;
  base::StringTable strings_;
  std::map<Place, uint32_t> numbers_;
  std::vector<Place> places_;
  std::vector<std::pair<std::string, std::string>> facts_;
  JsonDialect dialect_;
  std::string unread_;
  std::size_t wait_for_ = 0;  // bytes: a value longer than several parts is not parsed again at each part
  uint64_t offset_ = 0;
  State state_ = State::Start;
  bool is_first_ = true;  // of its list or object
  bool is_bare_ = false;  // a list without an object around it; its end may be missing
  bool has_list_ = false;
  bool is_damaged_ = false;
};

}  // namespace gpuscope::readers
