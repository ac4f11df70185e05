// SPDX-License-Identifier: Apache-2.0
//
// keirin certify: a plugin before everything that a plugin has to do, each part of it in programs of its own, so that no end of theirs is
// the end of this one. It judges nothing itself: it runs those programs, adds up what they tell, and says how to repeat what failed.
#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "core/base/day.h"
#include "core/eager/tensor_services.h"
#include "core/host/find/hardware.h"
#include "tools/certify/group.h"
#include "tools/certify/known.h"
#include "tools/certify/report.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/page/page.h"

namespace keirin::tools {
namespace {

using namespace certify;

// Sheets work on LibTorch's tensors.
std::string why_no_memory(const std::string& uid) {
  for (const HardwareItem& item : find_hardware()) {
    if (item.uid != uid) continue;
    if (!item.torch_device) return "LibTorch does not drive " + uid;
    const Result<TensorRef> one = make_tensor_services()->allocate({DType::k_u8, {1}, {1}, *item.torch_device});
    return one.ok() ? "" : one.status().text();
  }
  return uid + " is not here";
}

Status run(const Words& words, int& exit_code) {
  const auto begin = std::chrono::steady_clock::now();
  Certificate c;
  c.words = words;
  c.day = today();
  KRN_TRY_LET(c.subject, find_subject(words.library));
  c.subject.why_no_memory = why_no_memory;
  KRN_TRY_LET(const Programs programs, find_programs());
  std::vector<Known> known;
  if (!words.known.empty()) {
    KRN_TRY_LET(known, read_known(words.known));
  }
  KRN_TRY_LET(const ScratchFolder scratch, ScratchFolder::make("certify"));
  const Manifest& m = c.subject.manifest;
  std::FILE* out = text_out(words.json);
  fmt::print(out, "{} {}  sha256 {}{}\n", m.name, m.version, c.subject.sha256, words.quick ? "  (quick: a part of the cases)" : "");
  std::fflush(out);
  std::string uid;
  c.groups = run_groups(c.subject, programs, words, scratch.path(), uid);
  for (const HardwareItem& item : find_hardware())
    if (item.uid == uid) c.device = item;
  if (words.only.empty()) c.list_faults = apply_known(c.groups, known, c.day, !words.quick);
  else (void)apply_known(c.groups, known, c.day, false);
  int64_t passed = 0, not_run = 0;
  bool right = c.list_faults.empty();
  for (const Group& group : c.groups) {
    print(out, group, words);
    passed += group.passed, not_run += group.not_run, right = right && group.right();
  }
  for (const std::string& fault : c.list_faults) fmt::print(out, "  FAIL {}: {}\n", words.known, fault);
  const Result<std::string> after = hash_of(c.subject.library);
  const bool same = after.ok() && *after == c.subject.sha256;
  c.verdict = !same           ? "nothing: the library was exchanged meanwhile; run it again"
              : !right        ? "failed"
              : not_run > 0   ? "incomplete: this machine cannot ask all of it, so that nothing is certified"
              : passed == 0   ? "nothing: no case of what was tried is claimed"
              : words.only.empty() ? "passed" : "passed, of what was asked for";
  c.passed = right && same && passed > 0 && not_run == 0;
  c.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (c.device.uid.starts_with("pci:")) fmt::print(out, "on {}, {}, {}\n", c.device.uid, c.device.description, c.device.driver);
  fmt::print(out, "{}: {}\n", m.name, c.verdict);
  exit_code = c.passed ? kOk : kFailed;
  const nlohmann::json all = to_json(c);
  if (!words.html.empty())
    KRN_TRY(write_text(words.html, page_html(fmt::format("Keirin: certificate of {} {}", m.name, m.version), View::kCertificate, all)));
  if (words.json.empty()) return {};
  return write_text(words.json, all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace

void add_certify(CLI::App& app, int& exit_code) {
  auto words = std::make_shared<certify::Words>();
  CLI::App* word = app.add_subcommand(
      "certify", "try a plugin on what the contract asks, all operators, damaged bytes and random graphs; exit 1 if anything is wrong");
  word->add_option("library", words->library, "the plugin's library, beside which its manifest stands, or its folder")->required();
  word->add_flag("--quick", words->quick, "a part of the cases, in a minute");
  word->add_option("--case", words->only,
                   "only this: a group (A to K, operators, bytes, graphs), or one of them with /CASE, as a failure says it")
      ->check(certify::check_only);
  word->add_option("--known", words->known, "a file of failures that are known: a line each, CASE YYYY-MM-DD REASON")
      ->check(CLI::ExistingFile);
  word->add_option("--deadline", words->deadline, "seconds that one check of A to K may take; a case on a GPU has twice that")
      ->capture_default_str();
  word->add_option("--jobs", words->jobs, "processes at once for a GPU's cases; 0: as many as processors, 16 at most")
      ->capture_default_str();
  word->add_option("--html", words->html, "also write the certificate as a page to this file");
  word->add_option("--json", words->json,
                   "also write the result as JSON to this file; - is standard output, which then holds nothing else");
  word->callback([words, &exit_code] {
    Status status = run(*words, exit_code);
    if (!status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
