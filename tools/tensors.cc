// SPDX-License-Identifier: Apache-2.0
#include "tools/tensors.h"

#include <fmt/format.h>

#include <sstream>

#include "core/api/signature.h"
#include "core/eager/weights/safetensors.h"
#include "tools/files.h"
#include "tools/program.h"

namespace keirin::tools {
namespace {

Result<std::vector<TensorRef>> read_inputs(const Session& session, const CommonOptions& common, Runtime& runtime) {
  const Signature signature = session.signature();
  std::vector<TensorRef> inputs(signature.inputs.size());
  const auto take = [&](const std::string& name, const TensorRef& tensor, const std::string& path) -> Status {
    Result<size_t> position = input_position(signature, name);
    if (!position.ok()) return std::move(position).status().at(path);
    if (inputs[*position])
      return Status(Code::k_invalid_input,
                    {"input " + signature.inputs[*position].name + " is given twice", path, "nothing was run", "give it once"});
    KRN_TRY_LET(inputs[*position], runtime.tensors().to_device(tensor, session.device()));
    return {};
  };
  if (!common.inputs.empty()) {
    KRN_TRY_LET(const NamedTensors named, read_safetensors(common.inputs, runtime.tensors()));
    for (const auto& [name, tensor] : named) KRN_TRY(take(name, tensor, common.inputs));
  }
  for (const std::string& word : common.named_inputs) {
    const size_t equals = word.find('=');
    const std::string path = equals == std::string::npos ? std::string() : word.substr(equals + 1);
    if (equals == 0 || path.empty())
      return Status(Code::k_invalid_input, {"\"" + word + "\" does not say which file is which input", "--input", "nothing was run",
                                            "write NAME=FILE.safetensors"});
    KRN_TRY_LET(const NamedTensors named, read_safetensors(path, runtime.tensors()));
    if (named.size() != 1)
      return Status(Code::k_invalid_input, {"the file holds " + std::to_string(named.size()) + " tensors and not one", path,
                                            "nothing was run", "give files with several tensors with --inputs"});
    KRN_TRY(take(word.substr(0, equals), named.begin()->second, path));
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i])
      return Status(Code::k_invalid_input,
                    {"input " + signature.inputs[i].name + " (position " + std::to_string(i) + ") is missing", common.inputs,
                     "nothing was run", "give it in --inputs, or with --input " + signature.inputs[i].name + "=FILE"});
  return inputs;
}

// Of what a failing child said: its own error's first line, which follows "keirin: ".
std::string error_in(const std::string& said) {
  const size_t begin = said.rfind("keirin: ");
  if (begin == std::string::npos) return {};
  return ": " + said.substr(begin + 8, said.find('\n', begin) - begin - 8);
}

Status try_in_child(const std::string& model, const CommonOptions& common, const std::vector<int64_t>& sizes,
                    const std::string& inputs) {
  Options options = common.runtime;
  options.use_cache = false;
  std::vector<std::string> words = {"keirin", "run", model, "--quiet"};
  for (std::string& word : command_words(options)) words.push_back(std::move(word));
  words.push_back("--try-drawn");
  if (!sizes.empty()) words.push_back(fmt::format("{}", fmt::join(sizes, ",")));
  KRN_TRY_LET(const ScratchFolder scratch, ScratchFolder::make("drawn"));
  ProgramRun run{.program = "/proc/self/exe", .words = std::move(words), .errors = scratch.path() + "/said"};
  // A write behind a block's end may harm only later, or nobody in that process: glibc's checking allocator ends it
  // when the block is freed. Where the library is missing the loader says so and goes on without it.
  run.settings = {"LD_PRELOAD=libc_malloc_debug.so.0", "GLIBC_TUNABLES=glibc.malloc.check=3"};
  const ProgramEnd ended = run_program(run);
  if (ended.code == 0) return {};
  const Result<std::string> said = read_file(run.errors);
  return Status(Code::k_invalid_input,
                {"what integers are legal in " + inputs + " is not known, and a process that tried drawn ones " +
                     ended.how + (said.ok() ? error_in(*said) : ""),
                 model, "nothing was run in this process",
                 "give the inputs: --inputs FILE.safetensors, tensors named 0, 1, ..."});
}

}  // namespace

Result<std::vector<int64_t>> parse_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    if (item.empty() || item.size() > 12 || item.find_first_not_of("0123456789") != std::string::npos)
      return Status(Code::k_invalid_input,
                    {"\"" + text + "\" is not a list of sizes", "--at", "nothing was run",
                     "give the free sizes of the inputs in the order of their appearance: --at 8,128"});
    sizes.push_back(std::stoll(item));
  }
  return sizes;
}

Result<std::vector<TensorRef>> inputs_for(Session& session, Runtime& runtime, const std::string& model,
                                          const CommonOptions& common, const std::vector<int64_t>& sizes) {
  if (sizes.empty() && !(common.inputs.empty() && common.named_inputs.empty())) return read_inputs(session, common, runtime);
  KRN_TRY_LET(const std::vector<std::string> unknown, session.unknown_inputs(sizes));
  if (!unknown.empty()) KRN_TRY(try_in_child(model, common, sizes, fmt::format("{}", fmt::join(unknown, ", "))));
  return session.example_inputs(1, sizes);
}

Status try_drawn(Session& session, const std::vector<int64_t>& sizes) {
  for (int call = 0; call < 2; ++call) {  // the second one frees and takes again what the first one may have harmed
    KRN_TRY_LET(const std::vector<TensorRef> inputs, session.example_inputs(1, sizes));
    KRN_TRY(session.call_eager(inputs).status());
  }
  return {};
}

Status check_outputs(const Session& session) {
  for (const auto& [position, dtype] : session.output_dtypes())
    if (!safetensors_name(dtype))
      return Status(
          Code::k_unsupported,
          {fmt::format("output {} is of {}, for which the safetensors format has no name", position, dtype_name(dtype)),
           session.name(), "nothing was run", "leave out --outputs, or let the model return torch.view_as_real of it"});
  return {};
}

std::string output_name(const Signature& signature, size_t position) {
  return position < signature.outputs.size() ? signature.outputs[position].name : std::to_string(position);
}

void print_warnings(const ModelReport& report) {
  for (const std::string& reason : report.reasons)
    if (reason.starts_with("warning: ")) fmt::print(stderr, "  {}: {}\n", report.model, reason);
}

Status write_outputs(const std::string& path, const Signature& signature, const std::vector<TensorRef>& outputs, TensorServices& services) {
  NamedTensors named;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i]) named.emplace_back(output_name(signature, i), outputs[i]);
  return write_safetensors(path, named, services);
}

}  // namespace keirin::tools
