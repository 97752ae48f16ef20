// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/readers/trace_events.h"

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gpuscope/base/errors.h"
#include "gpuscope/store/values.h"
#include "gtest/gtest.h"

namespace gpuscope::readers {
namespace {

constexpr std::string_view kTrace = R"({
  "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}],
  "traceEvents": [
    {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "py\u0074hon"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 8, "ts": 10.5, "dur": 2,
     "args": {"External id": 3, "Input Dims": [[2, 3], []], "unknown": {"a": [1]}}},
    {"ph": "s", "id": 1, "pid": 7, "tid": 8, "ts": 11}, 3, null, "text", [1],
    {"ph": "X", "args": {"External id": "4", "Input Dims": "none"}, "name": "b", "ts": "12", "pid": "GPU", "cat": 5}
  ],
  "traceName": "x.json"
})";

TraceEvents reader() { return {"XM", {"External id"}, {"name", "Input Dims"}}; }

EventColumns read_whole(TraceEvents& events, std::string_view text) {
  events.feed(text);
  events.finish();
  return events.take();
}

TEST(TraceEvents, ReadsEventsAndArgumentsIntoColumns) {
  TraceEvents events = reader();
  const EventColumns rows = read_whole(events, kTrace);
  const auto text = [&](uint32_t id) { return events.strings()[id]; };
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows.phase, (std::vector<uint8_t>{'M', 'X', 'X'}));
  EXPECT_EQ(text(rows.texts[0][0]), "python");
  EXPECT_EQ(text(rows.category[1]), "cpu_op");
  EXPECT_EQ(text(rows.name[1]), "aten::add");
  EXPECT_EQ(rows.start_ns, (std::vector<int64_t>{kNotGiven, 10'500, 12'000}));
  EXPECT_EQ(rows.duration_ns, (std::vector<int64_t>{0, 2000, kNotGiven}));
  EXPECT_EQ(rows.integers[0], (std::vector<int64_t>{kNotGiven, 3, 4}));
  EXPECT_EQ(text(rows.texts[1][1]), "[[2, 3], []]");
  EXPECT_EQ(text(rows.texts[1][2]), "none");
  EXPECT_EQ(rows.category[2], store::kNone);
  const auto& [process, thread] = events.places()[rows.place[2]];
  EXPECT_EQ(process.kind, TraceEvents::Tag::Kind::Text);
  EXPECT_EQ(thread.kind, TraceEvents::Tag::Kind::None);
  EXPECT_EQ(events.facts().size(), 3U);
  EXPECT_EQ(events.facts()[1].second, R"([{"id": 0, "name": "H100"}])");
  EXPECT_TRUE(events.is_whole());
  EXPECT_TRUE(events.has_list());
}

TEST(TraceEvents, PartsMayEndAtEveryByte) {
  TraceEvents whole = reader();
  const EventColumns expected = read_whole(whole, kTrace);
  for (std::size_t at = 0; at <= kTrace.size(); ++at) {
    TraceEvents events = reader();
    events.feed(std::string(kTrace.substr(0, at)));
    const EventColumns rows = read_whole(events, std::string(kTrace.substr(at)));
    const EventColumns again = events.take();
    EXPECT_EQ(rows.start_ns, expected.start_ns) << at;
    EXPECT_EQ(rows.integers, expected.integers) << at;
    EXPECT_EQ(again.size(), 0U);
    EXPECT_TRUE(events.is_whole()) << at;
  }
  TraceEvents events = reader();
  for (const char letter : kTrace) {
    events.feed({&letter, 1});
  }
  events.finish();
  EXPECT_EQ(events.take().start_ns, expected.start_ns);
}

TEST(TraceEvents, AFileMayBeCutAtEveryByte) {
  std::size_t most = 0;
  for (std::size_t length = 0; length < kTrace.size(); ++length) {
    TraceEvents events = reader();
    const EventColumns rows = read_whole(events, std::string(kTrace.substr(0, length)));
    EXPECT_FALSE(events.is_whole()) << length;
    EXPECT_LE(events.offset(), length + 1);
    EXPECT_GE(rows.size(), most);
    most = rows.size();
  }
  EXPECT_EQ(most, 3U);
}

TEST(TraceEvents, AListAloneNeedsNoEnd) {
  for (const std::string_view text :
       {R"([{"ph": "X", "name": "a", "ts": 1}])", R"([{"ph": "X", "name": "a", "ts": 1},)",
        R"([{"ph": "X", "name": "a", "ts": 1})", "\xEF\xBB\xBF[{\"ph\":\"X\"},]"}) {
    TraceEvents events = reader();
    EXPECT_EQ(read_whole(events, text).size(), 1U) << text;
    EXPECT_TRUE(events.is_whole()) << text;
  }
}

