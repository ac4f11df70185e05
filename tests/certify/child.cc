// SPDX-License-Identifier: Apache-2.0
#include "tests/certify/child.h"

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>

namespace keirin::certify {
namespace {

Descriptor memory_file(const char* name, const std::string& text) {
  Descriptor file = above_standard(Descriptor(::memfd_create(name, MFD_CLOEXEC)));
  (void)!::write(file.get(), text.data(), text.size());
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

std::string all_of(const Descriptor& file) {
  std::string out;
  char part[4096];
  for (ssize_t n; (n = ::pread(file.get(), part, sizeof part, static_cast<off_t>(out.size()))) > 0;)
    out.append(part, static_cast<size_t>(n));
  return out;
}

}  // namespace

Result<ChildAnswer> ask_child(const std::string& request, std::chrono::milliseconds deadline) {
  const auto begin = ChildProcess::Clock::now();
  const Descriptor question = memory_file("request", request), told = memory_file("told", "");
  static const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  KRN_TRY_LET(ChildProcess child, ChildProcess::start(self, "--try-one", question.get(), told.get()));
  ChildAnswer out;
  out.end = child.finish(begin + deadline);
  out.told = all_of(told);
  return out;
}

}  // namespace keirin::certify
