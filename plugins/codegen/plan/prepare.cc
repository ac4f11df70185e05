// SPDX-License-Identifier: Apache-2.0
//
// Decisions before fusion, in an order in which none undoes an earlier one: rewrites, updates and copies of outputs, storage of
// outputs, anchors, concatenations, and last everything else in temps that fusion may drop again.
#include "plugins/codegen/plan/prepare.h"

#include <algorithm>
#include <map>
#include <set>

#include "abi/planted.h"
#include "plugins/codegen/region/check_region.h"
#include "plugins/codegen/region/rewrite.h"
#include "plugins/kit/error.h"

namespace keirin::codegen {
namespace {

bool is_anchor(uint32_t op) { return op_kind(op) == OpKind::kAnchorComposite; }
bool is_product(uint32_t op) { return op == kOp_matmul || op == kOp_linear; }

class Preparer {
 public:
  Preparer(FlatRegion region, const Backend& backend, const Grouping* known) : backend_(backend), r_(std::move(region)) {
    if (!known) return;
    for (const auto& results : *known) kernels_store_.insert(results.begin(), results.end());
  }

  PreparedRegion run() {
    rewrite_all();
    check_region(r_);  // what rewriting made is held to the same rules
    separate_outputs();
    widen_in_front();
    r_.tidy();
    p_.layout = Layout(r_);
    grow();
    place_outputs();
    plan_anchors();
    place_indices();
    place_concatenations();
    place_anchor_results();
    place_rest();
    p_.region = std::move(r_);
    return std::move(p_);
  }

 private:
  void grow() {
    p_.forced.resize(r_.tensors.size(), false);
    p_.alias_of.resize(r_.tensors.size(), -1);
    p_.shown_by.resize(r_.tensors.size(), -1);
    p_.cat_in_place.resize(r_.tensors.size(), false);
    p_.absorbed.assign(r_.nodes.size(), false);
    for (const auto& [t, input] : updates_) p_.alias_of[t] = input;
  }

  void rewrite_all() {
    int given = static_cast<int>(r_.nodes.size()), given_tensors = static_cast<int>(r_.tensors.size());
    for (int n = 0; n < static_cast<int>(r_.nodes.size()); ++n) {
      uint32_t op = r_.nodes[n].op;
      bool reduces = op == kOp_index_reduce || op == kOp_scatter || op == kOp_cumsum;
      if ((!is_anchor(op) && !reduces) || updates_rows(n)) continue;
      std::string refused, why;
      if (is_anchor(op) && backend_.takes_anchor(describe_anchor(r_, r_.nodes[n]), refused)) continue;
      why = rewrite(r_, n, backend_.target());
      if (!why.empty()) {
        throw kit::Error(KRN_STATUS_unsupported, "node " + std::to_string(r_.nodes[n].claim_node) + " (" + std::string(op_name(op)) +
                                                     "): " + (refused.empty() ? why : refused + "; " + why));
      }
    }
    merge_equal(given, given_tensors);
    r_.tidy();
  }

  // Rows put into an input of the region that becomes an output again: only those rows are written.
  bool updates_rows(int n) const {
    const TensorNode& node = r_.nodes[n];
    if (node.op != kOp_index_reduce || node.attrs.reduce != "none" || !backend_.target().updates_rows) return false;
    const int input = r_.tensors[node.operands[0]].input;
    int places = 0;  // an output of its own beside the update would have to be written whole
    bool in_place = false;
    for (const RegionOutput& o : r_.outputs) {
      if (o.tensor != node.results[0]) continue;
      ++places;
      in_place |= o.alias_input >= 0 && o.alias_input == input;
    }
    return in_place && places == 1;
  }

  // Rewrites of several nodes over one index make the same nodes again: bags of many tables over one list of offsets.
  void merge_equal(int first_node, int first_tensor) {
    std::map<int, int> same;
    for (int n = first_node; n < static_cast<int>(r_.nodes.size()); ++n) {
      TensorNode& node = r_.nodes[n];
      for (int& t : node.operands) {
        if (auto it = same.find(t); it != same.end()) t = it->second;
      }
      if (node.results[0] < first_tensor) continue;
      const Tensor& result = r_.tensors[node.results[0]];
      for (int m = first_node; m < n; ++m) {
        const TensorNode& other = r_.nodes[m];
        if (other.op != node.op || other.results[0] < first_tensor || other.operands != node.operands || !(other.attrs == node.attrs))
          continue;
        const Tensor& before = r_.tensors[other.results[0]];
        if (before.dtype != result.dtype || before.sizes != result.sizes) continue;
        same[node.results[0]] = other.results[0];
        break;
      }
    }
  }

