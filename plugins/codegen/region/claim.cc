// SPDX-License-Identifier: Apache-2.0
//
// One node at a time: dtype, then what its kind of row needs. Bodies are looked into, because they are what gets compiled.
#include "plugins/codegen/region/claim.h"

#include <algorithm>

#include "plugins/codegen/region/check_region.h"
#include "plugins/codegen/region/region.h"
#include "plugins/codegen/region/rewrite.h"

namespace keirin::codegen {
namespace {

class Claimer {
 public:
  Claimer(const krn_graph& graph, const Backend& backend) : g_(graph), backend_(backend) {}

  ClaimResult run() {
    const krn_gfunction& top = *krn_graph_function(&g_, 0);
    for (uint32_t i = 0; i < top.num_nodes; ++i) {
      uint32_t n = top.first_node + i;
      std::string why = why_not(n, 0);
      if (why.empty()) {
        take(n);
      } else {
        out_.refused.push_back({n, std::move(why)});
      }
    }
    return std::move(out_);
  }

 private:
  std::string why_not(uint32_t n, int depth) {
    const krn_gnode& node = *krn_graph_node(&g_, n);
    OpKind kind = op_kind(node.op);
    if (node.op == kOp_opaque || kind == OpKind::kUnknown) return "not in the op table";
    if (std::string why = dtypes(node); !why.empty()) return why;
    uint32_t first = node.num_operands ? krn_graph_operand(&g_, &node, 0) : KRN_NONE;
    uint8_t dtype = krn_graph_value_type(&g_, first == KRN_NONE ? node.first_result : first)->dtype;
    std::string why;
    if (!backend_.supports(node.op, dtype, why)) return why.empty() ? "the backend does not support it" : why;
    switch (kind) {
      case OpKind::kScalar: return scalar(node, dtype);
      case OpKind::kMove: return move(node);
      case OpKind::kBodyComposite: return body(node, depth);
      case OpKind::kAnchorComposite: return anchor(node);
      default: return "";
    }
  }

  std::string dtypes(const krn_gnode& node) const {
    auto check = [&](uint32_t v) -> std::string {
      const krn_gtype& t = *krn_graph_value_type(&g_, v);
      if (!is_computable(t.dtype)) return "a dtype that generated code does not compute in";
      return t.rank > 12 ? "more than 12 axes" : "";
    };
    std::string why;
    for (uint32_t k = 0; k < node.num_operands && why.empty(); ++k) {
      uint32_t v = krn_graph_operand(&g_, &node, k);
      if (v != KRN_NONE) why = check(v);
    }
    for (uint32_t k = 0; k < node.num_results && why.empty(); ++k) why = check(node.first_result + k);
    return why;
  }

  std::string scalar(const krn_gnode& node, uint8_t dtype) const {
    bool integer = is_integer(dtype);
    if ((node.op == kOp_div || node.op == kOp_fmod || node.op == kOp_pow) && integer) return "integer division can raise";
    return "";
  }

  std::string move(const krn_gnode& node) const {
    Attrs a = read_attrs(g_, node);
    if (node.op == kOp_slice_scatter && a.step != 1) return "slice_scatter with a step";
    if (node.op == kOp_take || node.op == kOp_gather) {
      const krn_gtype& x = *krn_graph_value_type(&g_, krn_graph_operand(&g_, &node, 0));
      if (a.dim < 0 || a.dim >= x.rank || krn_graph_sizes(&g_, &x)[a.dim] == 0) return "a gather from an empty axis";
    }
    if (node.op == kOp_index_reduce && a.reduce == "none") {
      if (!backend_.target().updates_rows) return "rows of an index are not written here";
      if (is_update(node)) return "";
    }
    return node.op == kOp_scatter || node.op == kOp_index_reduce || node.op == kOp_cumsum ? generated(node) : "";
  }

  // Its result is nothing but the next content of the input that it changes.
  bool is_update(const krn_gnode& node) const {
    const krn_gfunction& top = *krn_graph_function(&g_, 0);
    int places = 0;
    bool in_place = false;
    for (uint32_t i = 0; i < top.num_outputs; ++i) {
      const krn_goutput& output = *krn_graph_output(&g_, top.first_output + i);
      if (output.value != node.first_result) continue;
      ++places;
      in_place |= output.alias_input != KRN_NONE &&
                  krn_graph_input(&g_, top.first_input + output.alias_input)->value == krn_graph_operand(&g_, &node, 0);
    }
    return in_place && places == 1;
  }

  std::string body(const krn_gnode& node, int depth) {
    if (node.body == KRN_NONE) return "a composite without its decomposition";
    if (depth > 8) return "composite bodies nest deeper than 8";
    const krn_gfunction& f = *krn_graph_function(&g_, node.body);
    for (uint32_t i = 0; i < f.num_nodes; ++i) {
      std::string why = why_not(f.first_node + i, depth + 1);
      if (!why.empty()) return why + " (inside " + std::string(op_name(node.op)) + ")";
    }
    return "";
  }

  // Libraries may take a shape only where an operand is constant.
  uint32_t weight_of(uint32_t v) const {
    const krn_gvalue& value = *krn_graph_value(&g_, v);
    const krn_gfunction& top = *krn_graph_function(&g_, 0);
    if (value.producer != KRN_NONE || value.result >= top.num_inputs) return KRN_NONE;
    const krn_ginput& in = *krn_graph_input(&g_, top.first_input + value.result);
    return in.value == v && (in.flags & KRN_INPUT_WEIGHT) ? in.weight : KRN_NONE;
  }

