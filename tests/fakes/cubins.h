// SPDX-License-Identifier: Apache-2.0
// Images of modules, built by hand: ELF files with the sections and symbols that matter.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace gpuscope::fakes {

class Cubin {
 public:
  struct Section {
    std::string name;
    uint64_t bytes;
    uint32_t type = SHT_PROGBITS;
    uint64_t flags = SHF_ALLOC;
  };
  Cubin& add(const Section& section) {
    sections_.push_back(section);
    return *this;
  }
  /// A function that the module's kernels call: its own, or one of the driver's.
  Cubin& call(const std::string& function, bool own = false) {
    calls_.push_back({function, own});
    return *this;
  }

  /// Sections: none, the names of sections, the names of symbols, symbols, and what was added.
  std::string image() const {
    std::string section_names(1, '\0');
    std::string symbol_names(1, '\0');
    std::string symbols(sizeof(Elf64_Sym), '\0');
    for (const auto& [function, own] : calls_) {
      Elf64_Sym symbol{};
      symbol.st_name = static_cast<uint32_t>(symbol_names.size());
      symbol.st_shndx = own ? 4 : SHN_UNDEF;
      symbol_names += function + '\0';
      symbols.append(reinterpret_cast<const char*>(&symbol), sizeof(symbol));
    }
    std::vector<Elf64_Shdr> headers(4);
    std::string bytes(sizeof(Elf64_Ehdr), '\0');
    const auto put = [&](Elf64_Shdr& header, uint32_t type, const std::string& content) {
      header.sh_type = type;
      header.sh_offset = bytes.size();
      header.sh_size = content.size();
      bytes += content;
    };
    for (const Section& section : sections_) {
      Elf64_Shdr header{};
      header.sh_name = static_cast<uint32_t>(section_names.size());
      section_names += section.name + '\0';
      put(header, section.type, section.type == SHT_NOBITS ? std::string() : std::string(section.bytes, 'c'));
      header.sh_size = section.bytes;
      header.sh_flags = section.flags;
      headers.push_back(header);
    }
    put(headers[1], SHT_STRTAB, section_names);
    put(headers[2], SHT_STRTAB, symbol_names);
    put(headers[3], SHT_SYMTAB, symbols);
    headers[3].sh_link = 2;
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_shoff = bytes.size();
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = static_cast<uint16_t>(headers.size());
    header.e_shstrndx = 1;
    std::memcpy(bytes.data(), &header, sizeof(header));
    bytes.append(reinterpret_cast<const char*>(headers.data()), headers.size() * sizeof(Elf64_Shdr));
    return bytes;
  }

 private:
  struct Call {
    std::string function;
    bool own;
  };
  std::vector<Section> sections_;
  std::vector<Call> calls_;
};

}  // namespace gpuscope::fakes