  int copy_of(int t) {
    int out = r_.add(kOp_relayout, {t}, r_.tensors[t].dtype, r_.tensors[t].sizes);
    r_.tensors[out].strides = r_.tensors[t].strides;
    return out;
  }

  // Every output gets a tensor of its own that some kernel or anchor writes.
  void separate_outputs() {
    std::set<int> taken;
    for (RegionOutput& out : r_.outputs) {
      bool update = out.alias_input >= 0;
      if (update || r_.tensors[out.tensor].input >= 0 || taken.count(out.tensor)) {
        Dims strides = r_.tensors[out.tensor].strides;
        out.tensor = copy_of(out.tensor);
        r_.tensors[out.tensor].strides = strides;
      }
      if (update) updates_.emplace_back(out.tensor, r_.inputs[out.alias_input]);
      taken.insert(out.tensor);
    }
  }

  // A permuted product that is cast to f32, as gradients of weights are under autocast, is permuted after the cast: the library then
  // writes it so at once.
  void widen_in_front() {
    if (!backend_.target().wide_products) return;
    r_.tidy();
    const auto only_read_here = [&](int t) {
      return r_.tensors[t].readers.size() == 1 &&
             std::none_of(r_.outputs.begin(), r_.outputs.end(), [&](const RegionOutput& o) { return o.tensor == t; });
    };
    const int given = static_cast<int>(r_.nodes.size());
    for (int n = 0; n < given; ++n) {
      if (r_.nodes[n].op != kOp_cast || r_.tensors[r_.nodes[n].results[0]].dtype != kDType_f32) continue;
      const int permuted = r_.nodes[n].operands[0];
      const TensorNode* permute = r_.producer(permuted);
      if (!permute || permute->op != kOp_permute || !only_read_here(permuted)) continue;
      const int t = permute->operands[0];
      if (!r_.producer(t) || !is_product(r_.producer(t)->op) || !only_read_here(t)) continue;
      const Attrs cast = r_.nodes[n].attrs, order = permute->attrs;
      const int wide = r_.add(kOp_cast, {t}, kDType_f32, r_.tensors[t].sizes, cast);
      r_.nodes[n].op = kOp_permute, r_.nodes[n].operands = {wide}, r_.nodes[n].attrs = order;
    }
  }

  // An output that is a permutation of a computed tensor is stored by computing that tensor in place.
  void place_outputs() {
    for (int o = 0; o < static_cast<int>(r_.outputs.size()); ++o) {
      int t = r_.outputs[o].tensor;
      const Tensor& out = r_.tensors[t];
      Storage s{p_.layout.output_buffer(o), 0, out.strides};
      if (p_.alias_of[t] >= 0) s.strides = r_.tensors[p_.alias_of[t]].strides;
      if (p_.alias_of[t] >= 0 && (place_slice_update(t, s) || place_row_update(t, s))) continue;
      int source = t;
      while (p_.alias_of[t] < 0 && pull_back(source, s)) source = r_.producer(source)->operands[0];
      bool other_output =
          source != t && std::any_of(r_.outputs.begin(), r_.outputs.end(), [&](const RegionOutput& x) { return x.tensor == source; });
      bool computed = r_.producer(source) && !is_view(r_.producer(source)->op) && !p_.layout.stored(source) && !other_output;
      if (computed && source != t && is_anchor(r_.producer(source)->op))
        computed = takes_stored(describe_anchor(r_, *r_.producer(source)), s);
      if (!computed) source = t, s.strides = p_.alias_of[t] >= 0 ? s.strides : out.strides;
      p_.layout.place(source, s);
      p_.forced[source] = true;
    }
  }

  // Whether the library writes its result there.
  bool takes_stored(AnchorDesc desc, const Storage& s) const {
    desc.results[0].strides = s.strides;
    std::string why;
    return backend_.takes_anchor(desc, why);
  }

  // Storage of the operand of a permute or a reshape of contiguous data, given the result's.
  bool pull_back(int t, Storage& s) const {
    const TensorNode* node = r_.producer(t);
    if (!node) return false;
    const Tensor& x = r_.tensors[node->operands.empty() ? t : node->operands[0]];
    if (node->op == kOp_permute) {
      Dims strides(x.sizes.size());
      for (size_t d = 0; d < strides.size(); ++d) strides[node->attrs.dims[d]] = s.strides[d];
      s.strides = strides;
      return true;
    }
    if (node->op == kOp_reshape && s.strides == row_major(r_.tensors[t].sizes)) {
      s.strides = row_major(x.sizes);
      return true;
    }
    return false;
  }

