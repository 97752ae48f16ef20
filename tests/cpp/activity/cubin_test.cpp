// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "fakes/cubins.h"
#include "gpuscope/activity/collector.h"

namespace gpuscope::activity {
namespace {

// In memory of its own, so that sanitizers see a read behind its end.
Cubin read(const std::string& image) {
  const auto copy = std::make_unique<char[]>(image.size());
  std::memcpy(copy.get(), image.data(), image.size());
  return read_cubin(copy.get(), image.size());
}

TEST(CubinTest, WhatIsLoadedCounts) {
  const std::string image = fakes::Cubin()
                                .add({".text.kernel", 300})
                                .add({".nv.constant0.kernel", 40})
                                .add({".nv.global.init", 8})
                                .add({".debug_line", 5000, SHT_PROGBITS, 0})
                                .image();
  EXPECT_EQ(read(image).device_bytes, 348U);
}

TEST(CubinTest, VariablesWithoutValuesCountAndSharedMemoryDoesNot) {
  const std::string image = fakes::Cubin()
                                .add({".nv.global", 4096, SHT_NOBITS, SHF_ALLOC | SHF_WRITE})
                                .add({".nv.shared.kernel", 49152, SHT_NOBITS, SHF_ALLOC | SHF_WRITE})
                                .image();
  EXPECT_EQ(read(image).device_bytes, 4096U);
}

TEST(CubinTest, CallsOfTheDriverAreServices) {
  EXPECT_EQ(read(fakes::Cubin().call("__assertfail").image()).services, kAssert);
  EXPECT_EQ(read(fakes::Cubin().call("vprintf").image()).services, kPrintf);
  EXPECT_EQ(read(fakes::Cubin().call("malloc").image()).services, kMalloc);
  EXPECT_EQ(read(fakes::Cubin().call("free").call("vprintf").image()).services, kPrintf | kMalloc);
}

TEST(CubinTest, FunctionsOfItsOwnAreNone) {
  EXPECT_EQ(read(fakes::Cubin().call("malloc", true).call("mallocs").image()).services, 0U);
}

TEST(CubinTest, NumbersThatDoNotFitTheHeaderStandInTheFirstSection) {
  std::string image = fakes::Cubin().add({".text.kernel", 300}).call("vprintf").image();
  Elf64_Ehdr header;
  std::memcpy(&header, image.data(), sizeof(header));
  Elf64_Shdr first{};
  first.sh_size = header.e_shnum;
  first.sh_link = header.e_shstrndx;
  header.e_shnum = 0;
  header.e_shstrndx = SHN_XINDEX;
  std::memcpy(image.data(), &header, sizeof(header));
  std::memcpy(image.data() + header.e_shoff, &first, sizeof(first));
  EXPECT_EQ(read(image).device_bytes, 300U);
  EXPECT_EQ(read(image).services, kPrintf);
}

// As nvcc -cubin -arch=sm_90 made it of
//   extern "C" __global__ void k(int* p, int n) { assert(n >= 0); if (p) p[threadIdx.x] = n; }
const std::string& real() {
  static const std::string image = [] {
    std::ifstream file(GPUSCOPE_TEST_DATA "/assert.cubin", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  return image;
}

TEST(CubinTest, ARealOneIsRead) {
  const Cubin cubin = read(real());
  EXPECT_EQ(cubin.services, kAssert);
  EXPECT_GT(cubin.device_bytes, 0U);
  EXPECT_LT(cubin.device_bytes, real().size());
}

TEST(CubinTest, WhatIsNoImageTellsNothing) {
  EXPECT_EQ(read_cubin(nullptr, 100).device_bytes, 0U);
  EXPECT_EQ(read("").services, 0U);
  EXPECT_EQ(read(std::string(1000, 'x')).device_bytes, 0U);
}

TEST(CubinTest, CutOffAtAnyByteItIsReadAsFarAsItGoes) {
  const std::string image = real();
  const Cubin whole = read(image);
  for (std::size_t size = 0; size < image.size(); ++size) {
    const Cubin part = read(image.substr(0, size));
    ASSERT_LE(part.device_bytes, whole.device_bytes);
    ASSERT_EQ(part.services & ~whole.services, 0U);
  }
}

TEST(CubinTest, DamageIsSurvived) {
  std::mt19937 chance(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string image = real();
    for (int change = 0; change < 4; ++change) {
      image[chance() % image.size()] = static_cast<char>(chance());
    }
    read(image);
  }
}

}  // namespace
}  // namespace gpuscope::activity
