// SPDX-License-Identifier: Apache-2.0
#include <elf.h>

#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "gpuscope/activity/collector.h"

namespace gpuscope::activity {
namespace {

constexpr std::array<std::pair<std::string_view, DeviceService>, 4> kServices = {
    {{"__assertfail", kAssert}, {"vprintf", kPrintf}, {"malloc", kMalloc}, {"free", kMalloc}}};

/// An image with a check of every read.
class Image {
 public:
  Image(const void* image, std::size_t bytes) noexcept : data_(static_cast<const char*>(image)), bytes_(bytes) {}

  template <class T>
  std::optional<T> at(uint64_t offset) const noexcept {
    if (offset > bytes_ || bytes_ - offset < sizeof(T)) {
      return std::nullopt;
    }
    T value;
    std::memcpy(&value, data_ + offset, sizeof(T));
    return value;
  }
  /// A text of a string table. Empty if there is none.
  std::string_view text(const Elf64_Shdr& table, uint32_t offset) const noexcept {
    if (table.sh_type != SHT_STRTAB || table.sh_offset > bytes_ || table.sh_size > bytes_ - table.sh_offset ||
        offset >= table.sh_size) {
      return {};
    }
    const char* begin = data_ + table.sh_offset + offset;
    const void* end = std::memchr(begin, '\0', table.sh_size - offset);
    return end != nullptr ? std::string_view(begin, static_cast<const char*>(end) - begin) : std::string_view{};
  }

 private:
  const char* data_;
  std::size_t bytes_;
};

class Sections {
 public:
  explicit Sections(const Image& image) noexcept : image_(image) {
    const auto header = image.at<Elf64_Ehdr>(0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
        header->e_ident[EI_DATA] != ELFDATA2LSB || header->e_shentsize != sizeof(Elf64_Shdr)) {
      return;
    }
    begin_ = header->e_shoff;
    // Numbers that do not fit the header are in the first section's header.
    const auto first = image.at<Elf64_Shdr>(begin_);
    if (!first) {
      return;
    }
    count_ = header->e_shnum != 0 ? header->e_shnum : first->sh_size;
    const auto names = (*this)[header->e_shstrndx != SHN_XINDEX ? header->e_shstrndx : first->sh_link];
    names_ = names ? *names : Elf64_Shdr{};
  }
  uint64_t count() const noexcept { return count_; }
  std::optional<Elf64_Shdr> operator[](uint64_t number) const noexcept {
    return number < count_ && number < UINT32_MAX ? image_.at<Elf64_Shdr>(begin_ + number * sizeof(Elf64_Shdr))
                                                  : std::nullopt;
  }
  std::string_view name(const Elf64_Shdr& section) const noexcept { return image_.text(names_, section.sh_name); }

 private:
  const Image& image_;
  uint64_t begin_ = 0;
  uint64_t count_ = 0;
  Elf64_Shdr names_{};
};

uint32_t services_of(const Image& image, const Elf64_Shdr& symbols, const Elf64_Shdr& names) noexcept {
  uint32_t found = 0;
  for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols.sh_size; at += sizeof(Elf64_Sym)) {
    const auto symbol = image.at<Elf64_Sym>(symbols.sh_offset + at);
    if (!symbol) {
      break;
    }
    if (symbol->st_shndx != SHN_UNDEF || symbol->st_name == 0) {
      continue;
    }
    const std::string_view name = image.text(names, symbol->st_name);
    for (const auto& [function, service] : kServices) {
      found |= name == function ? service : 0U;
    }
  }
  return found;
}

}  // namespace

Cubin read_cubin(const void* bytes, std::size_t size) noexcept {
  const Image image(bytes, bytes != nullptr ? size : 0);
  const Sections sections(image);
  Cubin cubin;
  for (uint64_t number = 0; number < sections.count(); ++number) {
    const auto section = sections[number];
    if (!section) {
      break;
    }
    // Of sections without bytes in the file, only global variables use device memory. The others are per block or
    // thread.
    const bool on_device = section->sh_type != SHT_NOBITS || sections.name(*section).starts_with(".nv.global");
    if ((section->sh_flags & SHF_ALLOC) != 0 && on_device && section->sh_size < UINT32_MAX) {
      cubin.device_bytes += section->sh_size;
    }
    if (const auto names = sections[section->sh_link]; section->sh_type == SHT_SYMTAB && names) {
      cubin.services |= services_of(image, *section, *names);
    }
  }
  return cubin;
}

}  // namespace gpuscope::activity
