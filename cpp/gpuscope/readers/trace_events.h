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

/// What a column of integers has where the event says nothing, or nothing that is one.
inline constexpr int64_t kNotGiven = INT64_MIN;

/// Events of a trace in Chrome's format, a row each. Texts are ids of TraceEvents::strings().
struct EventColumns {
  std::vector<uint8_t> phase;      // its letter
  std::vector<uint32_t> category;  // of texts, here and below: store::kNone where there is none
  std::vector<uint32_t> name;
  std::vector<uint32_t> place;                 // process and thread: a number of TraceEvents::places()
  std::vector<int64_t> start_ns;               // since the trace's own beginning
  std::vector<int64_t> duration_ns;            // 0 where there is none; kNotGiven of a span without, or with no number
  std::vector<int64_t> id;                     // of an arrow
  std::vector<std::vector<int64_t>> integers;  // of the arguments that were asked for
  std::vector<std::vector<uint32_t>> texts;

  std::size_t size() const noexcept { return phase.size(); }
};

/// Reads a trace in Chrome's format as it comes: `{"traceEvents": [...], ...}`, or the list alone. One thread at a
/// time.
///
/// Rows go to `take`, so that memory is in proportion to what lies between two calls of it. Events of other phases than
/// those that were asked for are passed over, as is what makes no sense where it stands.
class TraceEvents {
 public:
  /// A process or a thread as the trace calls it: a number, a text or nothing.
  struct Tag {
    enum class Kind : uint8_t { None, Number, Text };
    Kind kind = Kind::None;
    int64_t value = 0;  // the number, or the text's id
    auto operator<=>(const Tag&) const = default;
  };
  using Place = std::pair<Tag, Tag>;

  /// `phases`: letters of those to be read. `integers`, `texts`: the arguments to be read, as numbers (which may stand
  /// there as texts) or as texts; lists and objects read as their JSON. `aliases`: further names of some of these.
  TraceEvents(std::string_view phases, const std::vector<std::string>& integers, const std::vector<std::string>& texts,
              const std::vector<std::pair<std::string, std::string>>& aliases = {});

  /// The next part of the file. Throws CorruptTrace, without a path, where it is no JSON; the events before that
  /// place remain.
  void feed(std::string_view text);
  /// Nothing more comes.
  void finish();

  /// What was read since the last call.
  EventColumns take();

  /// Whether there was a list of events.
  bool has_list() const noexcept { return has_list_; }
  /// Whether the file was whole, known after `finish`.
  bool is_whole() const noexcept;
  /// Where the last whole value ended, in bytes.
  uint64_t offset() const noexcept { return offset_; }
  /// The first 1,000 values beside the list as JSON, those of more than a MiB left out.
  const std::vector<std::pair<std::string, std::string>>& facts() const noexcept { return facts_; }
  const std::vector<Place>& places() const noexcept { return places_; }
  /// How the file so far differs from JSON.
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
  std::vector<int64_t> integers_;  // of the event that is being read
  std::vector<uint32_t> texts_;
  EventColumns rows_;
  base::StringTable strings_;
  std::map<Place, uint32_t> numbers_;
  std::vector<Place> places_;
  std::vector<std::pair<std::string, std::string>> facts_;
  JsonDialect dialect_;
  std::string unread_;
  std::size_t wait_for_ = 0;  // bytes: a value that is longer than what comes at once is not begun with each part
  uint64_t offset_ = 0;
  State state_ = State::Start;
  bool is_first_ = true;  // of its list or object
  bool is_bare_ = false;  // a list without an object around it, which may lack its end
  bool has_list_ = false;
  bool is_damaged_ = false;
};

}  // namespace gpuscope::readers
