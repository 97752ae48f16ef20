// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/torch/layout.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "gpuscope/torch/argument_text.h"

namespace gpuscope::torch {
namespace {

constexpr uint32_t kTensorTag = 1;

struct FakeTensor {
  std::array<uint64_t, 48> words{};
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  std::vector<int64_t> far;  // both, of many dimensions
  int dtype;

  FakeTensor(std::vector<int64_t> its_sizes, int its_dtype) : sizes(std::move(its_sizes)), dtype(its_dtype) {
    for (std::size_t left = sizes.size(); left > 0; --left) {
      strides.push_back(static_cast<int64_t>(100 * left));
    }
    words.fill(0xABCD'EF01'2345'6789);
    words[7] = sizes.size();
    if (sizes.size() > kInlineDimensions) {
      far = sizes;
      far.insert(far.end(), strides.begin(), strides.end());
      words[8] = address(far.data());
    } else {
      std::memcpy(&words[8], sizes.data(), sizes.size() * sizeof(int64_t));
      std::memcpy(&words[8 + kInlineDimensions], strides.data(), strides.size() * sizeof(int64_t));
    }
    const auto type = static_cast<uint16_t>(dtype);
    std::memcpy(reinterpret_cast<char*>(words.data()) + 160, &type, sizeof(type));
  }
  FakeTensor(const FakeTensor&) = delete;
  FakeTensor& operator=(const FakeTensor&) = delete;

  static uint64_t address(const void* of) { return reinterpret_cast<uintptr_t>(of); }
  KnownTensor known() const { return {address(words.data()), sizes, dtype, strides}; }
};

struct FakeValue {
  uint64_t payload;
  uint64_t tag;
};

// Values of torch's, and where its lists hold theirs.
constexpr uint64_t kDoubleTag = 3;
constexpr uint64_t kIntTag = 5;
constexpr uint64_t kBoolTag = 9;
constexpr uint64_t kListTag = 13;
constexpr uint64_t kTextTag = 14;
constexpr uint64_t kNoneTag = 0;
constexpr uint64_t kComplexTag = 4;

struct FakeList {
  std::vector<FakeValue> values;
  std::array<uint64_t, 16> object{};

  FakeList(std::vector<FakeValue> its_values, uint64_t type) : values(std::move(its_values)) {
    object.fill(0x1234'5678'9ABC'DEF1);
    object[2] = FakeTensor::address(values.data());
    object[3] = FakeTensor::address(values.data() + values.size());
    object[4] = object[3];
    object[5] = type;
  }
  FakeValue value() const { return {FakeTensor::address(object.data()), kListTag}; }
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
    words[40] = FakeTensor::address(&words[46]);  // the map of keywords
    words[41] = 1;
    words[42] = words[43] = 0;
    words[44] = std::bit_cast<uint32_t>(1.0F);
    words[35] = outputs != nullptr ? FakeTensor::address(outputs->data()) : 0;
    words[36] = outputs != nullptr ? FakeTensor::address(outputs->data() + outputs->size()) : 0;
    return observe(words.data(), name, sequence, is_end);
  }
  std::string infer_all() {
    std::vector<FakeValue> both = {value(a_), value(b_)};
    std::vector<FakeValue> one = {value(a_)};
    std::vector<FakeValue> other = {value(c_)};
    std::vector<FakeValue> product = {value(d_)};
    std::vector<FakeValue> text = {{FakeTensor::address(text_object_.data()), kTextTag}};
    text_object_[2] = FakeTensor::address(text_.data());
    text_object_[3] = text_.size();
    const std::vector<Observation> seen = {
        see("mul", 40, true, both, 0, false),   see("mul", 41, true, both, 0, true, &product),
        see("neg", 41, true, one, 0, false),    see("neg", 42, true, one, 0, true, &product),
        see("not", 42, false, other, 0, false), see("not", 42, false, other, 0, true, &product),
        see("user", 42, false, text, 7, false)};
    return infer_layout(seen, {a_.known(), b_.known(), c_.known(), d_.known()},
                        {{"mul", {0, 1}, true, 3}, {"neg", {0}, true, 3}, {"not", {2}, false, 3}}, "user", layout_);
  }
  void infer_values(uint64_t last = 7) {
    std::vector<FakeValue> inputs = {value(a_),        {1 | 0xFF00, kBoolTag}, {~uint64_t{0} >> 2, kDoubleTag},
                                     numbers_.value(), tensors_.value(),       {last, kIntTag}};
    const std::vector<uint64_t> both = {value(a_).payload, value(b_).payload};
    torch::infer_values({see("all", 50, false, inputs, 0, false)},
                        {{"all",
                          {{KnownValue::Tensor, {value(a_).payload}},
                           {KnownValue::Bool, {1}},
                           {KnownValue::Double, {~uint64_t{0} >> 2}},
                           {KnownValue::Ints, {4, 6}},
                           {KnownValue::Tensors, both},
                           {KnownValue::Int, {7}}}}},
                        layout_);
  }
  void infer_rare_values() {
    std::array<uint64_t, 16> complex{};
    complex[2] = 25;
    complex[3] = 36;
    std::vector<FakeValue> inputs = {{0, kNoneTag}, {FakeTensor::address(complex.data()), kComplexTag}};
    std::vector<FakeValue> known = {
        {~uint64_t{0} >> 2, kDoubleTag}, {1, kBoolTag}, {7, kIntTag}, numbers_.value(), tensors_.value(), value(a_)};
    torch::infer_values({see("all", 50, false, known, 0, false), see("rare", 50, false, inputs, 0, false)},
                        {{"all",
                          {{KnownValue::Double, {~uint64_t{0} >> 2}},
                           {KnownValue::Bool, {1}},
                           {KnownValue::Int, {7}},
                           {KnownValue::Ints, {4, 6}},
                           {KnownValue::Tensors, {value(a_).payload, value(b_).payload}},
                           {KnownValue::Tensor, {value(a_).payload}}}},
                         {"rare", {{KnownValue::None, {0}}, {KnownValue::Complex, {25, 36}}}}},
                        layout_);
  }
  static FakeValue value(const FakeTensor& tensor) { return {FakeTensor::address(tensor.words.data()), kTensorTag}; }

