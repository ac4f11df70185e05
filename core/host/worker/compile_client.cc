// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/compile_client.h"

#include "core/host/worker/compile_words.h"
#include "core/host/worker/worker_words.h"

namespace keirin {

using std::chrono::milliseconds;

Status CompileClient::unreadable(const char* what) const {
  return Status(Code::k_corrupt, Message{what, worker_.plugin().name + ", in the compile child", {}, {}});
}

Result<ClaimResult> CompileClient::claim(const std::string& device, const PluginRegion& region, const PolicyOptions& policy) {
  KRN_TRY_LET(const Packet answer, worker_.ask("claim", claim_question(device, region, policy), worker_.limits().deadline));
  ClaimResult claims;
  try {
    claims = claims_from_json(answer.head);
  } catch (const nlohmann::json::exception&) {
    return unreadable("answered claims that could not be read");
  }
  return claims;
}

Result<CompileClient::Compiled> CompileClient::compile_once(const std::string& device, const PluginRegion& region,
                                                          const PolicyOptions& policy, const CompileOptions& options,
                                                          bool with_weights, bool* weights_missed) {
  CompileOptions told = options;
  milliseconds deadline = worker_.limits().deadline;
  // The plugin is told a little less than it has: it may stop by itself.
  if (options.deadline.count() > 0) deadline = std::chrono::ceil<milliseconds>(options.deadline) * 5 / 4 + milliseconds(200);
  else told.deadline = deadline * 9 / 10;
  Result<Packet> question = compile_question(device, region, policy, told, with_weights);
  if (!question.ok()) {
    no_child_ = true;
    return std::move(question).status();
  }
  KRN_TRY_LET(Packet answer, worker_.ask("compile", *question, deadline, options.cancel));
  Compiled made;
  std::string dump;
  try {
    *weights_missed = answer.head.at("weights_missed");
    if (answer.head.contains("refused")) return status_from_json(answer.head.at("refused"));
    made.num_codegen = answer.head.at("num_codegen");
    made.artifact = {std::move(answer.blobs.at(0)), std::move(answer.blobs.at(1))};
    dump = std::move(answer.blobs.at(2));
  } catch (const std::exception&) {
    return unreadable("answered what is not an artifact");
  }
  try {
    if (options.dump) options.dump(dump);
  } catch (...) {  // the caller's, and nothing to hold against the plugin
  }
  return made;
}

Result<CompileClient::Compiled> CompileClient::compile(const std::string& device, const PluginRegion& region,
                                                     const PolicyOptions& policy, const CompileOptions& options) {
  // Without the weights first: what is packed when the artifact is loaded need not be copied here. Asked again with them where
  // that was not enough.
  bool missed = false;
  Result<Compiled> made = compile_once(device, region, policy, options, false, &missed);
  if (made.ok() || !missed || made.status().code() != Code::k_unsupported) return made;
  return compile_once(device, region, policy, options, true, &missed);
}

}  // namespace keirin
