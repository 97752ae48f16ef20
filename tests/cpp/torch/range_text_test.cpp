// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/torch/range_text.h"

#include <gtest/gtest.h>

#include <string>

namespace gpuscope::torch {
namespace {

TEST(RangeText, ReadsAnOperatorsParts) {
  const RangeText range =
      parse_range("aten::mm, seq = 41, op_id = 17, sizes = [[4, 8], [8, 2]], input_op_ids = [(16,0), (9,1)]");
  EXPECT_EQ(range.name, "aten::mm");
  EXPECT_EQ(range.sequence, 41);
  EXPECT_EQ(range.op, 17U);
  EXPECT_EQ(range.shapes, "[[4, 8], [8, 2]]");
  EXPECT_EQ(range.producer, 16U);
}

TEST(RangeText, ReadsAnOperatorWithoutNumbersOfAutogradOrShapes) {
  const RangeText range = parse_range("aten::empty, op_id = 2");
  EXPECT_EQ(range.name, "aten::empty");
  EXPECT_EQ(range.sequence, -1);
  EXPECT_EQ(range.op, 2U);
  EXPECT_TRUE(range.shapes.empty());
  EXPECT_EQ(range.producer, 0U);
}

TEST(RangeText, TakesTextOfAnotherFormAsTheName) {
  for (const char* text : {"", "forward", "a, b", ", op_id", "layer, seq = ", "x, sizes = [[1]]", "step 12", "12"}) {
    const RangeText range = parse_range(text);
    EXPECT_EQ(range.name, text);
    EXPECT_EQ(range.sequence, -1);
  }
}

TEST(RangeText, KeepsNumbersAtTheEndOfAName) {
  EXPECT_EQ(parse_range("ReluBackward0, op_id = 3").name, "ReluBackward0");
  EXPECT_EQ(parse_range("AddBackward12, seq = 7, op_id = 3").name, "AddBackward12");
}

TEST(RangeText, SurvivesTextThatIsCutOffAnywhere) {
  const std::string whole = "aten::mm, seq = 41, op_id = 17, sizes = [[4, 8]], input_op_ids = [(16,0)]";
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    const std::string cut = whole.substr(0, length);  // its own memory, so that a sanitizer sees a read too far
    EXPECT_LE(parse_range(cut).name.size(), cut.size());
  }
}

TEST(RangeText, SurvivesNumbersThatAreTooLarge) {
  const RangeText range = parse_range("f, seq = 99999999999999999999, op_id = 99999999999");
  EXPECT_EQ(range.sequence, -1);
  EXPECT_EQ(range.op, 0U);
}

TEST(RangeText, TellsOperatorsFromWhatAProgramNamed) {
  for (const char* op : {"aten::add_, op_id = 1", "torch::autograd::AccumulateGrad, op_id = 1",
                         "MulBackward0, op_id = 1", "MyFunctionBackward, op_id = 1", "detach, op_id = 1",
                         "Exp, seq = 3, op_id = 1", "autograd::engine::evaluate_function: MulBackward0, op_id = 1"}) {
    EXPECT_TRUE(parse_range(op).is_op()) << op;
  }
  for (const char* range : {"forward, op_id = 1", "Optimizer.step#SGD.step, op_id = 1", "data transfer, op_id = 1",
                            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__, op_id = 1"}) {
    EXPECT_FALSE(parse_range(range).is_op()) << range;
  }
}

}  // namespace
}  // namespace gpuscope::torch