  // slice_scatter(input, src) written into that input: only the slice changes.
  bool place_slice_update(int t, const Storage& s) {
    int copy = r_.tensors[t].producer;
    int updated = r_.nodes[copy].operands[0];
    const TensorNode* node = r_.producer(updated);
    if (!node || node->op != kOp_slice_scatter || node->operands[0] != p_.alias_of[t]) return false;
    const Attrs& a = node->attrs;
    Storage slice = s;
    slice.offset += a.start * s.strides[a.dim];
    slice.strides[a.dim] *= a.step;
    r_.nodes[copy].operands[0] = node->operands[1];
    r_.tensors[t].sizes = r_.tensors[node->operands[1]].sizes;
    p_.layout.place(t, slice);
    p_.forced[t] = true;
    return true;
  }

  // index_copy(input, index, src) written into that input: only the rows that the index names change. Whoever reads the whole
  // afterwards finds it in the input's memory.
  bool place_row_update(int t, const Storage& s) {
    int copy = r_.tensors[t].producer;
    int updated = r_.nodes[copy].operands[0];
    const TensorNode* node = r_.producer(updated);
    if (!node || node->op != kOp_index_reduce || node->operands[0] != p_.alias_of[t]) return false;  // updates_rows left it so
    int src = node->operands[2];
    Storage rows = s;
    rows.row_index = node->operands[1];
    rows.row_axis = static_cast<int>(node->attrs.dim);
    rows.num_rows = r_.tensors[updated].sizes[rows.row_axis];
    r_.nodes[copy].operands[0] = src;
    r_.tensors[t].sizes = r_.tensors[src].sizes;
    p_.layout.place(t, std::move(rows));
    p_.layout.place(updated, s);
    p_.forced[t] = p_.forced[updated] = true;
    p_.absorbed[r_.tensors[updated].producer] = true;
    p_.shown_by[t] = updated;
    return true;
  }

  void force(int t) {
    p_.forced[t] = true;
    if (!p_.layout.stored(t)) p_.layout.place_in_temp(r_, t);
  }

  // ---- anchors ----

  void plan_anchors() {
    for (int n = 0; n < static_cast<int>(r_.nodes.size()); ++n) {
      if (!is_anchor(r_.nodes[n].op)) continue;
      AnchorPlan plan;
      plan.node = n;
      plan.results = r_.nodes[n].results;
      AnchorDesc desc = describe_anchor(r_, r_.nodes[n]);
      absorb(plan, desc);
      widen(plan, desc);
      for (int t : r_.nodes[n].operands) {
        if (t >= 0) store_operand(t);
      }
      if (p_.layout.stored(plan.results[0])) desc.results[0].strides = p_.layout.at(plan.results[0]).strides;
      keep_taken(n, std::move(desc));
      p_.anchors.push_back(std::move(plan));
    }
  }

  // The library was asked about operands laid out as the region states them. A view is read where it lies, with other strides:
  // where the library has only its slow path for those, or none with this epilogue and this place of its result, the operand is laid out
  // as stated. A relayout was asked for by name.
  void keep_taken(int n, AnchorDesc desc) {
    const TensorNode& node = r_.nodes[n];
    auto is_relayout = [&](int t) { return r_.producer(t) && r_.producer(t)->op == kOp_relayout; };
    for (int t : node.operands) {
      if (t >= 0 && !p_.layout.stored(t) && is_relayout(t)) force(t);
    }
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (node.operands[i] < 0 || p_.layout.stored(node.operands[i])) continue;
      StridedView view;
      const Dims stated = desc.operands[i].strides;
      if (resolve_view(r_, p_.layout, node.operands[i], view)) desc.operands[i].strides = view.strides;
      std::string why;
      if (backend_.takes_anchor(desc, why)) continue;
      desc.operands[i].strides = stated;
      force(node.operands[i]);
    }
  }

  void store_operand(int t) {
    int base = view_base(r_, t);
    if (p_.layout.stored(t) || r_.tensors[base].numel() == 0) return force(t);
    if (!p_.layout.stored(base)) p_.layout.place_in_temp(r_, base);
    p_.forced[base] = true;
    StridedView view;
    bool usable = resolve_view(r_, p_.layout, t, view) && std::all_of(view.strides.begin(), view.strides.end(), [](int64_t s) {
                    return s >= 0;
                  });
    if (!usable) force(t);
  }

