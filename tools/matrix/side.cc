// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/side.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

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

// Counts and times are what a worker says they are only where they can be: it may be of another version, or somebody
// else's.
bool is_count(const nlohmann::json& value) { return value.is_number_unsigned(); }
bool is_text(const nlohmann::json& value) { return value.is_string(); }
bool is_truth(const nlohmann::json& value) { return value.is_boolean(); }
bool is_object(const nlohmann::json& value) { return value.is_object(); }
bool is_texts(const nlohmann::json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_text);
}
bool is_times(const nlohmann::json& value) {
  return value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_count);
}

// What answers have to hold, or may lack where a worker is older.
struct Field {
  std::string_view ask, name;
  bool (*is)(const nlohmann::json&);
  bool may_lack = false;
};
constexpr Field kFields[] = {
    {"hello", "protocol", is_count}, {"hello", "parts", is_object},       {"open", "chosen", is_text},
    {"open", "disturbed", is_text},  {"open", "counts", is_object, true}, {"open", "fallbacks", is_texts, true},
    {"open", "build_ns", is_count},  {"open", "errors", is_object, true}, {"warm", "first_ns", is_count},
    {"warm", "calls", is_count},     {"warm", "settled", is_truth},       {"warm", "settle_ns", is_count, true},
    {"warm", "waited_ns", is_count, true}, {"warm", "counts", is_object, true},
    {"slot", "ns", is_times},        {"slot", "calls", is_count},         {"slot", "lasted_ns", is_count},
    {"slot", "waited_ns", is_count}, {"slot", "stolen_ns", is_count},     {"slot", "disturbed", is_text, true},
    {"device", "disturbed", is_text},
};

// Names the first field that is missing or of another type; empty if there is none.
std::string wrong_field(const std::string& ask, const nlohmann::json& answer) {
  for (const Field& field : kFields) {
    if (field.ask != ask) continue;
    const auto at = answer.find(field.name);
    if (at == answer.end() ? !field.may_lack : !field.is(*at)) return std::string(field.name);
  }
  return {};
}

std::string text_in(const nlohmann::json& object, const char* field) {
  const auto at = object.find(field);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
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

std::string find_package(const std::string& command) {
  std::error_code error;
  const fs::path folder = fs::canonical(command, error).parent_path();
  if (error) return {};
  // Python's part of a build folder is made by configuring; what it can import is there once it is built.
  const auto holds = [&](const fs::path& place) {
    for (const fs::directory_entry& file : fs::directory_iterator(place / "keirin", error))
      if (file.path().filename().string().starts_with("_native.") && file.path().extension() == ".so") return true;
    return false;
  };
  std::vector<fs::path> places = {folder / "python", folder.parent_path()};
  for (const char* lib : {"lib", "lib64", "local/lib"})
    for (const fs::directory_entry& python : fs::directory_iterator(folder.parent_path() / lib, error))
      if (python.path().filename().string().starts_with("python3"))
        for (const char* packages : {"site-packages", "dist-packages"}) places.push_back(python.path() / packages);
  const auto at = std::find_if(places.begin(), places.end(), holds);
  return at == places.end() ? std::string() : at->string();
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
  const std::string stage = question.value("ask", "");
  Packet packet;
  packet.head = question;
  Status status = send_packet(channel_.get(), packet, patience);
  if (status.ok()) {
    Result<Packet> answer = receive_packet(channel_.get(), kMaxMessageBytes, patience);
    if (answer.ok() && answer->head.is_object()) {
      const auto error = answer->head.find("error");
      const std::string wrong = wrong_field(stage, answer->head);
      if (error == answer->head.end() && wrong.empty()) return std::move(answer->head);
      if (error == answer->head.end())
        status = Status(Code::k_corrupt,
                        "the worker's answer to \"" + stage + "\" lacks \"" + wrong + "\", or has another type there");
      else if (error->is_object())
        return Status(code_of(text_in(*error, "code")), text_in(*error, "what"));
    }
    if (status.ok())
      status =
          answer.ok() ? Status(Code::k_corrupt, "the worker's answer is not an object") : std::move(answer).status();
  }
  const ChildEnd end =
      status.code() == Code::k_crashed ? child_.finish(std::chrono::steady_clock::now() + kLastGasp) : child_.kill();
  if (status.code() == Code::k_timeout)
    return Status(Code::k_timeout,
                  "the worker did not answer \"" + stage + "\" within " + std::to_string(deadline.count()) + " ms");
  if (status.code() == Code::k_crashed) return Status(Code::k_crashed, "the worker " + describe(end, stage, deadline));
  return status;
}

}  // namespace keirin::tools::matrix
