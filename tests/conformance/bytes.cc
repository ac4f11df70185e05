// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/bytes.h"

#include <optional>
#include <random>

#include "abi/graph.h"
#include "tests/conformance/values.h"

namespace keirin::conformance {
namespace {

constexpr int kDamages = 64;

class Damage {
 public:
  Damage(const Case& c, Subject& subject) : c_(c), subject_(subject) {}

  std::vector<Outcome> run() {
    Outcome region = begin("damaged_region"), whole = begin("artifact"), damaged = begin("damaged_artifact");
    if (Status made = make(); !made.ok()) {
      fail(region, made.text());
      return {region};
    }
    if (!compiled_->claimed) {
      unclaimed(region, compiled_->why);
      return {region};
    }
    damage_region(region);
    const Result<Artifact> artifact = subject_.device().save(*compiled_->executable);
    if (!artifact.ok() && artifact.status().code() == Code::k_unsupported) {
      unclaimed(whole, "no krn.artifact");
    } else if (!artifact.ok()) {
      fail(whole, artifact.status().text());
    } else {
      round_trip(whole, *artifact);
    }
    if (whole.verdict == Outcome::kPassed) damage_artifact(damaged, *artifact);
    else unclaimed(damaged, "not tried: there is no artifact that is right undamaged");
    return {region, whole, damaged};
  }

 private:
  using Outputs = std::vector<GuardedTensor>;

  Outcome begin(const std::string& what) const { return {c_.name + "/" + what, Outcome::kPassed, {}, false, false}; }
  static void fail(Outcome& outcome, std::string why) { outcome.verdict = Outcome::kFailed, outcome.reason = std::move(why); }
  static void unclaimed(Outcome& outcome, std::string why) { outcome.verdict = Outcome::kUnclaimed, outcome.reason = std::move(why); }

  Status make() {
    inputs_.resize(c_.graph.values.size());
    tensors_.reserve(c_.feeds.size()), lent_.reserve(c_.feeds.size());
    std::vector<Lent> constants;
    for (size_t i = 0; i < c_.feeds.size(); ++i) {
      const Value& value = c_.graph.values[c_.feeds[i].value];
      const std::vector<uint8_t> elements = fill(value.type, c_.feeds[i], false, i);
      GuardedTensor& tensor = tensors_.emplace_back(value.type, c_.shifted && value.kind != ValueKind::kConstant);
      for (int64_t k = 0; k < tensor.num_elements(); ++k) tensor.set(k, elements.data() + k * dtype_bytes(value.type.dtype));
      tensor.seal();
      KRN_TRY_LET(Lent lent, subject_.lend(tensor));
      if (value.kind == ValueKind::kConstant) constants.push_back(lent);
      lent_.push_back(std::move(lent));
      inputs_[c_.feeds[i].value] = {&tensor, &lent_.back()};
    }
    KRN_TRY_LET(compiled_, subject_.compile(c_, constants));
    if (!compiled_->claimed) return {};
    region_ = {compiled_->bytes.bytes, compiled_->bytes.hash, {}};
    for (ValueId v : compiled_->bytes.weights) region_.weights.push_back(constants[c_.graph.values[v].index].view);
    return {};
  }

  Result<Outputs> answer(std::shared_ptr<Executable> executable) {
    Compiled with = *compiled_;
    with.executable = std::move(executable);
    Outputs out;
    for (const Output& o : c_.graph.outputs) out.emplace_back(c_.graph.type(o.value), c_.shifted);
    KRN_TRY_LET(const std::string damage, subject_.run(with, inputs_, out));
    if (!damage.empty()) return Status(Code::k_wrong_result, damage);
    return out;
  }

  // One byte changed, or the end cut off. The seed is the number of the damage: the same everywhere.
  template <class Bytes>
  static Bytes damaged(Bytes bytes, int number) {
    if (bytes.empty()) return bytes;
    std::mt19937 random(static_cast<uint32_t>(number));
    const size_t at = random() % bytes.size();
    if (number % 4 == 0) bytes.resize(at);
    else bytes[at] = static_cast<typename Bytes::value_type>(bytes[at] ^ (1 << (random() % 8)));
    return bytes;
  }

  // Whatever it answers to bytes that are still a region; what is none has to be refused.
  void damage_region(Outcome& outcome) {
    for (int number = 0; number < kDamages && outcome.verdict == Outcome::kPassed; ++number) {
      const auto bytes = damaged(compiled_->bytes.bytes, number);
      krn_graph graph;
      const bool whole = krn_graph_open(bytes.data(), bytes.size(), &graph) == 0;
      PluginRegion region{bytes, region_.hash, region_.weights};
      if (subject_.device().claim(region, {}).ok() && !whole)
        fail(outcome, "claims of bytes that are not a region, damage " + std::to_string(number));
      if (subject_.device().compile(region, {}, {}).ok() && !whole)
        fail(outcome, "compiles bytes that are not a region, damage " + std::to_string(number));
    }
  }

  void round_trip(Outcome& outcome, const Artifact& artifact) {
    const Result<ArtifactVerdict> verdict = subject_.device().check(artifact.token);
    if (!verdict.ok()) return fail(outcome, verdict.status().text());
    if (*verdict == ArtifactVerdict::kReject) return fail(outcome, "check() rejects the token on the machine that made it");
    Result<std::shared_ptr<Executable>> loaded = subject_.device().load(region_, artifact);
    if (!loaded.ok()) return fail(outcome, loaded.status().text());
    Result<Outputs> expected = answer(compiled_->executable), got = answer(std::move(loaded).value());
    if (!expected.ok()) return fail(outcome, expected.status().text());
    if (!got.ok()) return fail(outcome, "loaded: " + got.status().text());
    expected_ = std::move(expected).value();
    if (!same(*got)) fail(outcome, "what was loaded gives other bits than what was saved");
  }

  void damage_artifact(Outcome& outcome, const Artifact& artifact) {
    for (int number = 0; number < 2 * kDamages; ++number) {
      Artifact bad = artifact;
      const bool token = number % 2 == 0 && !bad.token.empty();
      (token ? bad.token : bad.body) = damaged(token ? bad.token : bad.body, number / 2);
      const std::string which = std::string(token ? "token" : "body") + ", damage " + std::to_string(number / 2);
      (void)subject_.device().check(bad.token);
      Result<std::shared_ptr<Executable>> loaded = subject_.device().load(region_, bad);
      if (!loaded.ok()) {
        const Code code = loaded.status().code();
        if (code != Code::k_corrupt && code != Code::k_version && code != Code::k_unsupported)
          return fail(outcome, which + " is not refused as corrupt: " + loaded.status().text());
        continue;
      }
      if (token) continue;  // a token may be cut to one of another policy
      const Result<Outputs> got = answer(std::move(loaded).value());
      if (!got.ok() || !same(*got)) return fail(outcome, which + " is loaded, and does not run as what was saved");
    }
  }

  bool same(const Outputs& got) const {
    for (size_t o = 0; o < got.size(); ++o)
      if (!got[o].same_elements(expected_[o])) return false;
    return true;
  }

  const Case& c_;
  Subject& subject_;
  std::vector<GuardedTensor> tensors_;
  std::vector<Lent> lent_;
  std::vector<Subject::Fed> inputs_;
  std::optional<Compiled> compiled_;
  PluginRegion region_;
  Outputs expected_;
};

}  // namespace

std::vector<Outcome> damage_case(const Case& c, Subject& subject) { return Damage(c, subject).run(); }

}  // namespace keirin::conformance
