// SPDX-License-Identifier: Apache-2.0
//
// From region bytes to steps: read, prepare, fuse, or as was learned of other sizes; lower, plan memory.
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>

#include "plugins/codegen/kernel/rows.h"
#include "plugins/codegen/kernel/price.h"
#include "plugins/codegen/kernel/shape_kernel.h"
#include "plugins/codegen/plan/compiled_region.h"
#include "plugins/codegen/plan/fuse.h"
#include "plugins/codegen/plan/memory_plan.h"
#include "plugins/codegen/plan/plan_parts.h"
#include "plugins/codegen/plan/prepare.h"
#include "plugins/codegen/plan/row_class.h"
#include "plugins/codegen/plan/sized_plans.h"
#include "plugins/codegen/plan/together.h"
#include "plugins/codegen/region/csr.h"
#include "plugins/kit/error.h"

namespace keirin::codegen {
namespace {

constexpr int64_t kKeptForLater = 64 << 10;  // bytes that stay in a cache whatever runs between

int64_t points_of(const Kernel& kernel) {
  int64_t points = 1;
  for (const Axis& a : kernel.axes) points *= a.size;
  return points;
}

bool is_empty(const TensorDesc& d) { return std::find(d.sizes.begin(), d.sizes.end(), 0) != d.sizes.end(); }

std::string kernel_name(const FlatRegion& region, const Group& g, size_t number) {
  std::string out = "k" + std::to_string(number) + (g.kernel.column ? "_column" : "_row");
  for (int t : g.results) {
    const TensorNode* node = region.producer(t);
    if (node && out.size() < 48) out += "_" + std::string(node->op == kOpSegmentReduce ? "segment" : op_name(node->op));
  }
  return out;
}

}  // namespace

class Builder {
 public:
  Builder(Backend& backend, const CompileContext& context) : backend_(backend), context_(context) {}

  std::unique_ptr<CompiledRegion> build(std::span<const uint8_t> bytes, const Grouping* known, SizedPlans* sized) {
    const std::string asked = sized ? asked_of(known) : "";
    std::optional<SizedPlans::Known> learned = sized ? sized->at(bytes, asked) : std::nullopt;
    if (learned && !learned->doubted) {
      parts_ = std::move(learned->parts);
    } else {
      plan(bytes, known);
      if (sized) sized->made(bytes, asked, parts_);
    }
    out_->kernels_ = std::move(parts_.kernels);
    out_->buffers_ = std::move(parts_.buffers);
    out_->grouping_ = std::move(parts_.grouping);
    out_->num_inputs_ = parts_.num_inputs;
    out_->num_outputs_ = static_cast<uint32_t>(parts_.alias_inputs.size());
    out_->updates_inputs_ = std::ranges::any_of(parts_.alias_inputs, [](int input) { return input >= 0; });
    if (backend_.computes_row_classes()) widen_rows();
    lower();
    find_updates();
    place_temps();
    if (const TextSink sink = text_sink(context_, "//", ".plan")) sink("steps", plan_text());
    return std::move(out_);
  }

 private:
  // What a plan depends on beside the region and the backend.
  static std::string asked_of(const Grouping* known) {
    std::string out;
    for (const auto& results : known ? *known : Grouping()) {
      out += '\n';
      for (const int32_t each : results) out += std::to_string(each) + ' ';
    }
    return out + '\n';
  }

  void plan(std::span<const uint8_t> bytes, const Grouping* known) {
    PreparedRegion prepared = prepare(read_region(bytes), backend_, known);
    std::vector<Group> groups = fuse(prepared, backend_.target(), known);
    parts_.grouping = grouping_of(groups);
    describe_anchors(prepared);
    parts_.num_inputs = static_cast<uint32_t>(prepared.region.inputs.size());
    for (const RegionOutput& o : prepared.region.outputs) parts_.alias_inputs.push_back(o.alias_input);
    parts_.buffers = prepared.layout.buffers;
    for (Group& g : groups) plan_group(prepared, g);
    join_kernels();
  }