TEST(TraceEvents, DamageIsNamedWithItsPlaceAndWhatStoodBeforeRemains) {
  const std::string text = R"([{"ph": "X", "name": "a", "ts": 1}, {"ph": X}])";
  TraceEvents events = reader();
  try {
    read_whole(events, text);
    FAIL();
  } catch (const base::CorruptTrace& error) {
    EXPECT_EQ(error.offset(), text.rfind('X'));
    EXPECT_NE(std::string_view(error.what()).find("no value at byte"), std::string_view::npos);
  }
  EXPECT_EQ(events.take().size(), 1U);
  for (const std::string_view bad : {"{} x", "[1] 2", "{\"a\": 1 \"b\": 2}", "x", "[{]"}) {
    TraceEvents other = reader();
    EXPECT_THROW(read_whole(other, bad), base::CorruptTrace) << bad;
  }
}

TEST(TraceEvents, ADamagedTraceIsNotWholeAndTellsWhereItsLastEventEnds) {
  for (const std::string_view text : {R"([{"ph": "X"}, {"ph": X}])", R"({"traceEvents": [{"ph": "X"}, {"ph": X}]})"}) {
    TraceEvents events = reader();
    EXPECT_THROW(read_whole(events, text), base::CorruptTrace) << text;
    EXPECT_FALSE(events.is_whole()) << text;
    EXPECT_EQ(events.offset(), text.find('}') + 1) << text;
  }
}

TEST(TraceEvents, AListThatIsCutWithinAnEventIsNotWhole) {
  for (const std::string_view text : {R"([{"ph": "X"}, {"ph": "X")", R"([{"ph": "X"}, 3)", R"([{"ph": "X"}, {)"}) {
    TraceEvents events = reader();
    EXPECT_EQ(read_whole(events, text).size(), 1U) << text;
    EXPECT_FALSE(events.is_whole()) << text;
    EXPECT_EQ(events.offset(), text.find('}') + 1) << text;
  }
}

TEST(TraceEvents, NamesThatAreNoUtf8AreMadeValid) {
  TraceEvents events = reader();
  const EventColumns rows = read_whole(events, "[{\"ph\": \"X\", \"name\": \"a\xFF\"}]");
  EXPECT_EQ(events.strings()[rows.name[0]], "a\xEF\xBF\xBD");
}

TEST(TraceEvents, WhatIsNoJsonOnWindowsIsReadAcrossParts) {
  const std::string_view text =
      R"([{"ph": "X", "name": "torch\_x\nn.py", "dur": -nan(ind)}, {"ph": "X", "name": "\next", "dur": 1}])";
  TraceEvents events = reader();
  for (const char letter : text) {
    events.feed({&letter, 1});
  }
  events.finish();
  const EventColumns rows = events.take();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(events.strings()[rows.name[0]], "torch\\_x\\nn.py");
  EXPECT_EQ(events.strings()[rows.name[1]], "\\next");
  EXPECT_EQ(rows.duration_ns, (std::vector<int64_t>{kNotGiven, 1000}));
  EXPECT_TRUE(events.dialect().bare_backslashes);
  EXPECT_TRUE(events.dialect().odd_numbers);
}

TEST(TraceEvents, ArgumentsMayHaveFurtherNames) {
  TraceEvents events("X", {"External id"}, {}, {{"external id", "External id"}});
  const EventColumns rows = read_whole(events, R"([{"ph": "X", "args": {"external id": 7}}])");
  EXPECT_EQ(rows.integers[0][0], 7);
  EXPECT_EQ(rows.duration_ns[0], kNotGiven);
}

TEST(TraceEvents, WrongBytesNeverDoMoreThanThrow) {
  std::mt19937 random(20'24);  // NOLINT(bugprone-random-generator-seed): failures repeat
  for (int round = 0; round < 3000; ++round) {
    std::string text(kTrace);
    for (int change = 0; change < 3; ++change) {
      text[random() % text.size()] = "{}[]\",:\\u0e.-\xFFx "[random() % 17];
    }
    TraceEvents events = reader();
    try {
      const std::size_t middle = random() % text.size();
      events.feed(std::string(text, 0, middle));
      events.feed(std::string(text, middle));
      events.finish();
    } catch (const base::CorruptTrace& error) {
      EXPECT_LE(error.offset(), text.size());
    }
    const EventColumns rows = events.take();
    EXPECT_EQ(rows.size(), rows.integers[0].size());
  }
}

TEST(TraceEvents, OneLongValueIsReadInTimeInProportionToIt) {
  const std::string part(4096, 'x');
  TraceEvents events = reader();
  events.feed(R"([{"ph": "X", "name": ")");
  constexpr std::size_t kParts = 4000;  // 16 MB: looked at from its beginning with each, this would be 32 GB
  for (std::size_t index = 0; index < kParts; ++index) {
    events.feed(part);
  }
  const EventColumns rows = read_whole(events, R"(", "ts": 1}])");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(events.strings()[rows.name[0]].size(), kParts * part.size());
}

}  // namespace
}  // namespace gpuscope::readers
