// SPDX-License-Identifier: Apache-2.0
//
// A: the library as a file, read and not run, and what loading it does. The host never trusts a section header; these checks do, because
// what they look at is bounds-checked and a stripped library that hides its symbols fails the first of them.
#include <dirent.h>
#include <elf.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "tests/certify/trial.h"

namespace keirin::certify {
namespace {

class File {
 public:
  explicit File(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream all;
    all << file.rdbuf();
    bytes_ = std::move(all).str();
    header_ = at<Elf64_Ehdr>(0);
    expect(std::memcmp(header_.e_ident, ELFMAG, SELFMAG) == 0 && header_.e_ident[EI_CLASS] == ELFCLASS64, "it is no 64-bit ELF file");
    for (uint64_t i = 0; i < header_.e_phnum; ++i) segments.push_back(at<Elf64_Phdr>(header_.e_phoff + i * sizeof(Elf64_Phdr)));
    for (uint64_t i = 0; i < header_.e_shnum; ++i) sections_.push_back(at<Elf64_Shdr>(header_.e_shoff + i * sizeof(Elf64_Shdr)));
    for (const Elf64_Shdr& s : sections_) {
      if (s.sh_type == SHT_DYNAMIC)
        for (uint64_t k = 0; k < s.sh_size / sizeof(Elf64_Dyn); ++k) dynamic.push_back(at<Elf64_Dyn>(s.sh_offset + k * sizeof(Elf64_Dyn)));
      if (s.sh_type != SHT_DYNSYM) continue;
      for (uint64_t k = 0; k < s.sh_size / sizeof(Elf64_Sym); ++k) {
        const auto symbol = at<Elf64_Sym>(s.sh_offset + k * sizeof(Elf64_Sym));
        symbols.push_back({symbol, string(s.sh_link, symbol.st_name)});
      }
      strings_ = s.sh_link;
    }
    expect(!symbols.empty(), "it has no dynamic symbols to look at");
  }

  std::vector<std::string> texts(int64_t tag) const {
    std::vector<std::string> out;
    for (const Elf64_Dyn& d : dynamic)
      if (d.d_tag == tag) out.push_back(string(strings_, d.d_un.d_val));
    return out;
  }
  uint64_t flags(int64_t tag) const {
    uint64_t out = 0;
    for (const Elf64_Dyn& d : dynamic)
      if (d.d_tag == tag) out |= d.d_un.d_val;
    return out;
  }
  bool has(int64_t tag) const {
    for (const Elf64_Dyn& d : dynamic)
      if (d.d_tag == tag) return true;
    return false;
  }

  struct Symbol {
    Elf64_Sym entry;
    std::string name;
    int binding() const { return ELF64_ST_BIND(entry.st_info); }
    bool defined() const { return entry.st_shndx != SHN_UNDEF; }
  };
  std::vector<Elf64_Phdr> segments;
  std::vector<Elf64_Dyn> dynamic;
  std::vector<Symbol> symbols;