  void plan_group(PreparedRegion& prepared, Group& g) {
    PlannedStep step;
    if (g.anchor >= 0) {
      const AnchorDesc& desc = prepared.anchors[g.anchor].desc;
      if (std::all_of(desc.results.begin(), desc.results.end(), [](const TensorDesc& d) { return is_empty(d); })) return;
      step.buffers = buffers_of(desc);
      const bool joins = !parts_.steps.empty() && may_join(parts_.steps.back(), desc, step.buffers);
      const size_t number = parts_.anchors.size();
      parts_.anchors.push_back(desc);
      if (joins) {
        PlannedStep& last = parts_.steps.back();
        last.anchors.push_back(number);
        last.buffers.insert(last.buffers.end(), step.buffers.begin(), step.buffers.end());
        return;
      }
      step.anchors.push_back(number);
    } else {
      Kernel k = std::move(g.kernel);
      k.dag.close();
      k.name = kernel_name(prepared.region, g, parts_.kernels.size());
      if (k.has_csr) add_csr(k.csr);
      for (const Buffer& b : k.buffers) step.buffers.push_back(b.id);
      if (k.has_csr) step.buffers.insert(step.buffers.end(), {k.csr.row_ptr_buffer, k.csr.perm_buffer});
      step.kernels = {parts_.kernels.size()};
      parts_.kernels.push_back(std::move(k));
    }
    parts_.steps.push_back(std::move(step));
  }

  std::vector<const AnchorDesc*> anchors_of(const PlannedStep& step) const {
    std::vector<const AnchorDesc*> out;
    for (const size_t each : step.anchors) out.push_back(&parts_.anchors[each]);
    return out;
  }

  static std::vector<uint32_t> buffers_of(const AnchorDesc& desc) {
    std::vector<uint32_t> out;
    auto touch = [&](const TensorDesc& d) {
      if (d.present()) out.push_back(d.buffer);
    };
    for (const TensorDesc& d : desc.operands) touch(d);
    for (const TensorDesc& d : desc.results) touch(d);
    for (const PostOp& p : desc.post_ops) touch(p.operand);
    return out;
  }

  // Neighbours in the plan of which neither reads or writes what the other writes.
  bool may_join(const PlannedStep& last, const AnchorDesc& next, const std::vector<uint32_t>& touched) const {
    const std::vector<const AnchorDesc*> those = anchors_of(last);
    if (those.empty() || !backend_.joins(those, next)) return false;
    auto in = [](const std::vector<uint32_t>& list, uint32_t b) { return std::find(list.begin(), list.end(), b) != list.end(); };
    for (const AnchorDesc* each : those) {
      for (const TensorDesc& d : each->results) {
        if (in(touched, d.buffer)) return false;
      }
    }
    return std::none_of(next.results.begin(), next.results.end(), [&](const TensorDesc& d) { return in(last.buffers, d.buffer); });
  }

  static uint32_t add_buffer(std::vector<BufferInfo>& buffers, int64_t bytes) {
    buffers.push_back({BufferInfo::Role::kTemp, 0, bytes});
    return static_cast<uint32_t>(buffers.size()) - 1;
  }

  // Kernels over the same index share one CSR; its step comes before the first of them.
  void add_csr(Csr& csr) {
    const auto key = [](const Csr& each) { return std::tuple(each.index_buffer, each.index_offset, each.num_rows); };
    auto its = std::ranges::find(parts_.csrs, key(csr), key);
    if (its == parts_.csrs.end()) {
      csr.row_ptr_buffer = add_buffer(parts_.buffers, 0);
      csr.perm_buffer = add_buffer(parts_.buffers, 0);
      if (csr.num_edges >= INT32_MAX || csr.num_rows >= INT32_MAX) {
        throw kit::Error(KRN_STATUS_unsupported, "a scatter with 2^31 or more rows: leave it to eager");
      }
      PlannedStep step;
      step.csr = static_cast<int>(parts_.csrs.size());
      step.buffers = {csr.index_buffer, csr.row_ptr_buffer, csr.perm_buffer};
      parts_.steps.push_back(std::move(step));
      its = parts_.csrs.insert(its, csr);
    }
    csr.row_ptr_buffer = its->row_ptr_buffer;
    csr.perm_buffer = its->perm_buffer;
  }

