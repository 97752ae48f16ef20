// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpuscope::nvtx {

/// The size of a character is the enumerator's value.
enum class Encoding : uint8_t { Utf8 = 1, Utf16 = 2, Utf32 = 4 };

/// Longer texts are cut.
inline constexpr std::size_t kLongestText = 4096;  // bytes

/// The text behind `text` up to its end, or to the cut.
std::string_view bytes_of(const char* text) noexcept;
std::string_view bytes_of(const wchar_t* text) noexcept;

/// base::Names ids of texts, for one thread: no lock and no allocation for a text that was met lately.
class TextCache {
 public:
  /// `bytes` are whole characters; what is not valid reads U+FFFD.
  uint32_t id_of(std::string_view bytes, Encoding encoding = Encoding::Utf8) noexcept;

 private:
  struct Entry {
    std::string bytes;
    uint64_t hash = 0;
    uint32_t id = 0;
    Encoding encoding = Encoding::Utf8;
  };
  std::array<Entry, 1024> entries_;
};

/// The same past every cache: takes a lock.
uint32_t intern(std::string_view bytes, Encoding encoding = Encoding::Utf8) noexcept;
/// The id of "(no name)", for texts that are not given.
uint32_t no_name() noexcept;

/// A number that stands for a text until the end of the process, never 0.
uint64_t register_text(std::string_view bytes, Encoding encoding) noexcept;
/// The id of its text; that of "(no name)" for what is no such number.
uint32_t registered_text(uint64_t number) noexcept;

}  // namespace gpuscope::nvtx
