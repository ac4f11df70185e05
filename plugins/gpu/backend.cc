// SPDX-License-Identifier: Apache-2.0
//
// The backend: what the code generator plans becomes launchable here.
#include "plugins/gpu/backend.h"

#include "plugins/gpu/csr.h"
#include "plugins/gpu/launch.h"
#include "plugins/gpu/text_step.h"
#include "plugins/kit/error.h"

namespace keirin::gpu {

GpuBackend::GpuBackend(const Gpu& gpu, const Context* context, const krn_policy* policy)
    : gpu_(gpu), context_(context), numerics_(policy), code_(code_target(gpu, policy)) {}

bool GpuBackend::takes_anchor(const codegen::AnchorDesc& anchor, std::string& why_not) const {
  const Current current(context_);
  return choose(anchor, gpu_, numerics_, context_ != nullptr, why_not, effort()).has_value();
}

bool GpuBackend::takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post) const {
  const Current current(context_);
  return post_op_taken(anchor, post, gpu_, numerics_, context_ != nullptr, effort());
}

std::string GpuBackend::together_key(const codegen::Kernel& kernel) const {
  const codegen::Schedule schedule = codegen::choose_schedule(kernel, gpu_.facts);
  return shares_launch(kernel, schedule, gpu_.facts) ? CodeNames(kernel, code_).of(schedule) : "";
}

std::vector<CodeStore::Wanted> GpuBackend::wanted(std::span<const std::vector<Room>> of_steps) const {
  std::vector<CodeStore::Wanted> out;
  for (const std::vector<Room>& rooms : of_steps)
    for (const Room& room : rooms) out.push_back({room.kernels[0], room.schedule, CodeNames(*room.kernels[0], code_).of(room.schedule)});
  return out;
}

std::vector<std::vector<Room>> GpuBackend::rooms(std::span<const codegen::Together> of_steps) const {
  std::vector<std::vector<Room>> out;
  for (const codegen::Together& kernels : of_steps) {
    out.push_back(rooms_of(kernels, gpu_.facts));
    if (!code_.only_known || kernels.size() > 1) continue;
    const CodeNames names(*kernels[0], code_);
    const auto is_there = [&](const codegen::Schedule& schedule) { return code_store().knows(names.of(schedule)); };
    out.back()[0].schedule = codegen::choose_schedule(*kernels[0], gpu_.facts, is_there);
  }
  return out;
}

std::vector<std::unique_ptr<codegen::Step>> GpuBackend::lower_kernels(std::span<const codegen::Together> of_steps,
                                                                       const codegen::CompileContext& context, uint32_t& generated) {
  const std::vector<std::vector<Room>> all = rooms(of_steps);
  const std::vector<CodeStore::Wanted> launches = wanted(all);
  generated += code_store().compile(launches, code_, codegen::text_sink(context, "//", gpu_.driver->words().file_ending));
  const Current current(context_);
  std::vector<std::unique_ptr<codegen::Step>> steps;
  auto next = launches.begin();
  for (const std::vector<Room>& its : all) {
    std::vector<Functions> functions;
    for (size_t r = 0; r < its.size(); ++r, ++next)
      functions.push_back(context_ ? code_store().load(*gpu_.driver, *next) : Functions{});
    steps.push_back(its[0].schedule.many > 1 ? make_together_step(*gpu_.driver, its, gpu_.facts, functions)
                                             : make_kernel_step(*gpu_.driver, *its[0].kernels[0], its[0].schedule, functions[0]));
  }
  return steps;
}

std::shared_ptr<const codegen::AnchorChoice> GpuBackend::choose_anchor(const codegen::AnchorDesc& anchor) const {
  const Current current(context_);
  std::string why_not;
  auto choice = choose(anchor, gpu_, numerics_, context_ != nullptr, why_not, effort());
  if (!choice) throw kit::Error(KRN_STATUS_unsupported, why_not + "; the node stays eager");
  return std::make_shared<Choice>(std::move(*choice));
}

void GpuBackend::prepare_anchors(std::span<const codegen::ChosenAnchor> anchors) {
  const Current current(context_);
  if (context_ && effort() == Effort::kTimed) prepare_plans(anchors, gpu_, numerics_);
}

std::unique_ptr<codegen::Step> GpuBackend::lower_anchor(const codegen::ChosenAnchor& anchor, const codegen::CompileContext&) {
  const Current current(context_);
  return make_anchor_step(*anchor.desc, static_cast<const Choice&>(*anchor.choice), gpu_, code_, numerics_, context_ != nullptr, effort());
}

bool GpuBackend::joins(std::span<const codegen::AnchorDesc* const> those, const codegen::AnchorDesc& next) const {
  return may_join(those, next);
}

std::unique_ptr<codegen::Step> GpuBackend::lower_joined(std::span<const codegen::AnchorDesc* const> anchors,
                                                        const codegen::CompileContext&) {
  const Current current(context_);
  std::string why_not;
  const auto kernel = joined_kernel(anchors, gpu_, why_not);
  if (!kernel) throw kit::Error(KRN_STATUS_unsupported, why_not);
  return make_text_step(*kernel, code_, context_ != nullptr);
}

std::unique_ptr<codegen::Step> GpuBackend::lower_csr(const codegen::Csr& csr, const codegen::CompileContext&) {
  const Current current(context_);
  return make_csr_step(csr, gpu_, code_, context_ != nullptr);
}

void GpuBackend::save_code(std::span<const codegen::Together> steps, std::vector<uint8_t>& out) const {
  std::vector<std::string> names;
  for (const CodeStore::Wanted& w : wanted(rooms(steps))) {
    names.push_back(w.name);
    if (w.kernel->has_csr) names.push_back(csr_code_name(code_));
  }
  for (const char* prefix : {kChoicePrefix, kTextPrefix}) {
    const std::vector<std::string> more = code_store().names_from(prefix);
    names.insert(names.end(), more.begin(), more.end());
  }
  code_store().save(names, out);
}

void GpuBackend::load_code(std::span<const uint8_t> bytes) { code_store().take(bytes); }

std::string GpuBackend::token() const {
  return std::string(gpu_.driver->words().dialect.name) + " 2 " + code_.identity() + numerics_.identity();
}

}  // namespace keirin::gpu
