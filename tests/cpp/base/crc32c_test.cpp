// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "gpuscope/base/file.h"

namespace gpuscope::base {
namespace {

TEST(Crc32c, AgreesWithThePublishedCheckValues) {
  EXPECT_EQ(crc32c("123456789", 9), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8A9136AAU);    // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xFF').data(), 32), 0x62A8AB43U);  // RFC 3720, B.4
}

TEST(Crc32c, PortableVersionAgreesAtEveryLength) {
  std::string data;
  for (int at = 0; at < 100; ++at) {
    EXPECT_EQ(crc32c(data.data(), data.size()), crc32c_portable(data.data(), data.size()));
    data.push_back(static_cast<char>(at * 37));
  }
}

TEST(Crc32c, GoesOnFromAnEarlierValue) {
  EXPECT_EQ(crc32c("6789", 4, crc32c("12345", 5)), crc32c("123456789", 9));
  EXPECT_EQ(crc32c_portable("6789", 4, crc32c_portable("12345", 5)), crc32c("123456789", 9));
}

}  // namespace
}  // namespace gpuscope::base
