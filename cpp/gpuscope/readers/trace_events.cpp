// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/readers/trace_events.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "gpuscope/base/errors.h"
#include "gpuscope/store/values.h"

namespace gpuscope::readers {
namespace {

constexpr std::size_t kMostFactBytes = std::size_t{1} << 20;
constexpr std::size_t kMostFacts = 1000;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_number(const JsonValue& value) noexcept { return value.kind == JsonValue::Kind::Number; }
bool is_text(const JsonValue& value) noexcept { return value.kind == JsonValue::Kind::Text; }

/// From a number, or from a text that contains one.
int64_t integer_of(const JsonValue& value) noexcept {
  return is_number(value) || is_text(value) ? to_integer(value.text).value_or(kNotGiven) : kNotGiven;
}

}  // namespace

struct TraceEvents::Row {
  uint8_t phase = 0;
  uint32_t category = store::kNone;
  uint32_t name = store::kNone;
  Place place;
  int64_t start_ns = kNotGiven;
  std::optional<int64_t> duration_ns;
  int64_t id = kNotGiven;
};

TraceEvents::TraceEvents(std::string_view phases, const std::vector<std::string>& integers,
                         const std::vector<std::string>& texts,
                         const std::vector<std::pair<std::string, std::string>>& aliases)
    : phases_(phases), integers_(integers.size()), texts_(texts.size()) {
  for (std::size_t column = 0; column < integers.size(); ++column) {
    arguments_[integers[column]] = {false, column};
  }
  for (std::size_t column = 0; column < texts.size(); ++column) {
    arguments_[texts[column]] = {true, column};
  }
  for (const auto& [alias, name] : aliases) {
    arguments_[alias] = arguments_.at(name);
  }
  take();
}

EventColumns TraceEvents::take() {
  EventColumns taken;
  taken.integers.resize(integers_.size());
  taken.texts.resize(texts_.size());
  std::swap(taken, rows_);
  return taken;
}

void TraceEvents::feed(std::string_view text) {
  unread_.append(text);
  if (unread_.size() >= wait_for_) {
    parse();
  }
}

void TraceEvents::finish() {
  if (state_ == State::Start) {
    unread_ += '\n';  // ends a final number
  }
  parse();
}

bool TraceEvents::is_whole() const noexcept {
  const bool ends_between_events = unread_.find_first_not_of(" \t\r\n,") == std::string::npos;
  return !is_damaged_ && (state_ == State::End || (state_ == State::Events && is_bare_ && ends_between_events));
}

void TraceEvents::parse() {
  const char* const begin = unread_.data();
  JsonScanner json(begin, begin + unread_.size(), dialect_);
  const char* done = begin;
  std::optional<base::CorruptTrace> damage;
  try {
    while (state_ != State::End) {
      step(json);
      done = json.at();
    }
    if (!json.is_at_end()) {
      throw NoJson("something behind its end", json.at());
    }
    done = json.at();
  } catch (const TextEnded&) {
    // The unfinished value continues with the next part.
  } catch (const NoJson& error) {
    damage.emplace("", offset_ + static_cast<uint64_t>(error.at() - begin), error.what());
    is_damaged_ = true;
  }
  dialect_ = json.dialect();
  const auto read = static_cast<std::size_t>(done - begin);
  unread_.erase(0, read);
  offset_ += read;
  wait_for_ = read == 0 ? 2 * unread_.size() : 0;
  if (damage.has_value()) {
    throw base::CorruptTrace(*damage);
  }
}

/// Reads one value, or the syntax around values. Changes nothing before all of it is available.
void TraceEvents::step(JsonScanner& json) {
  switch (state_) {
    case State::Start: {
      if (offset_ == 0 && json.at() == unread_.data() && std::string_view(unread_).starts_with(kByteOrderMark)) {
        json = JsonScanner(json.at() + kByteOrderMark.size(), unread_.data() + unread_.size(), dialect_);
      }
      if (json.accept('{')) {
        state_ = State::Members;
      } else if (json.accept('[')) {
        state_ = State::Events;
        is_bare_ = has_list_ = true;
      } else {
        json.value();
        state_ = State::End;
      }
      return;
    }
    case State::Members:
      if (json.accept('}')) {
        state_ = State::End;
        return;
      }
      if (!is_first_) {
        json.expect(',', "neither a comma nor the end of an object");
      }
      read_member(json);
      return;
    case State::Events: {
      if (!is_first_ && json.peek() != ']') {
        json.expect(',', "neither a comma nor the end of a list");
      }
      const char first = json.peek();  // accepts a comma after the last event, as some tools write it
      if (first == ']') {
        json.accept(']');
        state_ = is_bare_ ? State::End : State::Members;
        is_first_ = false;
        return;
      }
      if (first == '{') {
        read_event(json);
      } else {
        json.value();
      }
      is_first_ = false;
      return;
    }
    case State::End:
      return;
  }
}

void TraceEvents::read_member(JsonScanner& json) {
  const std::string name(json.text());
  json.expect(':', "no colon behind a name");
  if (name == "traceEvents" && json.accept('[')) {
    state_ = State::Events;
    is_first_ = has_list_ = true;
    return;
  }
  json.peek();
  const char* const begin = json.at();
  json.value();
  const auto bytes = static_cast<std::size_t>(json.at() - begin);
  if (bytes <= kMostFactBytes && facts_.size() < kMostFacts) {
    facts_.emplace_back(base::to_utf8(name), base::to_utf8({begin, bytes}));
  }
  is_first_ = false;
}

TraceEvents::Field TraceEvents::field_of(std::string_view name) noexcept {
  static constexpr std::pair<std::string_view, Field> kFields[] = {
      {"ph", Field::Phase},     {"cat", Field::Category}, {"name", Field::Name},
      {"pid", Field::Process},  {"tid", Field::Thread},   {"ts", Field::Start},
      {"dur", Field::Duration}, {"id", Field::Id},        {"args", Field::Arguments},
  };
  for (const auto& [known, field] : kFields) {
    if (name == known) {
      return field;
    }
  }
  return Field::Other;
}

void TraceEvents::read_event(JsonScanner& json) {
  Row row;
  std::fill(integers_.begin(), integers_.end(), kNotGiven);
  std::fill(texts_.begin(), texts_.end(), store::kNone);
  json.expect('{', "no object");
  if (!json.accept('}')) {
    do {
      const Field field = field_of(json.text());
      json.expect(':', "no colon behind a name");
      read_field(json, field, row);
    } while (json.accept(','));
    json.expect('}', "neither a comma nor the end of an object");
  }
  if (row.phase != 0 && phases_.find(static_cast<char>(row.phase)) != std::string::npos) {
    append(row);
  }
}

void TraceEvents::read_field(JsonScanner& json, Field field, Row& row) {
  if (field == Field::Arguments && json.peek() == '{') {
    read_arguments(json);
    return;
  }
  const JsonValue value = json.value();
  switch (field) {
    case Field::Phase:
      row.phase = is_text(value) && value.text.size() == 1 ? static_cast<uint8_t>(value.text[0]) : 0;
      return;
    case Field::Category:
      row.category = is_text(value) ? text_id(value.text) : store::kNone;
      return;
    case Field::Name:
      row.name = is_text(value) ? text_id(value.text) : store::kNone;
      return;
    case Field::Process:
      row.place.first = tag_of(value);
      return;
    case Field::Thread:
      row.place.second = tag_of(value);
      return;
    case Field::Start:
      row.start_ns = is_number(value) || is_text(value) ? us_to_ns(value.text).value_or(kNotGiven) : kNotGiven;
      return;
    case Field::Duration:
      row.duration_ns = is_number(value) || is_text(value) ? us_to_ns(value.text).value_or(kNotGiven) : kNotGiven;
      return;
    case Field::Id:
      row.id = integer_of(value);
      return;
    case Field::Arguments:
    case Field::Other:
      return;
  }
}

void TraceEvents::read_arguments(JsonScanner& json) {
  json.expect('{', "no object");
  if (json.accept('}')) {
    return;
  }
  do {
    const auto found = arguments_.find(json.text());
    json.expect(':', "no colon behind a name");
    const JsonValue value = json.value();
    if (found == arguments_.end()) {
      continue;
    }
    const auto [takes_text, column] = found->second;
    if (!takes_text) {
      integers_[column] = integer_of(value);
    } else {
      texts_[column] = value.kind == JsonValue::Kind::Literal ? store::kNone : text_id(value.text);
    }
  } while (json.accept(','));
  json.expect('}', "neither a comma nor the end of an object");
}

void TraceEvents::append(const Row& row) {
  rows_.phase.push_back(row.phase);
  rows_.category.push_back(row.category);
  rows_.name.push_back(row.name);
  rows_.place.push_back(place_of(row.place));
  rows_.start_ns.push_back(row.start_ns);
  rows_.duration_ns.push_back(row.duration_ns.value_or(row.phase == 'X' ? kNotGiven : 0));
  rows_.id.push_back(row.id);
  for (std::size_t column = 0; column < integers_.size(); ++column) {
    rows_.integers[column].push_back(integers_[column]);
  }
  for (std::size_t column = 0; column < texts_.size(); ++column) {
    rows_.texts[column].push_back(texts_[column]);
  }
}

/// Looks names up unchanged if they are ASCII, otherwise as valid UTF-8: all texts of a recording are.
uint32_t TraceEvents::text_id(std::string_view text) {
  const bool is_ascii = std::all_of(text.begin(), text.end(), [](char letter) { return (letter & 0x80) == 0; });
  return is_ascii ? strings_.intern(text) : strings_.intern(base::to_utf8(text));
}

TraceEvents::Tag TraceEvents::tag_of(const JsonValue& value) {
  if (is_text(value)) {
    return {Tag::Kind::Text, text_id(value.text)};
  }
  const std::optional<int64_t> number = is_number(value) ? to_integer(value.text) : std::nullopt;
  return number.has_value() ? Tag{Tag::Kind::Number, *number} : Tag{};
}

uint32_t TraceEvents::place_of(const Place& place) {
  if (!rows_.place.empty() && places_[rows_.place.back()] == place) {  // consecutive events often have the same thread
    return rows_.place.back();
  }
  const auto [found, is_new] = numbers_.try_emplace(place, static_cast<uint32_t>(places_.size()));
  if (is_new) {
    places_.push_back(place);
  }
  return found->second;
}

}  // namespace gpuscope::readers