  // Kernels that the backend takes together become one step: an optimiser's update is the same few kernels for each parameter. What a
  // kernel writes for later steps should still be in a cache then, so only little of that is written early.
  void join_kernels() {
    const std::vector<uint32_t> memory = memory_of_buffers(parts_.buffers);
    std::vector<PlannedStep>& plan = parts_.steps;
    std::vector<size_t> last_use(memory.size());
    for (size_t s = 0; s < plan.size(); ++s)
      for (uint32_t b : plan[s].buffers) last_use[memory[b]] = s;
    std::vector<Touch> touches;
    for (size_t s = 0; s < plan.size(); ++s) {
      Touch& touch = touches.emplace_back();
      for (uint32_t b : plan[s].buffers) touch.touched.insert(memory[b]);
      if (plan[s].kernels.empty()) {
        touch.written = touch.touched;  // of an anchor or an index: all, to be safe
        continue;
      }
      const Kernel& kernel = parts_.kernels[plan[s].kernels[0]];
      bool early = true;
      for (const Buffer& b : kernel.buffers) {
        if (!b.written) continue;
        touch.written.insert(memory[b.id]);
        early &= last_use[memory[b.id]] <= s || points_of(kernel) * dtype_bytes(b.dtype) <= kKeptForLater;
      }
      if (early) touch.key = backend_.together_key(kernel);
    }
    std::vector<PlannedStep> joined;
    for (const std::vector<size_t>& steps : put_together(touches)) {
      PlannedStep& whole = joined.emplace_back(std::move(plan[steps[0]]));
      for (size_t i = 1; i < steps.size(); ++i) {
        const PlannedStep& other = plan[steps[i]];
        whole.kernels.insert(whole.kernels.end(), other.kernels.begin(), other.kernels.end());
        whole.buffers.insert(whole.buffers.end(), other.buffers.begin(), other.buffers.end());
      }
    }
    plan = std::move(joined);
  }

  // By buffer: itself, or the input's that an output is written into.
  std::vector<uint32_t> memory_of_buffers(const std::vector<BufferInfo>& buffers) const {
    std::vector<uint32_t> out(buffers.size());
    std::iota(out.begin(), out.end(), 0u);
    std::map<int, uint32_t> of_input;
    for (uint32_t b : out)
      if (buffers[b].role == BufferInfo::Role::kInput) of_input[buffers[b].index] = b;
    for (uint32_t& b : out) {
      const BufferInfo& info = buffers[b];
      if (info.role != BufferInfo::Role::kOutput) continue;
      const int input = parts_.alias_inputs[static_cast<size_t>(info.index)];
      if (input >= 0) b = of_input.at(input);
    }
    return out;
  }

  // Where rows that an index names are all that a step writes of an input, and it reads none of it, a wrong index leaves an input of
  // which those rows are written once more with the same numbers by whoever repeats the run.
  void find_updates() {
    if (!out_->updates_inputs_) return;
    const std::vector<uint32_t> memory = memory_of_buffers(out_->buffers_);
    std::vector<bool> updated(memory.size());
    for (uint32_t b = 0; b < memory.size(); ++b)
      if (memory[b] != b) updated[memory[b]] = true;
    for (size_t s = 0; s < parts_.steps.size(); ++s) {
      const auto touches = [&](uint32_t b) { return updated[memory[b]]; };
      const PlannedStep& step = parts_.steps[s];
      bool writes = step.kernels.empty() && std::ranges::any_of(step.buffers, touches);  // an anchor or an index: to be safe
      bool whole = writes;
      for (const size_t k : step.kernels) {
        const Kernel& kernel = out_->kernels_[k];
        std::vector<bool> stored(kernel.accesses.size());
        for (const Stage& stage : kernel.stages)
          for (const Stage::Store& store : stage.stores) stored[store.access] = true;
        for (size_t a = 0; a < kernel.accesses.size(); ++a) {
          if (!touches(kernel.buffers[kernel.accesses[a].buffer].id)) continue;
          writes |= stored[a];
          whole |= !stored[a] || kernel.accesses[a].indirects.empty();
        }
      }
      if (!writes) continue;
      out_->updates_from_ = whole ? s : s + 1;
      return;
    }
  }

  // Not in `parts_` as they are learned: those are of exact sizes.
  void widen_rows() {
    const std::vector<BufferInfo> planned = out_->buffers_;
    const auto give_room = [&](const TensorDesc& t) {
      BufferInfo& buffer = out_->buffers_[t.buffer];
      if (t.strides[0] != 0) buffer.bytes = std::max(buffer.bytes, t.sizes[0] * t.sizes[1] * dtype_bytes(t.dtype));
    };
    for (AnchorDesc& anchor : parts_.anchors) {
      std::optional<AnchorDesc> wider = of_row_class(anchor, planned);
      if (!wider) continue;
      give_room(wider->operands[0]);
      give_room(wider->results[0]);
      for (const PostOp& post : wider->post_ops)
        if (post.operand.present()) give_room(post.operand);
      anchor = std::move(*wider);
    }
  }

