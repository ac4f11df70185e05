// SPDX-License-Identifier: Apache-2.0
#include "core/host/call/library.h"

#define BOOST_DLL_USE_STD_FS
#include <elf.h>

#include <boost/dll/shared_library.hpp>
#include <fstream>
#include <map>
#include <mutex>

#include "abi/planted.h"

namespace keirin {

class PluginLibrary {
 public:
  std::string path;
  boost::dll::shared_library library;
};

namespace {

constexpr const char* kEntryName = "krn_plugin_entry";

std::string machine_name(uint16_t machine) {
  switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "AArch64";
    case EM_386: return "32-bit x86";
    case EM_RISCV: return "RISC-V";
    case EM_PPC64: return "POWER";
    default: return "machine number " + std::to_string(machine);
  }
}

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
constexpr uint16_t kMachine = EM_NONE;
#endif

// Libraries by path. On the heap and never destroyed, so that nothing is unloaded at exit either.
struct Registry {
  std::mutex mutex;
  std::map<std::string, PluginLibrary*> by_path;
};

Registry& registry() {
  static Registry* const r = new Registry;
  return *r;
}

// Copies as much of a table as the plugin has; the rest stays null.
template <class T>
bool read_table(const krn_answer& answer, const char* name, T* out) {
  const krn_table* table = answer.get_table(name, kTableMajor);
  if (!table || table->major != kTableMajor || table->size < sizeof(krn_table)) return false;
  __builtin_memcpy(out, table, std::min<size_t>(table->size, sizeof(T)));
  return true;
}

Status missing(const std::string& path, const std::string& what) {
  return Status(Code::k_unsupported, Message{"the plugin does not offer " + what, path, {}, "report it to its publisher"});
}

Status check_required(const LoadedPlugin& p, const std::string& path) {
  const struct {
    const char* name;
    bool present;
  } rows[] = {
      {"krn.plugin.initialize", p.plugin.initialize != nullptr}, {"krn.plugin.shutdown", p.plugin.shutdown != nullptr},
      {"krn.device.enumerate", p.device.enumerate != nullptr},   {"krn.device.describe", p.device.describe != nullptr},
      {"krn.compile.claim", p.compile.claim != nullptr},         {"krn.compile.compile", p.compile.compile != nullptr},
      {"krn.compile.release", p.compile.release != nullptr},     {"krn.exec.info", p.exec.info != nullptr},
      {"krn.exec.needs", p.exec.needs != nullptr},               {"krn.exec.run", p.exec.run != nullptr},
  };
  for (const auto& row : rows)
    if (!row.present) return missing(path, row.name);
  return {};
}

}  // namespace

Status check_library_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header{};
  const auto refuse = [&](const std::string& what) {
    return Status(Code::k_corrupt, Message{what, path, {}, "install the plugin's build for this machine"});
  };
  if (!file) return refuse("the library cannot be opened");
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  if (file.gcount() != sizeof(header) || std::string_view(reinterpret_cast<char*>(header.e_ident), 4) != ELFMAG)
    return refuse("the library is not an ELF file");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
    return refuse("the library is not built for a 64-bit little-endian machine");
  if (header.e_machine != kMachine)
    return refuse("wrong architecture: the library is built for " + machine_name(header.e_machine) + ", this machine is " +
                  machine_name(kMachine));
  if (header.e_type != ET_DYN) return refuse("the file is not a shared library");
  // dlopen maps what the headers promise and dies of SIGBUS where the file is shorter.
  file.seekg(0, std::ios::end);
  const uint64_t size = static_cast<uint64_t>(file.tellg());
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phoff > size ||
      static_cast<uint64_t>(header.e_phnum) * sizeof(Elf64_Phdr) > size - header.e_phoff)
    return refuse("the library is cut off");
  // The section headers stand last: dlopen does not need them, but a file without them was not copied to its end.
  if (header.e_shoff > size || static_cast<uint64_t>(header.e_shnum) * header.e_shentsize > size - header.e_shoff)
    return refuse("the library is cut off");
  file.seekg(static_cast<std::streamoff>(header.e_phoff));
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    file.read(reinterpret_cast<char*>(&segment), sizeof(segment));
    if (segment.p_offset > size || segment.p_filesz > size - segment.p_offset) return refuse("the library is cut off");
  }
  return {};
}