  // While the only reader of the result is a scalar op that the library can apply, let it. Libraries compute epilogues wide and
  // round once, so ops between a widening cast and the one back count only together. `taken`: what the library was asked about.
  void absorb(AnchorPlan& plan, AnchorDesc& taken) {
    AnchorDesc desc = taken;
    AnchorPlan tried = plan;
    std::vector<int> pending;
    for (;;) {
      int t = tried.results[0];
      if (r_.tensors[t].readers.size() != 1 || p_.forced[t]) return;
      int n = r_.tensors[t].readers[0];
      if (kernels_store_.contains(r_.nodes[n].results[0])) return;
      if (!is_free_cast(t, r_.nodes[n], desc.results[0].dtype)) {
        AnchorPlan::Post post;
        PostOp asked;
        if (!post_op(t, n, post, asked) || !backend_.takes_post_op(desc, asked)) return;
        desc.post_ops.push_back(asked);
        tried.post_ops.push_back(post);
      }
      pending.push_back(n);
      tried.results[0] = r_.nodes[n].results[0];
      if (r_.tensors[tried.results[0]].dtype != desc.results[0].dtype) continue;
      if (p_.layout.stored(tried.results[0]) && !takes_stored(desc, p_.layout.at(tried.results[0]))) return;
      for (size_t i = plan.post_ops.size(); i < tried.post_ops.size(); ++i) {
        if (tried.post_ops[i].operand >= 0) store_operand(tried.post_ops[i].operand);
      }
      plan = tried;
      taken = desc;
      for (int each : pending) p_.absorbed[each] = true;
      pending.clear();
    }
  }

  // A cast to f32 that nothing takes back: the library's sums are f32, and it stores them as they are.
  void widen(AnchorPlan& plan, AnchorDesc& taken) {
    const TensorNode& node = r_.nodes[plan.node];
    const int t = plan.results[0];
    const bool bare = plan.post_ops.empty() && (node.operands.size() < 3 || node.operands[2] < 0);
    if (!backend_.target().wide_products || !is_product(node.op) || !bare || r_.tensors[t].readers.size() != 1 || p_.forced[t]) return;
    const int reader = r_.tensors[t].readers[0], wide = r_.nodes[reader].results[0];
    if (!is_free_cast(t, r_.nodes[reader], r_.tensors[t].dtype) || kernels_store_.contains(wide)) return;
    AnchorDesc desc = taken;
    desc.results[0].dtype = kDType_f32;
    if (p_.layout.stored(wide)) desc.results[0].strides = p_.layout.at(wide).strides;
    std::string why;
    if (!backend_.takes_anchor(desc, why)) return;
    plan.results[0] = wide;
    taken = std::move(desc);
    p_.absorbed[reader] = true;
  }

  // From a 16-bit result to f32 where that rounding need not be seen, and back.
  bool is_free_cast(int t, const TensorNode& node, uint8_t own) const {
    if (node.op != kOp_cast || (own != kDType_f16 && own != kDType_bf16)) return false;
    const uint8_t from = r_.tensors[t].dtype, to = r_.tensors[node.results[0]].dtype;
    return (from == own && to == kDType_f32 && !r_.tensors[t].observed) || (from == kDType_f32 && to == own);
  }

  // Rounding between the anchor and the op must not be visible, unless the op commutes with it.
  bool post_op(int t, int n, AnchorPlan::Post& post, PostOp& asked) const {
    const TensorNode& node = r_.nodes[n];
    const Tensor& x = r_.tensors[t];
    bool narrow = x.dtype == kDType_f16 || x.dtype == kDType_bf16;
    if (op_kind(node.op) != OpKind::kScalar || r_.tensors[node.results[0]].dtype != x.dtype) return false;
    if (narrow && x.observed && node.op != kOp_relu) return false;
    post.op = asked.op = node.op;
    size_t arity = node.operands.size();
    if (arity == 1) return node.op != kOp_cast;
    if (node.op == kOp_clamp || node.op == kOp_leaky_relu) {
      bool known = node.operands[0] == t && literal(node.operands[1], post.alpha) && (arity == 2 || literal(node.operands[2], post.beta));
      asked.alpha = post.alpha, asked.beta = post.beta;
      return known;
    }
    if (arity != 2 || node.operands[0] == node.operands[1] ||
        (node.op != kOp_add && node.op != kOp_mul && !(node.op == kOp_sub && KRN_PLANTED(epilogue_order))))
      return false;
    post.operand = node.operands[0] == t ? node.operands[1] : node.operands[0];
    const Tensor& other = r_.tensors[post.operand];
    double scalar = 0;
    if (literal(post.operand, scalar)) return false;
    int base = view_base(r_, post.operand);
    const TensorNode* producer = r_.producer(base);
    if (producer && op_kind(producer->op) == OpKind::kFactory) return false;
    asked.operand.buffer = 0;
    asked.operand.dtype = other.dtype;
    asked.operand.sizes = other.sizes;
    asked.operand.strides = other.strides;
    StridedView view;
    Layout layout(r_);
    if (!layout.stored(base)) layout.place_in_temp(r_, base);
    if (resolve_view(r_, layout, post.operand, view)) asked.operand.strides = view.strides;
    return true;
  }

