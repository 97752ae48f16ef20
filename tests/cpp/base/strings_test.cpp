// SPDX-License-Identifier: Apache-2.0
#include "gpuscope/base/strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gpuscope::base {
namespace {

using namespace std::string_view_literals;

TEST(StringTable, BeginsWithTheEmptyStringAsZero) {
  StringTable table;
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(table.intern(""), 0U);
  EXPECT_EQ(table[0], "");
}

TEST(StringTable, NumbersStringsInOrderOfFirstSight) {
  StringTable table;
  EXPECT_EQ(table.intern("forward"), 1U);
  EXPECT_EQ(table.intern("backward"), 2U);
  EXPECT_EQ(table.intern("forward"), 1U);
  EXPECT_EQ(table.size(), 3U);
}

TEST(StringTable, CopiesTheTextItIsGiven) {
  StringTable table;
  std::string name = "a name long enough to live on the heap";
  const uint32_t id = table.intern(name);
  name.assign(name.size(), 'x');
  EXPECT_EQ(table[id], "a name long enough to live on the heap");
}

TEST(StringTable, TellsTextsApartBeyondAnEmbeddedZero) {
  StringTable table;
  const uint32_t first = table.intern("a\0b"sv);
  const uint32_t second = table.intern("a\0c"sv);
  EXPECT_NE(first, second);
  EXPECT_EQ(table[first], "a\0b"sv);
}

TEST(StringTable, KeepsBytesOfAnyLengthAndScript) {
  StringTable table;
  for (const std::string& text : {std::string(1 << 20, 'k'), std::string("фаза 前向 🚀"), std::string("\xff\xfe")}) {
    EXPECT_EQ(table[table.intern(text)], text);
  }
}

TEST(StringTable, FindsEveryStringAfterGrowing) {
  StringTable table;
  constexpr uint32_t kStrings = 20'000;
  for (uint32_t number = 1; number <= kStrings; ++number) {
    ASSERT_EQ(table.intern("kernel_" + std::to_string(number)), number);
  }
  for (uint32_t number = 1; number <= kStrings; ++number) {
    ASSERT_EQ(table.intern("kernel_" + std::to_string(number)), number);
    ASSERT_EQ(table[number], "kernel_" + std::to_string(number));
  }
  EXPECT_EQ(table.size(), kStrings + 1);
}

TEST(StringTable, ViewsStayValidWhileItGrows) {
  StringTable table;
  const std::string_view early = table[table.intern("short")];
  for (int number = 0; number < 10'000; ++number) {
    table.intern(std::to_string(number));
  }
  EXPECT_EQ(early, "short");
}

TEST(StringTable, CountsItsBytes) {
  StringTable table;
  EXPECT_EQ(table.bytes(), 0U);
  table.intern(std::string(1000, 'x'));
  const std::size_t bytes = table.bytes();
  EXPECT_GT(bytes, 1000U);
  table.intern(std::string(1000, 'x'));
  EXPECT_EQ(table.bytes(), bytes);
}

TEST(Names, AreKnownInTheirPeriodAndTheNext) {
  Names& names = Names::process();
  const uint32_t kept = names.intern("kept");
  const uint32_t id = names.intern_for_period("made up");
  EXPECT_EQ(names.intern_for_period("made up"), id);
  names.begin_period();
  EXPECT_EQ(names.text(id), "made up");
  names.begin_period();
  EXPECT_EQ(names.text(id), Names::kMore);
  EXPECT_EQ(names.text(kept), "kept");
}

TEST(Names, GiveBackTheirMemoryWithTheirPeriods) {
  Names& names = Names::process();
  names.forget();
  for (int number = 0; number < 1000; ++number) {
    names.intern_for_period(std::to_string(number));
  }
  EXPECT_GT(names.bytes(), 1000U);
  names.forget();
  EXPECT_EQ(names.bytes(), 0U);
}

TEST(Names, BeyondTheirRoomShareOneId) {
  Names& names = Names::process();
  names.forget();
  names.set_room(10'000);
  std::set<uint32_t> ids;
  for (int number = 0; number < 1000; ++number) {
    ids.insert(names.intern_for_period("a name that is not short " + std::to_string(number)));
  }
  EXPECT_TRUE(names.fill(0.5));
  EXPECT_LT(names.bytes(), 11'000U);
  EXPECT_LT(ids.size(), 500U);
  EXPECT_EQ(names.text(names.intern_for_period("one more")), Names::kMore);
  names.begin_period();
  EXPECT_FALSE(names.fill(0.5));
  EXPECT_EQ(names.text(names.intern_for_period("one more")), "one more");
  names.set_room(SIZE_MAX);
}

TEST(NameCache, AsksForNewIdsInAnotherPeriod) {
  Names& names = Names::process();
  NameCache cache;
  const uint32_t first = cache.id_of("aten::add");
  EXPECT_EQ(cache.id_of("aten::add"), first);
  names.begin_period();
  names.begin_period();
  EXPECT_EQ(names.text(cache.id_of("aten::add")), "aten::add");
}

TEST(NameCache, GivesEachOfThousandsOfTextsThatComeInTurnsItsId) {
  Names& names = Names::process();
  NameCache cache;
  std::vector<std::string> texts;
  for (int index = 0; index < 5'000; ++index) {
    texts.push_back("text " + std::to_string(index));
  }
  std::vector<uint32_t> first;
  for (int turn = 0; turn < 20; ++turn) {
    for (const std::string& text : texts) {
      first.push_back(cache.id_of(text));
    }
  }
  for (std::size_t index = 0; index < first.size(); ++index) {
    ASSERT_EQ(names.text(first[index]), texts[index % texts.size()]);
  }
}

TEST(StringTable, ReadsUnknownIdsAsEmpty) {
  const StringTable table;
  EXPECT_EQ(table[1], "");
  EXPECT_EQ(table[UINT32_MAX], "");
}

TEST(Digest, TellsTextsApartThatDifferInLengthOrOneBit) {
  std::set<Digest> digests;
  std::size_t texts = 0;
  const auto add = [&](const std::string& text) {
    digests.insert(Digest(text));
    ++texts;
  };
  for (std::size_t length = 0; length < 40; ++length) {
    const std::string zeros(length, '\0');
    add(zeros);
    for (std::size_t bit = 0; bit < 8 * length; ++bit) {
      std::string text = zeros;
      text[bit / 8] = static_cast<char>(1 << bit % 8);
      add(text);
    }
  }
  EXPECT_EQ(digests.size(), texts);
  EXPECT_EQ(Digest("aten::add"), Digest("aten::add"));
}

TEST(Digest, TellsWordsApartByTheirOrder) {
  std::set<Digest> digests;
  for (uint64_t first = 0; first < 300; ++first) {
    for (uint64_t second = 0; second < 300; ++second) {
      Digest digest;
      digest.put(first);
      digest.put(second);
      digests.insert(digest);
    }
  }
  EXPECT_EQ(digests.size(), 300U * 300U);
}

TEST(Digest, SpreadsShapesOverATable) {
  std::vector<int> found(1024);
  for (uint64_t rows = 1; rows <= 64; ++rows) {
    for (uint64_t columns = 1; columns <= 64; ++columns) {
      Digest digest;
      for (const uint64_t word : {uint64_t{2} << 32, 64 * rows, 64 * columns, 64 * columns, uint64_t{1}}) {
        digest.put(word);
      }
      ++found[digest.place() % found.size()];
    }
  }
  EXPECT_LE(*std::ranges::max_element(found), 16);  // four on average
}

TEST(IdCache, MakesTheIdsOfAKeyOnce) {
  const auto cache = std::make_unique<IdCache>();
  int made = 0;
  const auto make = [&] { return IdCache::Ids{static_cast<uint32_t>(++made), 7, 9}; };
  EXPECT_EQ(cache->ids_of(Digest("key"), make), (IdCache::Ids{1, 7, 9}));
  EXPECT_EQ(cache->ids_of(Digest("key"), make), (IdCache::Ids{1, 7, 9}));
  EXPECT_EQ(cache->ids_of(Digest("key\0"sv), make)[0], 2U);
}

TEST(IdCache, GivesEachKeyItsIdsBeyondWhatItHolds) {
  const auto cache = std::make_unique<IdCache>();
  for (int turn = 0; turn < 3; ++turn) {
    for (uint32_t key = 0; key < 10'000; ++key) {
      EXPECT_EQ(cache->ids_of(Digest(std::to_string(key)), [&] { return IdCache::Ids{key}; })[0], key);
    }
  }
}

TEST(IdCache, MakesTheIdsOfThousandsOfKeysThatComeInTurnsOnce) {
  const auto cache = std::make_unique<IdCache>();
  uint32_t made = 0;
  const auto take_turn = [&] {
    for (uint32_t key = 0; key < 5'000; ++key) {
      EXPECT_EQ(cache->ids_of(Digest("key " + std::to_string(key)), [&] { return IdCache::Ids{key, ++made}; })[0], key);
    }
  };
  for (int turn = 0; turn < 20; ++turn) {
    take_turn();
  }
  made = 0;
  take_turn();
  EXPECT_LT(made, 2'500U);  // keys that share two places go on taking turns
}

TEST(IdCache, WithMoreKeysThanItMayHoldItGivesEachItsIds) {
  const auto cache = std::make_unique<IdCache>();
  for (int turn = 0; turn < 3; ++turn) {
    for (uint32_t key = 0; key < 3 * CacheSize::kMost; ++key) {
      ASSERT_EQ(cache->ids_of(Digest(std::to_string(key)), [&] { return IdCache::Ids{key}; })[0], key);
    }
  }
}

TEST(Utf8, KeepsValidText) {
  for (const char* text : {"", "plain", "gr\xC3\xBC\xC3\x9F", "\xE2\x82\xAC", "\xF0\x9F\x9A\x80 go", "\xED\x9F\xBF",
                           "h\u00e9 \u4f60 \U0001F600"}) {
    EXPECT_EQ(to_utf8(text), text);
  }
}

TEST(Utf8, ReplacesALetterThatWasCut) {
  EXPECT_EQ(to_utf8("a\xC3"), "a\xEF\xBF\xBD");
  EXPECT_EQ(to_utf8("\xC3"), "\xEF\xBF\xBD");
}

TEST(Utf8, ReplacesEachByteThatIsNotText) {
  EXPECT_EQ(to_utf8("\xFF"
                    "b\x80"),
            "\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
  EXPECT_EQ(to_utf8("a\xFF"), "a\xEF\xBF\xBD");
}

TEST(Utf8, ReplacesOverlongFormsAndSurrogates) {
  for (const char* text : {"\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80"}) {
    EXPECT_TRUE(to_utf8(text).starts_with("\xEF\xBF\xBD")) << text;
  }
  EXPECT_EQ(to_utf8("\xC0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(to_utf8("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(to_utf8("\xF4\x90\x80\x80").size(), 12U);  // each of its four bytes
}

TEST(Demangle, SpellsAMangledNameAsItsSource) {
  EXPECT_EQ(demangle("_Z6kernelIfEvPT_i"), "void kernel<float>(float*, int)");
}

TEST(Demangle, LeavesOtherNamesAlone) {
  for (const char* name : {"triton_poi_fused_add_0", "loop_add_fusion_3", "", "_Znonsense", "_Z"}) {
    EXPECT_EQ(demangle(name), name);
  }
}

TEST(ShortName, DropsReturnTypeTemplateArgumentsAndParameters) {
  EXPECT_EQ(short_name("void at::native::fill<4, at::Functor<float> >(int, at::Functor<float>)"), "at::native::fill");
}

TEST(ShortName, DropsTemplateArgumentsInTheMiddle) {
  EXPECT_EQ(short_name("void ns::Outer<int>::run<float>(int)"), "ns::Outer::run");
}

TEST(ShortName, KeepsAnonymousNamespaces) {
  EXPECT_EQ(short_name("(anonymous namespace)::add(int*)"), "(anonymous namespace)::add");
}

TEST(ShortName, KeepsOperators) {
  EXPECT_EQ(short_name("bool ns::Less::operator()<int>(int, int) const"), "ns::Less::operator()");
  EXPECT_EQ(short_name("ns::operator<<(ns::A, int)"), "ns::operator<<");
  EXPECT_EQ(short_name("ns::A::operator bool() const"), "ns::A::operator bool");
  EXPECT_EQ(short_name("void my_operator<3>(int)"), "my_operator");
}

TEST(ShortName, KeepsLambdas) {
  EXPECT_EQ(short_name("run(int)::{lambda(int)#1}::operator()(int) const"), "run");
  EXPECT_EQ(short_name("ns::{lambda(int)#1}::operator()(int) const"), "ns::{lambda(int)#1}::operator()");
}

TEST(ShortName, ReadsComparisonsAndArrowsInsideTemplateArguments) {
  EXPECT_EQ(short_name("void pick<(4>3), decltype(a->b)>(int)"), "pick");
}

TEST(ShortName, LeavesOtherLanguagesNamesAlone) {
  for (const char* name : {"triton_poi_fused_add_0", "loop_add_fusion.3", "ampere_sgemm_128x64_tn", "", "a b"}) {
    EXPECT_EQ(short_name(name), name);
  }
}

TEST(ShortName, LeavesNamesOfCompilersAndLibrariesAlone) {
  for (const char* name : {
           "loop_add_fusion",
           "input_reduce_fusion_1",
           "gemm_fusion_dot_3",
           "wrapped_transpose",
           "triton_poi_fused_add_relu_0",
           "_attn_fwd",
           "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
           "__5x_cublas",
           "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nn_align8",
           "nvjet_tst_128x64_64x11_1x2_h_bz_coopA_TNT",
       }) {
    EXPECT_EQ(demangle(name), name);
    EXPECT_EQ(short_name(name), name);
  }
}

TEST(ShortName, KeepsWhatACutlassKernelRuns) {
  EXPECT_EQ(short_name("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>"
                       "(cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8::Params)"),
            "cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>");
  EXPECT_EQ(short_name("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int, int> >(int)"),
            "cutlass::device_kernel");
}

TEST(ShortName, ReadsTheKernelsOfNcclAndTorch) {
  EXPECT_EQ(demangle("_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"),
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)");
  EXPECT_EQ(short_name("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL");
  EXPECT_EQ(short_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
                       "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"),
            "at::native::vectorized_elementwise_kernel");
  EXPECT_EQ(short_name("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
                       "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::"
                       "{lambda(float)#1}>(at::TensorIteratorBase&, at::native::direct_copy_kernel_cuda("
                       "at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1} const&)::"
                       "{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<int>)"),
            "at::native::elementwise_kernel");
  EXPECT_EQ(short_name("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<"
                       "float, at::native::sum_functor<float>::operator()(at::TensorIterator&)::{lambda(float, "
                       "float)#1}>, unsigned int, float, 4, 4> >(int)"),
            "at::native::reduce_kernel");
}

TEST(ShortName, EndsOnUnbalancedBrackets) {
  for (const char* name : {"f<", "f<(", "f{", "operator", "operator("}) {
    EXPECT_FALSE(short_name(name).empty());
  }
}

}  // namespace
}  // namespace gpuscope::base
