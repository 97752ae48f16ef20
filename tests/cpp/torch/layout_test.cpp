// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/torch/layout.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace gpuscope::torch {
namespace {

constexpr uint32_t kTensorTag = 1;

struct FakeTensor {
  std::array<uint64_t, 48> words{};
  std::vector<int64_t> sizes;
  int dtype;

  FakeTensor(std::vector<int64_t> its_sizes, int its_dtype) : sizes(std::move(its_sizes)), dtype(its_dtype) {
    words.fill(0xABCD'EF01'2345'6789);
    words[7] = sizes.size();
    if (sizes.size() > kInlineDimensions) {
      words[8] = address(sizes.data());
    } else {
      std::memcpy(&words[8], sizes.data(), sizes.size() * sizeof(int64_t));
    }
    const auto type = static_cast<uint16_t>(dtype);
    std::memcpy(reinterpret_cast<char*>(words.data()) + 160, &type, sizeof(type));
  }
  FakeTensor(const FakeTensor&) = delete;
  FakeTensor& operator=(const FakeTensor&) = delete;

  static uint64_t address(const void* of) { return reinterpret_cast<uintptr_t>(of); }
  KnownTensor known() const { return {address(words.data()), sizes, dtype}; }
};

struct FakeValue {
  uint64_t payload;
  uint64_t tag;
};

// Two operators of two and one arguments, and a range that the program named.
class LayoutTest : public testing::Test {
 protected:
  Observation see(const char* name, uint64_t sequence, bool numbered, std::vector<FakeValue>& inputs, uint8_t scope,
                  bool is_end, std::vector<FakeValue>* outputs = nullptr) {
    std::array<uint64_t, Observation::kWords> words{};
    words.fill(noise_ += 0x1111);
    words[12] = 0x5500 | scope;
    words[25] = numbered ? sequence : ~uint64_t{0};
    words[26] = FakeTensor::address(inputs.data());
    words[27] = inputs.size();
    words[30] = is_end ? number_ : ++number_;
    words[35] = outputs != nullptr ? FakeTensor::address(outputs->data()) : 0;
    words[36] = outputs != nullptr ? FakeTensor::address(outputs->data() + outputs->size()) : 0;
    return observe(words.data(), name, sequence, is_end);
  }
  std::string infer_all() {
    std::vector<FakeValue> both = {value(a_), value(b_)};
    std::vector<FakeValue> one = {value(a_)};
    std::vector<FakeValue> other = {value(c_)};
    std::vector<FakeValue> product = {value(d_)};
    std::vector<FakeValue> none;
    const std::vector<Observation> seen = {
        see("mul", 40, true, both, 0, false),   see("mul", 41, true, both, 0, true, &product),
        see("neg", 41, true, one, 0, false),    see("neg", 42, true, one, 0, true, &product),
        see("not", 42, false, other, 0, false), see("not", 42, false, other, 0, true, &product),
        see("user", 42, false, none, 7, false)};
    return infer_layout(seen, {a_.known(), b_.known(), c_.known(), d_.known()},
                        {{"mul", {0, 1}, true, 3}, {"neg", {0}, true, 3}, {"not", {2}, false, 3}}, "user", layout_);
  }
  static FakeValue value(const FakeTensor& tensor) { return {FakeTensor::address(tensor.words.data()), kTensorTag}; }

  uint64_t noise_ = 0x7777'0000'0000;
  uint64_t number_ = 14;
  FakeTensor a_{{3, 5, 7}, 7};
  FakeTensor b_{{5, 7}, 3};
  FakeTensor c_{{2, 3, 1, 5, 2, 7}, 11};
  FakeTensor d_{{9}, 7};
  Layout layout_;
};

TEST_F(LayoutTest, FindsWhereThingsLie) {
  EXPECT_EQ(infer_all(), "");
  EXPECT_EQ(layout_.sequence, 25U * 8);
  EXPECT_EQ(layout_.inputs, 26U * 8);
  EXPECT_EQ(layout_.outputs, 35U * 8);
  EXPECT_EQ(layout_.scope, 12U * 8);
  EXPECT_EQ(layout_.number, 30U * 8);
  EXPECT_EQ(layout_.tensor_tag, kTensorTag);
  EXPECT_EQ(layout_.sizes, 7U * 8);
  EXPECT_EQ(layout_.dtype, 160U);
}

TEST_F(LayoutTest, SaysWhichOperatorWasNotSeen) {
  EXPECT_EQ(infer_layout({}, {}, {{"aten::mul", {}, true, 0}}, "user", layout_), "no callback came for aten::mul");
}

TEST_F(LayoutTest, LeavesUnknownWhatLiesInSeveralPlaces) {
  for (FakeTensor* tensor : {&a_, &b_, &c_, &d_}) {
    std::memcpy(&tensor->words[30], &tensor->words[7], 6 * sizeof(uint64_t));
  }
  EXPECT_EQ(infer_all(), "");
  EXPECT_EQ(layout_.sizes, Layout::kUnknown);
}

TEST_F(LayoutTest, SurvivesPointersToNowhere) {
  std::array<uint64_t, Observation::kWords> words{};
  for (std::size_t word = 0; word < words.size(); ++word) {
    words[word] = word % 2 == 0 ? 0x10 * (word + 1) : 2;
  }
  EXPECT_TRUE(observe(words.data(), "f", 0, false).counted.empty());
}

TEST_F(LayoutTest, SpellsShapesAndTypes) {
  ASSERT_EQ(infer_all(), "");
  const int undefined = 0;
  const ArgumentText arguments(layout_, &undefined);
  const std::array<FakeValue, 4> values = {
      value(a_), {42, kTensorTag + 1}, value(c_), {FakeTensor::address(&undefined), kTensorTag}};
  const Values all{reinterpret_cast<const char*>(values.data()), values.size()};
  ShortText shapes;
  arguments.put_shapes(shapes, all);
  EXPECT_EQ(shapes.view(), "[[3, 5, 7], [], [2, 3, 1, 5, 2, 7], []]");
  ShortText types;
  arguments.put_types(types, all);
  EXPECT_EQ(types.view(), "['double', '', 'bool', '']");
}

TEST(ShortText, IsEmptyWhenItDoesNotFit) {
  ShortText text;
  for (int index = 0; index < 3000; ++index) {
    text.put(int64_t{7});
  }
  EXPECT_TRUE(text.view().empty());
}

}  // namespace
}  // namespace gpuscope::torch
