// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/session/shown_region.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace gpuscope::session {
namespace {

constexpr int64_t kOffset = 824;

class ShownRegions : public testing::Test {
 protected:
  ShownRegions() { shown_.begin(fileno(file_), kOffset); }
  ~ShownRegions() override {
    shown_.end();
    std::fclose(file_);
  }

  std::string bytes() const {
    std::string bytes(ShownRegion::kBytes, '?');
    bytes.resize(static_cast<std::size_t>(pread(fileno(file_), bytes.data(), bytes.size(), kOffset)));
    return bytes;
  }
  std::string text() const { return bytes().c_str() + 4; }

  std::FILE* file_ = std::tmpfile();
  ShownRegion shown_;
};

TEST_F(ShownRegions, AreAChecksumAndANameFilledUpWithZeros) {
  shown_.show("forward");
  EXPECT_EQ(text(), "forward");
  uint32_t sum = 0;
  std::memcpy(&sum, bytes().data(), sizeof(sum));
  uint32_t expected = 2166136261U;
  for (const char byte : bytes().substr(4)) {
    expected = (expected ^ static_cast<unsigned char>(byte)) * 16777619U;
  }
  EXPECT_EQ(sum, expected);
  shown_.show("");
  EXPECT_EQ(bytes().substr(4), std::string(ShownRegion::kBytes - 4, '\0'));
  EXPECT_EQ(lseek(fileno(file_), 0, SEEK_END), kOffset + static_cast<int64_t>(ShownRegion::kBytes));
}

TEST_F(ShownRegions, AreCutBetweenCharacters) {
  std::string name(195, 'x');
  shown_.show(name + "\xC3\xA9");  // an e with an accent, of which one byte would fit
  EXPECT_EQ(text(), name);
  shown_.show(name + "yz");
  EXPECT_EQ(bytes().substr(4), name + "y");
}

TEST_F(ShownRegions, AreWrittenWhereTheyDiffer) {
  shown_.show("forward");
  ASSERT_EQ(ftruncate(fileno(file_), 0), 0);
  shown_.show("forward");
  EXPECT_EQ(bytes(), "");
  shown_.show("backward");
  EXPECT_EQ(text(), "backward");
}

TEST_F(ShownRegions, GoToTheFileThatCameLast) {
  std::FILE* other = std::tmpfile();
  shown_.show("forward");
  shown_.begin(fileno(other), 0);
  shown_.show("forward");
  std::string found(7, '?');
  ASSERT_EQ(pread(fileno(other), found.data(), found.size(), 4), 7);
  EXPECT_EQ(found, "forward");
  shown_.end();
  shown_.show("backward");
  ASSERT_EQ(pread(fileno(other), found.data(), found.size(), 4), 7);
  EXPECT_EQ(found, "forward");
  std::fclose(other);
}

/// Closes what ShownRegion has of a file, and gives its number to another; returns the number.
int replace_descriptor(std::FILE* file, std::FILE* other) {
  struct stat wanted {};
  fstat(fileno(file), &wanted);
  for (int number = 3; number < 1024; ++number) {
    struct stat found {};
    if (number != fileno(file) && fstat(number, &found) == 0 && found.st_ino == wanted.st_ino) {
      return dup2(fileno(other), number);
    }
  }
  return -1;
}

TEST_F(ShownRegions, AreNotWrittenToAnotherFileThatHasTheirNumber) {
  std::FILE* others = std::tmpfile();
  const int number = replace_descriptor(file_, others);
  ASSERT_GE(number, 0);
  shown_.show("forward");
  EXPECT_EQ(lseek(fileno(others), 0, SEEK_END), 0);
  shown_.begin(fileno(file_), kOffset);
  shown_.show("backward");
  EXPECT_EQ(text(), "backward");
  EXPECT_EQ(lseek(number, 0, SEEK_END), 0) << "the number is still the other file's";
  close(number);
  std::fclose(others);
}

TEST_F(ShownRegions, OfAForkedChildAreNotWritten) {
  shown_.show("forward");
  const pid_t child = fork();
  if (child == 0) {
    shown_.show("of the child");
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(text(), "forward");
}

}  // namespace
}  // namespace gpuscope::session