  bool literal(int t, double& out) const {
    const TensorNode* node = r_.producer(view_base(r_, t));
    if (!node || node->op != kOp_full) return false;
    out = is_float(r_.tensors[t].dtype) ? node->attrs.value_d : static_cast<double>(node->attrs.value_i);
    return true;
  }

  void place_anchor_results() {
    for (AnchorPlan& plan : p_.anchors) {
      for (int t : plan.results) force(t);
    }
  }

  // ---- the rest ----

  void place_indices() {
    for (int n = 0; n < static_cast<int>(r_.nodes.size()); ++n) {
      if (r_.nodes[n].op != kOpSegmentReduce) continue;
      int index = r_.nodes[n].operands[1];
      store_operand(index);
      StridedView view;
      if (!resolve_view(r_, p_.layout, index, view) || (r_.tensors[index].sizes[0] > 1 && view.strides[0] != 1)) {
        p_.layout.place(index, Storage{p_.layout.add_temp(r_.tensors[index].numel() * dtype_bytes(r_.tensors[index].dtype)), 0, {1}});
        p_.forced[index] = true;
      }
    }
  }

  // A stored concatenation needs no kernel: its operands are computed into their places, or copied there.
  void place_concatenations() {
    for (int n = static_cast<int>(r_.nodes.size()); n-- > 0;) {
      if (r_.nodes[n].op != kOp_cat || !p_.layout.stored(r_.nodes[n].results[0])) continue;
      int64_t dim = r_.nodes[n].attrs.dim, begin = 0;
      p_.cat_in_place[r_.nodes[n].results[0]] = true;
      for (size_t k = 0; k < r_.nodes[n].operands.size(); ++k) {
        int x = r_.nodes[n].operands[k];
        Storage s = p_.layout.at(r_.nodes[n].results[0]);
        s.offset += begin * s.strides[dim];
        begin += r_.tensors[x].sizes[dim];
        if (const int bag = bag_below(x, s); bag >= 0) {
          r_.nodes[n].operands[k] = bag;
          p_.layout.place(bag, s);
          p_.forced[bag] = true;
          continue;
        }
        const TensorNode* producer = r_.producer(x);
        bool direct = producer && !is_view(producer->op) && !is_anchor(producer->op) && !p_.layout.stored(x) && !ends_anchor(x);
        if (!direct) {
          x = copy_of(x);
          r_.nodes[n].operands[k] = x;
        }
        p_.layout.place(x, s);
        grow_tensors();
        p_.forced[x] = true;
      }
    }
    std::set<int> results;  // tidy renumbers nodes
    for (size_t i = 0; i < p_.absorbed.size(); ++i) {
      if (p_.absorbed[i]) results.insert(r_.nodes[i].results[0]);
    }
    std::vector<int> anchor_results;
    for (AnchorPlan& plan : p_.anchors) anchor_results.push_back(r_.nodes[plan.node].results[0]);
    // What names the rows of an update is an operand of what the update stands for, which nobody else may read.
    std::vector<int> updated;
    std::copy_if(p_.shown_by.begin(), p_.shown_by.end(), std::back_inserter(updated), [](int t) { return t >= 0; });
    r_.tidy(updated);
    p_.absorbed.assign(r_.nodes.size(), false);
    for (int t : results) p_.absorbed[r_.tensors[t].producer] = true;
    for (size_t i = 0; i < p_.anchors.size(); ++i) p_.anchors[i].node = r_.tensors[anchor_results[i]].producer;
  }