  // The node alone, as a region of one, to ask questions that need shapes.
  FlatRegion alone(const krn_gnode& node) const {
    FlatRegion r;
    auto add = [&](uint32_t v) {
      const krn_gtype& type = *krn_graph_value_type(&g_, v);
      Tensor t;
      t.dtype = type.dtype;
      t.sizes.assign(krn_graph_sizes(&g_, &type), krn_graph_sizes(&g_, &type) + type.rank);
      t.strides.assign(krn_graph_strides(&g_, &type), krn_graph_strides(&g_, &type) + type.rank);
      t.weight = weight_of(v);
      r.tensors.push_back(std::move(t));
      return static_cast<int>(r.tensors.size()) - 1;
    };
    TensorNode n;
    n.op = node.op;
    n.attrs = read_attrs(g_, node);
    for (uint32_t k = 0; k < node.num_operands; ++k) {
      uint32_t v = krn_graph_operand(&g_, &node, k);
      n.operands.push_back(v == KRN_NONE ? -1 : add_views(r, v, add, 0));
    }
    for (uint32_t k = 0; k < node.num_results; ++k) {
      n.results.push_back(add(node.first_result + k));
      r.tensors.back().producer = static_cast<int>(r.nodes.size());
    }
    r.nodes.push_back(std::move(n));
    return r;
  }

  // An operand with the expands and reshapes above it: a scatter's index is judged by them.
  template <class F>
  int add_views(FlatRegion& r, uint32_t v, F& add, int depth) const {
    uint32_t producer = krn_graph_value(&g_, v)->producer;
    const krn_gnode* node = producer == KRN_NONE ? nullptr : krn_graph_node(&g_, producer);
    if (!node || !is_view(node->op) || depth > 8) {
      int t = add(v);
      r.inputs.push_back(t);
      r.tensors[t].input = static_cast<int>(r.inputs.size()) - 1;
      return t;
    }
    TensorNode view;
    view.op = node->op;
    view.attrs = read_attrs(g_, *node);
    view.operands = {add_views(r, krn_graph_operand(&g_, node, 0), add, depth + 1)};
    int t = add(v);
    view.results = {t};
    r.tensors[t].producer = static_cast<int>(r.nodes.size());
    r.nodes.push_back(std::move(view));
    return t;
  }

  std::string generated(const krn_gnode& node) const {
    FlatRegion r = alone(node);
    return rewritten(r);
  }

  // Rewrites the last node, and whatever anchors this makes that the library refuses.
  std::string rewritten(FlatRegion& r) const {
    if (std::string misfit = misfit_of(r); !misfit.empty()) return misfit;  // a rewrite indexes with what it is given
    const size_t given = r.nodes.size();
    std::string why = rewrite(r, static_cast<int>(given) - 1, backend_.target());
    for (size_t n = given; why.empty() && n < r.nodes.size(); ++n) {
      std::string refused;
      if (op_kind(r.nodes[n].op) != OpKind::kAnchorComposite || backend_.takes_anchor(describe_anchor(r, r.nodes[n]), refused)) continue;
      why = rewrite(r, static_cast<int>(n), backend_.target());
      if (!why.empty() && !refused.empty()) why = refused;
    }
    return why;
  }

  std::string anchor(const krn_gnode& node) {
    FlatRegion r = alone(node);
    for (const Tensor& t : r.tensors) {
      if (t.numel() == 0) return "an empty contraction";
    }
    std::string why;
    if (backend_.takes_anchor(describe_anchor(r, r.nodes.back()), why)) return "";
    std::string other = rewritten(r);
    return other.empty() ? "" : (why.empty() ? other : why);
  }

  void take(uint32_t n) {
    const krn_gnode& node = *krn_graph_node(&g_, n);
    out_.claimed.nodes.push_back(n);
    double bytes = 0, flops = 0;
    auto count = [&](uint32_t v) {
      const krn_gtype& t = *krn_graph_value_type(&g_, v);
      double size = 1;
      for (int d = 0; d < t.rank; ++d) size *= static_cast<double>(krn_graph_sizes(&g_, &t)[d]);
      bytes += size * dtype_bytes(t.dtype);
      return size;
    };
    if (is_view(node.op)) return;
    double result = 0;
    for (uint32_t k = 0; k < node.num_results; ++k) result += count(node.first_result + k);
    double last = 0;
    for (uint32_t k = 0; k < node.num_operands; ++k) {
      uint32_t v = krn_graph_operand(&g_, &node, k);
      if (v != KRN_NONE) last = k < 2 ? count(v) : last;
    }
    if (op_kind(node.op) == OpKind::kAnchorComposite) {
      // Multiply-adds of a contraction: every result element folds the second operand once for each of its own rows.
      const krn_gtype& out = *krn_graph_value_type(&g_, node.first_result);
      int axis = node.op == kOp_conv ? 1 : node.op == kOp_conv_grad_weight ? 0 : out.rank - 1;
      double columns = out.rank > 0 && axis >= 0 ? static_cast<double>(krn_graph_sizes(&g_, &out)[axis]) : 1;
      flops = 2 * result * last / (columns > 0 ? columns : 1);
      ++out_.claimed.anchors;
    }
    const TargetInfo& t = backend_.target();
    out_.claimed.cost_ns += 1e9 * std::max(bytes / t.bytes_per_s, flops / t.flops_per_s);
  }

  const krn_graph& g_;
  const Backend& backend_;
  ClaimResult out_;
};

}  // namespace

ClaimResult claim(const krn_graph& graph, const Backend& backend) { return Claimer(graph, backend).run(); }

}  // namespace keirin::codegen