  void lower() {
    for (const PlannedStep& p : parts_.steps) {
      if (p.kernels.empty()) continue;
      Together& step = out_->steps_of_kernels_.emplace_back();
      for (size_t k : p.kernels) step.push_back(&out_->kernels_[k]);
    }
    std::vector<std::unique_ptr<Step>> kernels = backend_.lower_kernels(out_->steps_of_kernels_, context_, out_->num_codegen_);
    if (kernels.size() != out_->steps_of_kernels_.size()) throw kit::Error(KRN_STATUS_internal, "lower_kernels returned too few steps");
    auto lowered = kernels.begin();
    std::vector<ChosenAnchor> single;
    for (const PlannedStep& p : parts_.steps)
      if (p.anchors.size() == 1) {
        const AnchorDesc& desc = parts_.anchors[p.anchors[0]];
        single.push_back({&desc, backend_.choose_anchor(desc)});
      }
    backend_.prepare_anchors(single);
    auto chosen = single.begin();
    for (PlannedStep& p : parts_.steps) {
      std::unique_ptr<Step> step;
      if (!p.kernels.empty()) {
        step = std::move(*lowered++);
      } else if (p.csr >= 0) {
        const Csr& csr = parts_.csrs[static_cast<size_t>(p.csr)];
        step = backend_.lower_csr(csr, context_);
        if (step) {  // it fills arrays in the workspace; the host's version has its own
          out_->buffers_[csr.row_ptr_buffer].bytes = 4 * (csr.num_rows + 1);
          out_->buffers_[csr.perm_buffer].bytes = 4 * csr.num_edges;
        } else {
          step = make_host_csr(csr);
        }
      } else {
        step = p.anchors.size() == 1 ? backend_.lower_anchor(*chosen++, context_) : backend_.lower_joined(anchors_of(p), context_);
        ++out_->num_anchors_;
      }
      if (int64_t bytes = step->workspace_bytes(); bytes > 0) {
        uint32_t b = add_buffer(out_->buffers_, bytes);
        step->set_workspace(b);
        p.buffers.push_back(b);
      }
      if (step->begins_early() && !out_->steps_.empty()) out_->steps_.back()->let_next_begin();
      out_->steps_.push_back(std::move(step));
    }
  }

  // The steps in order as `describe` says them, with what the prior expected of a kernel (plugins/codegen/kernel/price.cc): a measured time
  // that is far from it is where to look.
  std::string plan_text() const {
    std::string out;
    for (size_t s = 0; s < parts_.steps.size(); ++s) {
      out += out_->steps_[s]->describe();
      if (!parts_.steps[s].kernels.empty()) {
        char expected[48];
        double all = 0;
        for (size_t k : parts_.steps[s].kernels) all += price(out_->kernels_[k], backend_.target());
        std::snprintf(expected, sizeof(expected), ", expected to take %.2f us", all / 1e3);
        out += expected;
      }
      out += '\n';
    }
    return out;
  }

  void place_temps() {
    std::vector<TempLife> lives;
    std::vector<int> temp_of(out_->buffers_.size(), -1);
    for (int s = 0; s < static_cast<int>(parts_.steps.size()); ++s) {
      for (uint32_t b : parts_.steps[s].buffers) {
        const BufferInfo& info = out_->buffers_[b];
        if (info.role != BufferInfo::Role::kTemp || info.bytes == 0) continue;
        if (temp_of[b] < 0) temp_of[b] = static_cast<int>(lives.size()), lives.push_back({info.bytes, s, s});
        lives[temp_of[b]].last = s;
      }
    }
    MemoryPlan memory = plan_memory(lives, CompiledRegion::kWorkspaceAlign);
    out_->offsets_.assign(out_->buffers_.size(), 0);
    for (size_t b = 0; b < temp_of.size(); ++b) {
      if (temp_of[b] >= 0) out_->offsets_[b] = memory.offsets[temp_of[b]];
    }
    out_->workspace_bytes_ = memory.total_bytes;
  }

  Backend& backend_;
  const CompileContext& context_;
  std::unique_ptr<CompiledRegion> out_ = std::make_unique<CompiledRegion>();
  PlanParts parts_;
};

std::unique_ptr<CompiledRegion> CompiledRegion::compile(std::span<const uint8_t> region, Backend& backend, const CompileContext& context,
                                                const Grouping* known, SizedPlans* sized) {
  return Builder(backend, context).build(region, known, sized);
}

}  // namespace keirin::codegen