  // The bags that `x` is a reshape of by axes of size 1 alone, where nothing else reads them; `s` then is their storage. Their
  // kernel writes rows at any stride of whole 16-byte words.
  int bag_below(int x, Storage& s) const {
    Storage at = s;
    while (const TensorNode* node = r_.producer(x)) {
      const Tensor& t = r_.tensors[x];
      if (t.readers.size() != 1 || p_.layout.stored(x)) return -1;
      if (node->op == kOp_embedding_bag) {
        const int64_t bytes = dtype_bytes(t.dtype);
        if (at.strides[1] != 1 || at.offset * bytes % 16 != 0 || at.strides[0] * bytes % 16 != 0) return -1;
        s = std::move(at);
        return x;
      }
      if (node->op != kOp_reshape) return -1;
      const Tensor& from = r_.tensors[node->operands[0]];
      Dims strides;
      size_t d = 0;
      for (int64_t size : from.sizes) {
        while (d < t.sizes.size() && t.sizes[d] == 1 && size != 1) ++d;
        if (size == 1) {
          strides.push_back(0);
          continue;
        }
        if (d == t.sizes.size() || t.sizes[d] != size) return -1;
        strides.push_back(at.strides[d++]);
      }
      at.strides = std::move(strides);
      x = node->operands[0];
    }
    return -1;
  }

  void grow_tensors() {
    p_.forced.resize(r_.tensors.size(), false);
    p_.alias_of.resize(r_.tensors.size(), -1);
    p_.shown_by.resize(r_.tensors.size(), -1);
    p_.cat_in_place.resize(r_.tensors.size(), false);
  }

  bool ends_anchor(int t) const {
    return std::any_of(p_.anchors.begin(), p_.anchors.end(), [&](const AnchorPlan& a) {
      return std::find(a.results.begin(), a.results.end(), t) != a.results.end();
    });
  }

  void place_rest() {
    for (size_t n = 0; n < r_.nodes.size(); ++n) {
      const TensorNode& node = r_.nodes[n];
      bool inlined = is_view(node.op) || op_kind(node.op) == OpKind::kFactory || node.op == kOpWindow || p_.absorbed[n] ||
                     is_anchor(node.op) || node.op == kOp_cat;  // a concatenation that nothing forces is read piece by piece
      if (!inlined && !p_.layout.stored(node.results[0])) p_.layout.place_in_temp(r_, node.results[0]);
    }
  }

  const Backend& backend_;
  FlatRegion r_;
  std::set<int> kernels_store_;  // of what is known
  PreparedRegion p_{{}, Layout(FlatRegion()), {}, {}, {}, {}, {}, {}};
  std::vector<std::pair<int, int>> updates_;
};

// `through_views`: a constant that is read as a view of it is a constant all the same.
TensorDesc stored_desc(const PreparedRegion& p, int t, bool through_views = false) {
  TensorDesc out;
  if (t < 0) return out;
  const Tensor& tensor = p.region.tensors[t];
  StridedView view;
  if (!resolve_view(p.region, p.layout, t, view)) throw kit::Error(KRN_STATUS_internal, "an anchor's operand has no storage");
  out.buffer = static_cast<uint32_t>(p.layout.at(view.base).buffer);
  out.dtype = tensor.dtype;
  out.sizes = tensor.sizes;
  out.strides = view.strides;
  out.offset = view.offset;
  if (view.base == t || through_views) out.weight = p.region.tensors[view.base].weight;
  return out;
}

}  // namespace

PreparedRegion prepare(FlatRegion region, const Backend& backend, const Grouping* known) {
  return Preparer(std::move(region), backend, known).run();
}

void describe_anchors(PreparedRegion& p) {
  for (AnchorPlan& plan : p.anchors) {
    const TensorNode& node = p.region.nodes[plan.node];
    plan.desc = describe_anchor(p.region, node);
    const bool transposed_weights = node.op == kOp_grouped_matmul;  // models write them [groups, columns, depth]
    for (size_t i = 0; i < node.operands.size(); ++i) plan.desc.operands[i] = stored_desc(p, node.operands[i], transposed_weights);
    for (size_t i = 0; i < plan.results.size(); ++i) plan.desc.results[i] = stored_desc(p, plan.results[i]);
    for (const AnchorPlan::Post& post : plan.post_ops) {
      PostOp op;
      op.op = post.op, op.operand = stored_desc(p, post.operand), op.alpha = post.alpha, op.beta = post.beta;
      plan.desc.post_ops.push_back(op);
    }
  }
}

}  // namespace keirin::codegen