 private:
  template <class T>
  T at(uint64_t offset) const {
    expect(offset <= bytes_.size() && bytes_.size() - offset >= sizeof(T), "the file is cut off");
    T out;
    std::memcpy(&out, bytes_.data() + offset, sizeof out);
    return out;
  }
  std::string string(uint32_t section, uint64_t offset) const {
    expect(section < sections_.size(), "a table of strings is missing");
    const uint64_t from = sections_[section].sh_offset + offset;
    expect(from < bytes_.size(), "the file is cut off");
    return bytes_.substr(from, bytes_.find('\0', from) - from);
  }
  std::string bytes_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
  uint32_t strings_ = 0;
};

void one_export(Trial& t) {
  std::string others;
  bool there = false;
  for (const File::Symbol& s : File(t.request().library).symbols) {
    if (!s.defined() || (s.binding() != STB_GLOBAL && s.binding() != STB_WEAK)) continue;
    if (s.name == "krn_plugin_entry") there = true;
    else others += " " + s.name;
  }
  expect(there, "it does not export krn_plugin_entry");
  expect(others.empty(), "it exports more than krn_plugin_entry:{}", others.substr(0, 300));
}

void no_foreign_libraries(Trial& t) {
  for (const std::string& name : File(t.request().library).texts(DT_NEEDED))
    for (const char* foreign : {"libtorch", "libc10", "libkeirin", "libpython"})
      expect(!name.starts_with(foreign), "it needs {}, which is its host's and changes with it", name);
}

void never_unloaded(Trial& t) {
  expect(File(t.request().library).flags(DT_FLAGS_1) & DF_1_NODELETE, "it is not linked with -z nodelete");
}

void no_static_tls(Trial& t) {
  expect(!(File(t.request().library).flags(DT_FLAGS) & DF_STATIC_TLS), "it needs a part of the block of static thread variables, which "
         "runs out when libraries are opened at run time: compile with -ftls-model=global-dynamic");
}

void no_text_relocations(Trial& t) {
  const File file(t.request().library);
  expect(!file.has(DT_TEXTREL) && !(file.flags(DT_FLAGS) & DF_TEXTREL), "its code is changed while it is loaded: compile with -fPIC");
}

void no_unique_symbols(Trial& t) {
  for (const File::Symbol& s : File(t.request().library).symbols)
    expect(!(s.defined() && s.binding() == STB_GNU_UNIQUE), "{} is one for the whole process: compile with -fno-gnu-unique", s.name);
}

void own_run_path(Trial& t) {
  const File file(t.request().library);
  for (const int64_t tag : {int64_t{DT_RUNPATH}, int64_t{DT_RPATH}})
    for (const std::string& path : file.texts(tag)) {
      std::istringstream parts(path);
      for (std::string part; std::getline(parts, part, ':');)
        expect(part.starts_with("$ORIGIN"), "it looks for libraries in {}, which is another machine's or another user's folder", part);
    }
}

void no_executable_stack(Trial& t) {
  for (const Elf64_Phdr& s : File(t.request().library).segments)
    expect(s.p_type != PT_GNU_STACK || !(s.p_flags & PF_X), "it asks for an executable stack");
}

void no_writable_code(Trial& t) {
  for (const Elf64_Phdr& s : File(t.request().library).segments)
    expect(s.p_type != PT_LOAD || (s.p_flags & (PF_W | PF_X)) != (PF_W | PF_X), "a part of it can be written and run");
}

int entries_of(const char* folder) {
  int count = 0;
  if (DIR* const dir = ::opendir(folder)) {
    while (::readdir(dir)) ++count;
    ::closedir(dir);
  }
  return count;
}

void loads(Trial& t) { t.load(); }

void quiet_load(Trial& t) {
  const int threads = entries_of("/proc/self/task"), files = entries_of("/proc/self/fd");
  t.load();
  expect(entries_of("/proc/self/task") == threads, "loading it starts a thread");
  expect(entries_of("/proc/self/fd") == files, "loading it leaves a file open");
}

constexpr Check kChecks[] = {
    {"A/one_export", "exports krn_plugin_entry and nothing else", Rung::kFile, one_export},
    {"A/no_foreign_libraries", "needs no library of its host", Rung::kFile, no_foreign_libraries},
    {"A/never_unloaded", "is linked so that it stays mapped", Rung::kFile, never_unloaded},
    {"A/no_static_tls", "has no thread variables in the static block", Rung::kFile, no_static_tls},
    {"A/no_text_relocations", "has code that loading does not change", Rung::kFile, no_text_relocations},
    {"A/no_unique_symbols", "has no symbol that is one for the process", Rung::kFile, no_unique_symbols},
    {"A/own_run_path", "finds its libraries beside itself", Rung::kFile, own_run_path},
    {"A/no_executable_stack", "asks for no executable stack", Rung::kFile, no_executable_stack, Rung::kPlainStack},
    {"A/no_writable_code", "has no part that is written and run", Rung::kFile, no_writable_code},
    {"A/loads", "can be loaded into a process that holds nothing but the C and C++ libraries", Rung::kPlainStack, loads,
     Rung::kLoads},
    {"A/quiet_load", "starts no thread and opens no file while it is loaded", Rung::kLoads, quiet_load},
};

}  // namespace

std::span<const Check> static_checks() { return kChecks; }

}  // namespace keirin::certify
