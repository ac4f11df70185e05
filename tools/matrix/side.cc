// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/side.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "tools/matrix/worker.h"

namespace keirin::tools::matrix {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kLastGasp{2000};  // for a worker that closed its channel to end

Code code_of(const std::string& name) {
#define KRN_STATUS(id, code, text) \
  if (name == #code) return Code::k_##code;
#include "abi/status.def"
#undef KRN_STATUS
  return Code::k_internal;
}

}  // namespace

Result<std::string> find_command(const std::string& word) {
  std::error_code error;
  for (const fs::path& path : {fs::path(word), fs::path(word) / "bin/keirin", fs::path(word) / "keirin"})
    if (fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0)
      return fs::absolute(path).lexically_normal().string();
  return Status(Code::k_invalid_input, {"no keirin command is there", word, "nothing was measured",
                                        "give an install prefix, a build folder, or the path of a keirin command"});
}

Result<Side> Side::start(const std::string& program) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Status(Code::k_exhausted, std::string("no channel to a worker: ") + ::strerror(errno));
  Descriptor ours = above_standard(Descriptor(ends[0]));
  const Descriptor theirs = above_standard(Descriptor(ends[1]));
  if (ours.get() < 0 || theirs.get() < 0)
    return Status(Code::k_exhausted, "no channel to a worker: too many open files");
  KRN_TRY_LET(ChildProcess child, ChildProcess::start(program, kWorkerWord, -1, theirs.get()));
  return Side(std::move(child), std::move(ours));
}

Result<nlohmann::json> Side::ask(const nlohmann::json& question, std::chrono::milliseconds deadline) {
  const Patience patience{std::chrono::steady_clock::now() + deadline};
  Packet packet;
  packet.head = question;
  Status status = send_packet(channel_.get(), packet, patience);
  if (status.ok()) {
    Result<Packet> answer = receive_packet(channel_.get(), kMaxMessageBytes, patience);
    if (answer.ok() && answer->head.is_object()) {
      const auto error = answer->head.find("error");
      if (error == answer->head.end()) return std::move(answer->head);
      if (error->is_object()) return Status(code_of(error->value("code", "")), error->value("what", ""));
    }
    status = answer.ok() ? Status(Code::k_corrupt, "a worker said what is no answer") : std::move(answer).status();
  }
  const std::string stage = question.value("ask", "");
  const ChildEnd end =
      status.code() == Code::k_crashed ? child_.finish(std::chrono::steady_clock::now() + kLastGasp) : child_.kill();
  if (status.code() == Code::k_timeout)
    return Status(Code::k_timeout,
                  "the worker did not answer \"" + stage + "\" within " + std::to_string(deadline.count()) + " ms");
  if (status.code() == Code::k_crashed) return Status(Code::k_crashed, "the worker " + describe(end, stage, deadline));
  return status;
}

}  // namespace keirin::tools::matrix
