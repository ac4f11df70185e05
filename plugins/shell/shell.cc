// SPDX-License-Identifier: Apache-2.0
//
// The executable of a device of this kind, and the kit's questions answered with the code generator.
#include "plugins/shell/shell.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "plugins/codegen/plan/artifact.h"
#include "plugins/codegen/plan/compiled_region.h"
#include "plugins/codegen/region/claim.h"

namespace keirin::shell {
namespace {

constexpr double kConfidence = 0.3;  // in a claim's price, which is a prior

class Inside {
 public:
  explicit Inside(const Held* held) : held_(held) {
    if (held_) former_ = held_->enter();
  }
  ~Inside() {
    if (held_) held_->leave(former_);
  }
  Inside(const Inside&) = delete;

 private:
  const Held* held_;
  Held::Former former_;
};

codegen::CompileContext compile_context(const kit::Region& region, const krn_policy& policy,
                                        const krn_options* options) {
  const kit::Host& host = kit::host();
  codegen::CompileContext context;
  context.core = host.core;
  context.consts = host.consts;
  context.memory = host.memory;
  context.threads = host.threads;
  context.host = host.host;
  context.weights = region.weights;
  context.policy = &policy;
  context.options = options;
  return context;
}

std::span<const uint8_t, 32> hash_of(const uint8_t* hash) { return std::span<const uint8_t, 32>(hash, 32); }

class Executable : public kit::Executable {
 public:
  // The device outlives it.
  Executable(Device& device, const Asked& asked, std::unique_ptr<codegen::CompiledRegion> steps,
             std::unique_ptr<codegen::Backend> backend, std::shared_ptr<const Held> held, const Traits& traits, const kit::Region& region)
      : device_(device), asked_(asked), traits_(traits), held_(std::move(held)), backend_(std::move(backend)), steps_(std::move(steps)) {
    std::copy_n(region.hash, 32, hash_);
  }
  ~Executable() override {
    const Inside inside(held_.get());
    steps_.reset();
  }

  void info(krn_exec_info& out) const override {
    out.flags = traits_.exec_flags | (steps_->inputs_intact() ? KRN_EXEC_INPUTS_INTACT : 0);
    out.num_kernels = steps_->num_kernels();
    out.num_anchors = steps_->num_anchors();
    out.num_codegen = steps_->num_codegen();
    out.code_bytes = backend_->code_bytes();
    if (traits_.keeps_constants) out.constant_bytes = static_cast<uint64_t>(steps_->constant_bytes());
  }

  void needs(krn_needs& out) const override {
    out.workspace_bytes = static_cast<uint64_t>(steps_->workspace_bytes());
    out.workspace_align = codegen::CompiledRegion::kWorkspaceAlign;
  }

  krn_code run(const krn_run& run, krn_err* err) noexcept override {
    if (traits_.needs_stream && !(run.stream.flags & KRN_STREAM_HAS_NATIVE)) {
      kit::set_error(err, KRN_STATUS_invalid_input, traits_.needs_stream);
      return KRN_STATUS_invalid_input;
    }
    const Inside inside(held_.get());
    const kit::Host& host = kit::host();
    return steps_->run(run, host.host, host.threads, err);
  }

  void save(std::string& token, std::string& body) const override {
    token = backend_->token();
    const std::vector<uint8_t> bytes = codegen::save_artifact(*steps_, *backend_, hash_of(hash_));
    body.assign(bytes.begin(), bytes.end());
  }

  std::unique_ptr<kit::Executable> resize(const kit::Region& region) const override {
    return device_.resize(region, asked_, steps_->grouping());
  }

