// SPDX-License-Identifier: Apache-2.0
//
// From region bytes to steps: read, prepare, fuse, lower, plan memory.
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <tuple>

#include "plugins/codegen/kernel/rows.h"
#include "plugins/codegen/kernel/price.h"
#include "plugins/codegen/kernel/shape_kernel.h"
#include "plugins/codegen/plan/compiled_region.h"
#include "plugins/codegen/plan/fuse.h"
#include "plugins/codegen/plan/memory_plan.h"
#include "plugins/codegen/plan/prepare.h"
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

  std::unique_ptr<CompiledRegion> build(std::span<const uint8_t> bytes, const Grouping* known) {
    PreparedRegion prepared = prepare(read_region(bytes), backend_, known);
    std::vector<Group> groups = fuse(prepared, backend_.target(), known);
    out_->grouping_ = grouping_of(groups);
    describe_anchors(prepared);
    out_->num_inputs_ = static_cast<uint32_t>(prepared.region.inputs.size());
    out_->num_outputs_ = static_cast<uint32_t>(prepared.region.outputs.size());
    for (const RegionOutput& o : prepared.region.outputs) out_->updates_inputs_ |= o.alias_input >= 0;
    out_->buffers_ = prepared.layout.buffers;
    for (Group& g : groups) plan_group(prepared, g);
    join_kernels(prepared);
    lower();
    find_updates(prepared);
    place_temps();
    if (const TextSink sink = text_sink(context_, "//", ".plan")) sink("steps", plan_text());
    return std::move(out_);
  }

 private:
  struct Planned {
    std::vector<size_t> kernels;  // more than one where they go together
    std::vector<const AnchorDesc*> anchors;  // more than one where the backend joins them
    const Csr* csr = nullptr;
    std::vector<uint32_t> buffers;  // touched
  };

  void plan_group(PreparedRegion& prepared, Group& g) {
    Planned step;
    if (g.anchor >= 0) {
      const AnchorDesc& desc = prepared.anchors[g.anchor].desc;
      if (std::all_of(desc.results.begin(), desc.results.end(), [](const TensorDesc& d) { return is_empty(d); })) return;
      anchors_.push_back(std::make_unique<AnchorDesc>(desc));
      step.anchors.push_back(anchors_.back().get());
      step.buffers = buffers_of(desc);
      if (!plan_.empty() && may_join(plan_.back(), desc, step.buffers)) {
        plan_.back().anchors.push_back(anchors_.back().get());
        plan_.back().buffers.insert(plan_.back().buffers.end(), step.buffers.begin(), step.buffers.end());
        return;
      }
    } else {
      Kernel k = std::move(g.kernel);
      k.name = kernel_name(prepared.region, g, out_->kernels_.size());
      if (k.has_csr) add_csr(k.csr);
      for (const Buffer& b : k.buffers) step.buffers.push_back(b.id);
      if (k.has_csr) step.buffers.insert(step.buffers.end(), {k.csr.row_ptr_buffer, k.csr.perm_buffer});
      step.kernels = {out_->kernels_.size()};
      out_->kernels_.push_back(std::move(k));
    }
    plan_.push_back(std::move(step));
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
  bool may_join(const Planned& last, const AnchorDesc& next, const std::vector<uint32_t>& touched) const {
    if (last.anchors.empty() || !backend_.joins(last.anchors, next)) return false;
    auto in = [](const std::vector<uint32_t>& list, uint32_t b) { return std::find(list.begin(), list.end(), b) != list.end(); };
    for (const AnchorDesc* each : last.anchors) {
      for (const TensorDesc& d : each->results) {
        if (in(touched, d.buffer)) return false;
      }
    }
    return std::none_of(next.results.begin(), next.results.end(), [&](const TensorDesc& d) { return in(last.buffers, d.buffer); });
  }

  uint32_t add_buffer(int64_t bytes) {
    out_->buffers_.push_back({BufferInfo::Role::kTemp, 0, bytes});
    return static_cast<uint32_t>(out_->buffers_.size()) - 1;
  }

  // Kernels over the same index share one CSR; its step comes before the first of them.
  void add_csr(Csr& csr) {
    auto key = std::tuple(csr.index_buffer, csr.index_offset, csr.num_rows);
    auto it = csrs_.find(key);
    if (it == csrs_.end()) {
      csr.row_ptr_buffer = add_buffer(0);
      csr.perm_buffer = add_buffer(0);
      if (csr.num_edges >= INT32_MAX || csr.num_rows >= INT32_MAX) {
        throw kit::Error(KRN_STATUS_unsupported, "a scatter with 2^31 or more rows: leave it to eager");
      }
      it = csrs_.emplace(key, std::make_unique<Csr>(csr)).first;
      Planned step;
      step.csr = it->second.get();
      step.buffers = {csr.index_buffer, csr.row_ptr_buffer, csr.perm_buffer};
      plan_.push_back(std::move(step));
    }
    csr.row_ptr_buffer = it->second->row_ptr_buffer;
    csr.perm_buffer = it->second->perm_buffer;
  }

  // Kernels that the backend takes together become one step: an optimiser's update is the same few kernels for each parameter. What a
  // kernel writes for later steps should still be in a cache then, so only little of that is written early.
  void join_kernels(const PreparedRegion& prepared) {
    const std::vector<uint32_t> memory = memory_of_buffers(prepared);
    std::vector<size_t> last_use(memory.size());
    for (size_t s = 0; s < plan_.size(); ++s)
      for (uint32_t b : plan_[s].buffers) last_use[memory[b]] = s;
    std::vector<Touch> touches;
    for (size_t s = 0; s < plan_.size(); ++s) {
      Touch& touch = touches.emplace_back();
      for (uint32_t b : plan_[s].buffers) touch.touched.insert(memory[b]);
      if (plan_[s].kernels.empty()) {
        touch.written = touch.touched;  // of an anchor or an index: all, to be safe
        continue;
      }
      const Kernel& kernel = out_->kernels_[plan_[s].kernels[0]];
      bool early = true;
      for (const Buffer& b : kernel.buffers) {
        if (!b.written) continue;
        touch.written.insert(memory[b.id]);
        early &= last_use[memory[b.id]] <= s || points_of(kernel) * dtype_bytes(b.dtype) <= kKeptForLater;
      }
      if (early) touch.key = backend_.together_key(kernel);
    }
    std::vector<Planned> joined;
    for (const std::vector<size_t>& steps : put_together(touches)) {
      Planned& whole = joined.emplace_back(std::move(plan_[steps[0]]));
      for (size_t i = 1; i < steps.size(); ++i) {
        const Planned& other = plan_[steps[i]];
        whole.kernels.insert(whole.kernels.end(), other.kernels.begin(), other.kernels.end());
        whole.buffers.insert(whole.buffers.end(), other.buffers.begin(), other.buffers.end());
      }
    }
    plan_ = std::move(joined);
  }

  // By buffer: itself, or the input's that an output is written into.
  std::vector<uint32_t> memory_of_buffers(const PreparedRegion& prepared) const {
    std::vector<uint32_t> out(out_->buffers_.size());
    std::iota(out.begin(), out.end(), 0u);
    std::map<int, uint32_t> of_input;
    for (uint32_t b : out)
      if (out_->buffers_[b].role == BufferInfo::Role::kInput) of_input[out_->buffers_[b].index] = b;
    for (uint32_t& b : out) {
      const BufferInfo& info = out_->buffers_[b];
      if (info.role != BufferInfo::Role::kOutput) continue;
      const int input = prepared.region.outputs[static_cast<size_t>(info.index)].alias_input;
      if (input >= 0) b = of_input.at(input);
    }
    return out;
  }

  // Where rows that an index names are all that a step writes of an input, and it reads none of it, a wrong index leaves an input of
  // which those rows are written once more with the same numbers by whoever repeats the run.
  void find_updates(const PreparedRegion& prepared) {
    if (!out_->updates_inputs_) return;
    const std::vector<uint32_t> memory = memory_of_buffers(prepared);
    std::vector<bool> updated(memory.size());
    for (uint32_t b = 0; b < memory.size(); ++b)
      if (memory[b] != b) updated[memory[b]] = true;
    for (size_t s = 0; s < plan_.size(); ++s) {
      const auto touches = [&](uint32_t b) { return updated[memory[b]]; };
      bool writes = plan_[s].kernels.empty() && std::ranges::any_of(plan_[s].buffers, touches);  // an anchor or an index: to be safe
      bool whole = writes;
      for (const size_t k : plan_[s].kernels) {
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

  void lower() {
    for (const Planned& p : plan_) {
      if (p.kernels.empty()) continue;
      Together& step = out_->steps_of_kernels_.emplace_back();
      for (size_t k : p.kernels) step.push_back(&out_->kernels_[k]);
    }
    std::vector<std::unique_ptr<Step>> kernels = backend_.lower_kernels(out_->steps_of_kernels_, context_, out_->num_codegen_);
    if (kernels.size() != out_->steps_of_kernels_.size()) throw kit::Error(KRN_STATUS_internal, "lower_kernels returned too few steps");
    auto lowered = kernels.begin();
    std::vector<ChosenAnchor> single;
    for (const Planned& p : plan_)
      if (p.anchors.size() == 1) single.push_back({p.anchors[0], backend_.choose_anchor(*p.anchors[0])});
    backend_.prepare_anchors(single);
    auto chosen = single.begin();
    for (Planned& p : plan_) {
      std::unique_ptr<Step> step;
      if (!p.kernels.empty()) {
        step = std::move(*lowered++);
      } else if (p.csr) {
        step = backend_.lower_csr(*p.csr, context_);
        if (step) {  // it fills arrays in the workspace; the host's version has its own
          out_->buffers_[p.csr->row_ptr_buffer].bytes = 4 * (p.csr->num_rows + 1);
          out_->buffers_[p.csr->perm_buffer].bytes = 4 * p.csr->num_edges;
        } else {
          step = make_host_csr(*p.csr);
        }
      } else {
        step = p.anchors.size() == 1 ? backend_.lower_anchor(*chosen++, context_) : backend_.lower_joined(p.anchors, context_);
        ++out_->num_anchors_;
      }
      if (int64_t bytes = step->workspace_bytes(); bytes > 0) {
        uint32_t b = add_buffer(bytes);
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
    for (size_t s = 0; s < plan_.size(); ++s) {
      out += out_->steps_[s]->describe();
      if (!plan_[s].kernels.empty()) {
        char expected[48];
        double all = 0;
        for (size_t k : plan_[s].kernels) all += price(out_->kernels_[k], backend_.target());
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
    for (int s = 0; s < static_cast<int>(plan_.size()); ++s) {
      for (uint32_t b : plan_[s].buffers) {
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
  std::vector<Planned> plan_;
  std::vector<std::unique_ptr<AnchorDesc>> anchors_;
  std::map<std::tuple<uint32_t, int64_t, int64_t>, std::unique_ptr<Csr>> csrs_;
};

std::unique_ptr<CompiledRegion> CompiledRegion::compile(std::span<const uint8_t> region, Backend& backend, const CompileContext& context,
                                                const Grouping* known) {
  return Builder(backend, context).build(region, known);
}

}  // namespace keirin::codegen
