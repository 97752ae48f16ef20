// SPDX-License-Identifier: Apache-2.0
// The core is compiled once more for this test, with tables that only a list declares.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpp/exporters/file_folder.h"
#include "gpuscope/attribution/decode_state.h"
#include "gpuscope/exporters/frame.h"
#include "gpuscope/store/gscope.h"
#include "gpuscope/store/store.h"

namespace gpuscope {
namespace {

using store::kNone;
using store::Store;

/// Notes on two shelves, the second of them about a region and with two pages.
std::unique_ptr<Store> make_notes(std::string_view text = "remember") {
  auto store = std::make_unique<Store>();
  const auto id = [&](std::string_view string) { return store->strings.intern(string); };
  id("");
  store->thread.append({77, 0, 0});
  store->path.append({kNone, id("train"), 0, 0, 0});
  store->region.append({10, 1000, kNone, 0, 0, 0});
  store->shelf.append({id("top"), kNone});
  store->shelf.append({id("middle"), 0});
  store->note.append({20, kNone, id("old"), kNone, 0, 0, 0});
  store->note.append({900, 0, id(text), id("English"), 1, 0, 3});
  store->note_page.append({0, 1, kNone});
  store->note_page.append({1, 5, kNone});
  store->note_page.append({1, 7, 1});
  return store;
}

TEST(ExtraTables, AreAppendedWithWhatTheyReferTo) {
  Store all;
  append(all, *make_notes("first"));
  append(all, *make_notes("second"));
  ASSERT_EQ(all.note.size(), 4U);
  EXPECT_EQ(all.strings[all.note.says[3]], "second");
  EXPECT_EQ(all.note.language[2], kNone);
  EXPECT_EQ(all.note.region[3], 1U);
  EXPECT_EQ(all.note_page.note[5], 3U);
  EXPECT_EQ(all.note_page.follows[5], 4U);
  EXPECT_EQ(all.shelf.size(), 2U) << "a dictionary has no row twice";
  EXPECT_EQ(find_bad_reference(all), "");
}

TEST(ExtraTables, AreChecked) {
  const auto fault = [](auto&& make) {
    const auto store = make_notes();
    make(*store);
    return find_bad_reference(*store);
  };
  EXPECT_EQ(fault([](Store&) {}), "");
  EXPECT_EQ(fault([](Store& store) { store.note.shelf[0] = 9; }), "row 0 of note has shelf 9, of 2");
  EXPECT_NE(fault([](Store& store) { store.note.says[0] = kNone; }), "");
  EXPECT_NE(fault([](Store& store) { store.note.start_ns[0] = -1; }), "");
  EXPECT_NE(fault([](Store& store) { store.shelf.above[0] = 1; }), "");
  EXPECT_NE(fault([](Store& store) { store.note_page.follows[1] = 2; }), "");
}

TEST(ExtraTables, CountAsMemoryOfEvents) {
  const auto store = make_notes();
  const std::size_t before = attribution::event_bytes(*store);
  store->note.append({});
  store->note_page.append({});
  store->shelf.append({});
  EXPECT_EQ(attribution::event_bytes(*store) - before, store::Notes::kRowBytes + store::NotePages::kRowBytes);
}

TEST(ExtraTables, LoseTheirOldestRowsWithTheRing) {
  attribution::DecodeState state({.mode = attribution::Mode::Ring, .ring_ns = 100});
  state.store = make_notes();
  const auto evicted = keep_in_bounds(state);
  ASSERT_TRUE(evicted);
  ASSERT_EQ(state.store->note.size(), 1U);
  EXPECT_EQ(state.store->note.start_ns[0], 900);
  EXPECT_EQ(state.store->note.region[0], 0U);
  ASSERT_EQ(state.store->note_page.size(), 2U) << "pages go with their note";
  EXPECT_EQ(state.store->note_page.note[0], 0U);
  EXPECT_EQ(state.store->note_page.words[1], 7U);
  EXPECT_EQ(state.counters.evicted, 1U);
}

TEST(ExtraTables, AreKeptInFiles) {
  const test::Folder folder;
  std::string bytes;
  store::write_gscope(*make_notes(), [&](std::string_view more) { bytes += more; });
  test::write_file(folder / "a.gscope", bytes);
  const auto store = store::read_gscope(folder / "a.gscope");
  Store::each_pair(*store, *make_notes(), []<class Table>(const Table& one, const Table& other) {
    Table::each_pair(one, other, [](const store::ColumnInfo& column, const auto& values, const auto& expected) {
      EXPECT_TRUE(std::ranges::equal(values, expected)) << Table::kInfo.name << "." << column.name;
    });
  });
}

std::vector<std::string> texts_of(const exporters::FrameColumn& column) {
  std::vector<std::string> rows;
  for (const int32_t code : *column.codes) {
    rows.emplace_back(code < 0 ? "(none)" : (*column.texts)[static_cast<std::size_t>(code)]);
  }
  return rows;
}

TEST(ExtraTables, AreSpelledOutInFrames) {
  const auto store = make_notes();
  const auto columns = exporters::make_frame(*store, "note");
  const auto find = [&](std::string_view name) {
    return std::ranges::find(columns, name, &exporters::FrameColumn::name);
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts_of(*find("says")), (Texts{"old", "remember"}));
  EXPECT_EQ(texts_of(*find("language")), (Texts{"(none)", "English"}));
  EXPECT_EQ(texts_of(*find("region")), (Texts{"(none)", "train"}));
  EXPECT_EQ(texts_of(*find("path")), (Texts{"(none)", "train"}));
  EXPECT_EQ(static_cast<const uint64_t*>(find("thread")->numbers.data)[0], 77U);
  EXPECT_EQ(*find("thread")->codes, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(find("start_ns")->numbers.data, store->note.start_ns.data());
}

TEST(ExtraTables, GoToArrow) {
  const std::shared_ptr<const Store> store = make_notes();
  ArrowArrayStream stream = exporters::make_arrow_stream(store, "note");
  ArrowSchema schema;
  ArrowArray array;
  ASSERT_EQ(stream.get_schema(&stream, &schema), 0);
  ASSERT_EQ(stream.get_next(&stream, &array), 0);
  EXPECT_EQ(array.length, 2);
  EXPECT_STREQ(schema.children[0]->name, "start_ns");
  EXPECT_EQ(array.children[0]->buffers[1], store->note.start_ns.data());
  array.release(&array);
  schema.release(&schema);
  stream.release(&stream);
}

}  // namespace
}  // namespace gpuscope
