// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/host_code.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace keirin::test {
namespace {

namespace fs = std::filesystem;

// A folder that goes with all that is in it.
class Scratch {
 public:
  Scratch() {
    std::string path = (fs::temp_directory_path() / "keirin-kernels-XXXXXX").string();
    if (mkdtemp(path.data())) path_ = path;
  }
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  bool made() const { return !path_.empty(); }
  std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

std::vector<char> contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

std::vector<char> compile_for_host(const std::string& text, std::string& error) {
  const Scratch folder;
  const std::string source = folder / "kernels.cc", library = folder / "kernels.so", log = folder / "log";
  if (!folder.made() || !(std::ofstream(source) << text)) return error = "cannot write the kernels' text", std::vector<char>();
  const char* compiler = std::getenv("CXX");
  // What blocks share is the library's own (-Bsymbolic, no unique symbols), also where several have a function of one name.
  const std::string command = std::string(compiler ? compiler : "c++") +
                              " -std=c++17 -O1 -w -ffp-contract=off -fwrapv -shared -fPIC -nostdlib -fno-gnu-unique -Wl,-Bsymbolic -o " +
                              library + " " + source + " 2> " + log;
  if (std::system(command.c_str()) == 0) return contents(library);
  const std::vector<char> words = contents(log);
  error = std::string(words.begin(), words.end()).substr(0, 4000);
  if (error.empty()) error = "the compiler failed without a word: " + command;
  return {};
}

HostCode::HostCode(const std::vector<char>& code, std::string& error) {
  const Scratch folder;
  const std::string path = folder / "kernels.so";
  std::ofstream(path, std::ios::binary).write(code.data(), static_cast<std::streamsize>(code.size()));
  library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  host_ = static_cast<KrnHost*>(symbol("krn_host"));
  const auto* wave = static_cast<const int*>(symbol("krn_wave"));
  const auto* shared = static_cast<char* const*>(symbol("krn_shared"));
  if (!library_) error = dlerror();
  else if (!host_ || !wave || !shared) error = "the text lacks the words of a host";
  if (!error.empty()) return;
  wave_ = *wave;
  shared_ = {shared[0], shared[1]};
}

void* HostCode::symbol(const std::string& name) const { return library_ ? dlsym(library_, name.c_str()) : nullptr; }

}  // namespace keirin::test