Result<PluginLibrary*> open_library(const std::string& path) {
  Registry& r = registry();
  const std::lock_guard guard(r.mutex);
  if (const auto at = r.by_path.find(path); at != r.by_path.end()) return at->second;
  auto* opened = new PluginLibrary{path, {}};  // leaked on purpose, also on failure: the loader may have mapped parts
  try {
    using boost::dll::load_mode::type;
    // The throwing overload carries the loader's text; the one with an error_code says "Bad file descriptor".
    opened->library.load(path, static_cast<type>(boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local));
  } catch (const std::exception& e) {
    return Status(Code::k_unsupported, Message{std::string("the library cannot be loaded: ") + e.what(), path, {},
                                               "install what it needs, or the plugin's build for this system"});
  }
  r.by_path.emplace(path, opened);
  return opened;
}

Result<LoadedPlugin> negotiate(PluginLibrary& library, krn_host* host, uint32_t role) {
  const std::string& path = library.path;
  if (!library.library.has(kEntryName))
    return Status(Code::k_unsupported, Message{"the library has no symbol krn_plugin_entry: it is not a Keirin plugin", path, {},
                                               "build it with keirin_add_plugin, or correct the manifest's `library`"});
  const auto entry = &library.library.get<krn_code(const krn_offer*, krn_answer*, krn_err*)>(kEntryName);
  const krn_offer offer = make_offer(host, role);
  krn_answer answer = make_struct<krn_answer>();
  KRN_TRY(call_plugin(path + ": krn_plugin_entry", [&](krn_err* err) { return entry(&offer, &answer, err); }));
  if (answer.abi_major != KRN_ABI_MAJOR || answer.abi_minor != KRN_ABI_MINOR)
    return Status(Code::k_version, Message{"it chose ABI " + std::to_string(answer.abi_major) + "." +
                                               std::to_string(answer.abi_minor) + ", offered was " +
                                               std::to_string(KRN_ABI_MAJOR) + "." + std::to_string(KRN_ABI_MINOR),
                                           path, {}, "rebuild the plugin against this release's abi/plugin.h"});
  if (answer.sanitizer != sanitizer_kind())
    return Status(Code::k_version, Message{"host and plugin are not built with the same sanitizer", path, {},
                                           "build both with the same preset"});
  if (!answer.get_table) return missing(path, "get_table");
  LoadedPlugin loaded;
  loaded.version = text_of(answer.version);
  loaded.build_id = text_of(answer.build_id) + KRN_PLANTED_BUILD();
  loaded.guid = answer.guid;
  loaded.capabilities = answer.capabilities;
  if (!read_table(answer, "krn.plugin", &loaded.plugin)) return missing(path, "the table krn.plugin");
  if (!read_table(answer, "krn.device", &loaded.device)) return missing(path, "the table krn.device");
  if (!read_table(answer, "krn.compile", &loaded.compile)) return missing(path, "the table krn.compile");
  if (!read_table(answer, "krn.exec", &loaded.exec)) return missing(path, "the table krn.exec");
  KRN_TRY(check_required(loaded, path));
  loaded.has_artifact = read_table(answer, "krn.artifact", &loaded.artifact) && loaded.artifact.save && loaded.artifact.load;
  loaded.has_replay = read_table(answer, "krn.replay", &loaded.replay) && loaded.replay.begin && loaded.replay.end &&
                      loaded.replay.launch && loaded.replay.release;
  return loaded;
}

}  // namespace keirin