  std::string text_ = "user";
  std::array<uint64_t, 16> text_object_{};
  uint64_t noise_ = 0x7777'0000'0000;
  uint64_t number_ = 14;
  FakeTensor a_{{3, 5, 7}, 7};
  FakeTensor b_{{5, 7}, 3};
  FakeTensor c_{{2, 3, 1, 5, 2, 7}, 11};
  FakeTensor d_{{9}, 7};
  static constexpr uint64_t kTensorType = 0xAAA8;
  FakeList numbers_{{{4, kIntTag}, {6, kIntTag}}, 0xAAA0};
  FakeList tensors_{{value(a_), value(b_)}, kTensorType};
  Layout layout_;
};

TEST(Observations, ReadNothingBehindTheEndOfMemory) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* guard = static_cast<char*>(pages) + page;
  ASSERT_EQ(mprotect(guard, page, PROT_NONE), 0);
  constexpr std::size_t kObjectWords = 45;
  auto* object = reinterpret_cast<uint64_t*>(guard) - kObjectWords;
  object[kObjectWords - 1] = 7;
  const Observation observation = observe(object, "at the end", 0, false);
  EXPECT_EQ(observation.words[kObjectWords - 1], 7U);
  EXPECT_EQ(observation.words[kObjectWords], 0U);
  munmap(pages, 2 * page);
}

TEST(Observations, AreNoOverflowOfAnObjectOnTheHeap) {  // AddressSanitizer would say so
  const auto object = std::make_unique<std::array<uint64_t, 45>>();
  EXPECT_EQ(observe(object.get(), "short", 0, false).address, reinterpret_cast<uintptr_t>(object.get()));
}

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

TEST_F(LayoutTest, FindsStridesBehindTheSizes) {
  EXPECT_EQ(infer_all(), "");
  EXPECT_TRUE(layout_.strides);
  const std::array<FakeValue, 2> values = {value(a_), value(c_)};
  ShortText strides;
  ArgumentText(layout_, nullptr).put_strides(strides, {reinterpret_cast<const char*>(values.data()), values.size()});
  EXPECT_EQ(strides.view(), "[[300, 200, 100], [600, 500, 400, 300, 200, 100]]");
}

TEST_F(LayoutTest, LeavesStridesThatLieElsewhere) {
  b_.strides[1] = 7;
  EXPECT_EQ(infer_all(), "");
  EXPECT_FALSE(layout_.strides);
  EXPECT_NE(layout_.sizes, Layout::kUnknown);
}

TEST_F(LayoutTest, TellsNumbersAndListsApart) {
  ASSERT_EQ(infer_all(), "");
  infer_values();
  EXPECT_EQ(layout_.list, 2U * 8);
  const FakeList unknown({{7, 99}}, 0xAAA0);
  const FakeList none({}, 0xAAA0);
  const std::array<FakeValue, 7> values = {value(a_),       tensors_.value(), numbers_.value(), none.value(),
                                           unknown.value(), {41, kDoubleTag}, {0, 99}};
  const Values all{reinterpret_cast<const char*>(values.data()), values.size()};
  ShortText types;
  ArgumentText(layout_, nullptr).put_types(types, all);
  EXPECT_EQ(types.view(), "['double', 'TensorList', 'ScalarList', 'ScalarList', '', 'Scalar', '']");
  ShortText shapes;
  ArgumentText(layout_, nullptr).put_shapes(shapes, all);
  EXPECT_EQ(shapes.view(), "[[3, 5, 7], [[3, 5, 7], [5, 7]], [], [], [], [], []]");
}

TEST_F(LayoutTest, TellsNoneAndComplexNumbers) {
  ASSERT_EQ(infer_all(), "");
  infer_rare_values();
  std::array<double, 4> complex{0, 0, 1.5, -2};
  const FakeValue number{FakeTensor::address(complex.data()), kComplexTag};
  const FakeValue none{0, kNoneTag};
  const ArgumentText arguments(layout_, nullptr);
  EXPECT_EQ(arguments.kind(reinterpret_cast<const char*>(&none)), ArgumentText::Kind::None);
  EXPECT_EQ(arguments.kind(reinterpret_cast<const char*>(&number)), ArgumentText::Kind::Complex);
  ShortText text;
  arguments.put_complex(text, reinterpret_cast<const char*>(&number));
  EXPECT_EQ(text.view(), "1.5 -2.");
}

TEST_F(LayoutTest, ReadsNoListWhereOneArgumentWasAnother) {
  ASSERT_EQ(infer_all(), "");
  infer_values(/*last=*/8);
  EXPECT_EQ(layout_.list, Layout::kUnknown);
  const FakeValue list = tensors_.value();
  ShortText types;
  ArgumentText(layout_, nullptr).put_types(types, {reinterpret_cast<const char*>(&list), 1});
  EXPECT_EQ(types.view(), "['']");
}

TEST_F(LayoutTest, LeavesOutAListThatDoesNotFit) {
  ASSERT_EQ(infer_all(), "");
  infer_values();
  const FakeList many(std::vector<FakeValue>(300, value(a_)), kTensorType);
  const std::array<FakeValue, 2> values = {many.value(), value(b_)};
  ShortText shapes;
  ArgumentText(layout_, nullptr).put_shapes(shapes, {reinterpret_cast<const char*>(values.data()), values.size()});
  EXPECT_EQ(shapes.view(), "[[], [5, 7]]");
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

TEST_F(LayoutTest, SpellsNumbersAndListsOfThem) {
  ASSERT_EQ(infer_all(), "");
  infer_values();
  const FakeList none({}, 0xAAA0);
  const FakeList long_one(std::vector<FakeValue>(31, {1, kIntTag}), 0xAAA0);
  const std::array<FakeValue, 8> values = {value(a_),        {static_cast<uint64_t>(-3), kIntTag},
                                           {1, kBoolTag},    {std::bit_cast<uint64_t>(0.1), kDoubleTag},
                                           numbers_.value(), none.value(),
                                           long_one.value(), tensors_.value()};
  const Values all{reinterpret_cast<const char*>(values.data()), values.size()};
  ShortText concrete;
  ArgumentText(layout_, nullptr).put_concrete(concrete, all);
  EXPECT_EQ(concrete.view(), "['', '-3', 'True', '0.10000000000000001', '[4, 6]', '[]', '', '']");
  ShortText types;
  ArgumentText(layout_, nullptr).put_types(types, {all.first + 6 * kValueBytes, 1});
  EXPECT_EQ(types.view(), "['']");
}

TEST_F(LayoutTest, KeysDifferWhereTextsDo) {
  ASSERT_EQ(infer_all(), "");
  infer_values();
  const FakeList none({}, 0xAAA0);
  const FakeList numbers({{4, kIntTag}, {7, kIntTag}}, 0xAAA0);
  const FakeList tensors({value(a_), value(c_)}, kTensorType);
  const int undefined = 0;
  const ArgumentText arguments(layout_, &undefined);
  const std::array<FakeValue, 14> choice = {value(a_),
                                            value(b_),
                                            value(c_),
                                            value(d_),
                                            {FakeTensor::address(&undefined), kTensorTag},
                                            {3, kIntTag},
                                            {3, kDoubleTag},
                                            {0x103, kBoolTag},
                                            {0, kBoolTag},
                                            {4, kIntTag},
                                            numbers_.value(),
                                            none.value(),
                                            numbers.value(),
                                            tensors.value()};
  std::map<base::Digest, std::string> texts;
  std::map<base::Digest, std::string> numbers_texts;
  std::mt19937 random(7);
  for (int turn = 0; turn < 5000; ++turn) {
    std::vector<FakeValue> values(random() % 4);
    for (FakeValue& one : values) {
      one = choice[random() % choice.size()];
    }
    const Values all{reinterpret_cast<const char*>(values.data()), values.size()};
    ShortText text;
    arguments.put_shapes(text, all);
    arguments.put_strides(text, all);
    arguments.put_types(text, all);
    base::Digest key;
    arguments.put_tensors(key, all);
    EXPECT_EQ(texts.emplace(key, text.view()).first->second, text.view());
    ShortText concrete;
    arguments.put_concrete(concrete, all);
    base::Digest its;
    arguments.put_numbers(its, all);
    EXPECT_NE(its, key);
    EXPECT_EQ(numbers_texts.emplace(its, concrete.view()).first->second, concrete.view());
  }
  EXPECT_LT(texts.size(), 14 * 14 * 14);
  EXPECT_GT(texts.size(), 100U);
}

TEST_F(LayoutTest, HasAKeyOfAListOfAnyLength) {
  ASSERT_EQ(infer_all(), "");
  infer_values();
  const auto key_of = [&](std::size_t length) {
    const FakeList many(std::vector<FakeValue>(length, value(a_)), kTensorType);
    const FakeValue list = many.value();
    base::Digest key;
    ArgumentText(layout_, nullptr).put_tensors(key, {reinterpret_cast<const char*>(&list), 1});
    return key;
  };
  EXPECT_EQ(key_of(300), key_of(300));
  EXPECT_NE(key_of(300), key_of(301));
}

TEST_F(LayoutTest, FindsAnEmptyMapOfKeywordsByItsOnlyBucket) {
  EXPECT_EQ(infer_all(), "");
  EXPECT_EQ(layout_.keywords, 40U * 8);
}

TEST_F(LayoutTest, FindsTheTextOfARange) {
  EXPECT_EQ(infer_all(), "");
  EXPECT_EQ(layout_.text, 2U * 8);
  EXPECT_EQ(layout_.text_tag, kTextTag);
}

TEST_F(LayoutTest, KnowsNoTextWhereTheRangeHasNone) {
  text_[0] = 0;
  EXPECT_EQ(infer_all(), "");
  EXPECT_EQ(layout_.text, Layout::kUnknown);
}

TEST(ShortText, WritesNumbersAsTorchDoes) {
  const auto written = [](double number) {
    ShortText text;
    text.put(number);
    return std::string(text.view());
  };
  EXPECT_EQ(written(2), "2.");
  EXPECT_EQ(written(-0.0), "0.");
  EXPECT_EQ(written(0.1), "0.10000000000000001");
  EXPECT_EQ(written(9e18), "9000000000000000000.");
  EXPECT_EQ(written(1e19), "1e+19");
  EXPECT_EQ(written(1e-5), "1.0000000000000001e-05");
  EXPECT_EQ(written(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(written(std::numeric_limits<double>::quiet_NaN()), "nan");
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