 private:
  Device& device_;
  const Asked asked_;
  const Traits& traits_;
  std::shared_ptr<const Held> held_;
  std::unique_ptr<codegen::Backend> backend_;
  std::unique_ptr<codegen::CompiledRegion> steps_;
  uint8_t hash_[32];
};

}  // namespace

void Device::claim(const kit::Region& region, const krn_policy& policy, kit::ClaimSink& sink) {
  const std::shared_ptr<const Held> held = this->held();
  const auto with = backend(policy, 0, held.get());
  const codegen::ClaimResult result = codegen::claim(region.graph, *with);
  if (!result.claimed.nodes.empty())
    sink.claim(result.claimed.nodes, static_cast<uint32_t>(result.claimed.nodes.size()), result.claimed.cost_ns,
               kConfidence);
  for (const codegen::NodeRefusal& r : result.refused) sink.refuse(r.node, r.why);
}

std::unique_ptr<kit::Executable> Device::compile(const kit::Region& region, const krn_policy& policy,
                                                 const krn_options& options) {
  if (options.candidate >= traits().num_candidates) throw kit::Error(KRN_STATUS_unsupported, traits().candidates);
  std::shared_ptr<const Held> held = this->held();
  const Inside inside(held.get());
  auto with = backend(policy, options.candidate, held.get());
  auto steps = codegen::CompiledRegion::compile(region.bytes, *with, compile_context(region, policy, &options));
  return std::make_unique<Executable>(*this, Asked{policy, options.candidate}, std::move(steps), std::move(with), std::move(held),
                                      traits(), region);
}

std::unique_ptr<kit::Executable> Device::resize(const kit::Region& region, const Asked& asked, const codegen::Grouping& grouping) {
  std::shared_ptr<const Held> held = this->held();
  const Inside inside(held.get());
  auto with = backend(asked.policy, asked.candidate, held.get());
  with->take_what_is_there();
  std::unique_ptr<codegen::CompiledRegion> steps;
  try {
    steps = codegen::CompiledRegion::compile(region.bytes, *with, compile_context(region, asked.policy, nullptr), &grouping,
                                             &sized_of(asked));
  } catch (const kit::Error& error) {  // how it fuses says nothing of these sizes: nothing is damaged
    if (error.code() != KRN_STATUS_corrupt) throw;
    throw kit::Error(KRN_STATUS_unsupported, error.what());
  }
  return std::make_unique<Executable>(*this, asked, std::move(steps), std::move(with), std::move(held), traits(), region);
}

codegen::SizedPlans& Device::sized_of(const Asked& asked) {
  std::string key(reinterpret_cast<const char*>(&asked.policy), sizeof(asked.policy));
  key += std::to_string(asked.candidate);
  const std::lock_guard lock(mutex_);
  return sized_[key];
}

// The backend whose executables have this token; null if none of this machine's has.
std::unique_ptr<codegen::Backend> Device::backend_of(std::string_view token, const Held* held, Asked* asked) const {
  constexpr uint32_t kFlags =
      KRN_POLICY_DETERMINISTIC | KRN_POLICY_TF32_CONVOLUTIONS | KRN_POLICY_TF32_PRODUCTS | KRN_POLICY_TF32_RECURRENT;
  for (uint32_t flags = 0; flags <= kFlags; ++flags) {
    if (flags & ~kFlags) continue;  // what no token depends on
    for (uint32_t numerics : {KRN_NUMERICS_DEFAULT, KRN_NUMERICS_STRICT, KRN_NUMERICS_FAST})
      for (uint32_t candidate = 0; candidate < traits().num_candidates; ++candidate) {
        krn_policy policy{};
        policy.numerics = numerics;
        policy.flags = flags;
        auto with = backend(policy, candidate, held);
        if (token != with->token()) continue;
        *asked = {policy, candidate};
        return with;
      }
  }
  return nullptr;
}

uint32_t Device::check(std::string_view token) const {
  Asked ignored;
  return backend_of(token, nullptr, &ignored) ? KRN_VERDICT_OPTIMAL : KRN_VERDICT_REJECT;
}

std::unique_ptr<kit::Executable> Device::load(const kit::Region& region, std::string_view token,
                                              std::string_view body) {
  std::shared_ptr<const Held> held = this->held();
  Asked asked;
  auto with = backend_of(token, held.get(), &asked);
  if (!with) throw kit::Error(KRN_STATUS_version, "the artifact was made for another device, library or build");
  const Inside inside(held.get());
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(body.data()), body.size());
  auto steps = codegen::load_artifact(bytes, region.bytes, hash_of(region.hash), *with,
                                      compile_context(region, asked.policy, nullptr));
  return std::make_unique<Executable>(*this, asked, std::move(steps), std::move(with), std::move(held), traits(), region);
}

}  // namespace keirin::shell
