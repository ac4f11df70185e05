// SPDX-License-Identifier: Apache-2.0
//
// Graph bytes to FlatRegion: flattening of composite bodies and reading of attributes.
#include "plugins/codegen/region/region.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "plugins/codegen/region/check_region.h"
#include "plugins/kit/error.h"

namespace keirin::codegen {
namespace {

class Reader {
 public:
  explicit Reader(const krn_graph& graph) : g_(graph) {}

  FlatRegion read() {
    const krn_gfunction& top = *krn_graph_function(&g_, 0);
    Names names(krn_graph_count(&g_, KRN_SECTION_VALUES), kNoTensor);
    region_.tensors.reserve(names.size());
    region_.nodes.reserve(krn_graph_count(&g_, KRN_SECTION_NODES));
    for (uint32_t i = 0; i < top.num_inputs; ++i) {
      const krn_ginput& in = *krn_graph_input(&g_, top.first_input + i);
      int t = add_tensor(in.value);
      region_.tensors[t].input = static_cast<int>(i);
      if (in.flags & KRN_INPUT_WEIGHT) region_.tensors[t].weight = in.weight;
      region_.inputs.push_back(t);
      names[in.value] = t;
    }
    for (uint32_t i = 0; i < top.num_nodes; ++i) {
      claim_node_ = top.first_node + i;
      read_node(*krn_graph_node(&g_, claim_node_), names, 0);
    }
    for (uint32_t i = 0; i < top.num_outputs; ++i) {
      const krn_goutput& out = *krn_graph_output(&g_, top.first_output + i);
      region_.outputs.push_back({tensor_of(names, out.value), out.alias_input == KRN_NONE ? -1 : static_cast<int>(out.alias_input)});
    }
    region_.tidy();
    check_region(region_);
    return std::move(region_);
  }

 private:
  static constexpr int kNoTensor = -1;
  using Names = std::vector<int>;  // tensors, by value

  static int tensor_of(const Names& names, uint32_t value) {
    if (names.at(value) == kNoTensor) throw kit::Error(KRN_STATUS_corrupt, "a value is read before it is made");
    return names[value];
  }

  int add_tensor(uint32_t value) {
    const krn_gtype& type = *krn_graph_value_type(&g_, value);
    Tensor t;
    t.dtype = type.dtype;
    t.observed = krn_graph_value(&g_, value)->flags & KRN_VALUE_OBSERVED;
    const int64_t* sizes = krn_graph_sizes(&g_, &type);
    const int64_t* strides = krn_graph_strides(&g_, &type);
    t.sizes.assign(sizes, sizes + type.rank);
    t.strides.assign(strides, strides + type.rank);
    region_.tensors.push_back(std::move(t));
    return static_cast<int>(region_.tensors.size()) - 1;
  }

  void read_node(const krn_gnode& node, Names& names, int depth) {
    if (depth > 8) throw kit::Error(KRN_STATUS_corrupt, "composite bodies nest deeper than 8");
    OpKind kind = op_kind(node.op);
    if (kind == OpKind::kBodyComposite && node.body != KRN_NONE) return inline_body(node, names, depth);
    if (kind == OpKind::kUnknown || kind == OpKind::kBodyComposite) {
      throw kit::Error(KRN_STATUS_unsupported, "node " + std::to_string(claim_node_) + " (" + std::string(op_name(node.op)) +
                                                   ") has no body and no lowering: leave it to eager");
    }
    TensorNode out;
    out.op = node.op;
    out.claim_node = claim_node_;
    out.attrs = read_attrs(g_, node);
    for (uint32_t k = 0; k < node.num_operands; ++k) {
      uint32_t v = krn_graph_operand(&g_, &node, k);
      out.operands.push_back(v == KRN_NONE ? -1 : tensor_of(names, v));
    }
    for (uint32_t k = 0; k < node.num_results; ++k) {
      int t = add_tensor(node.first_result + k);
      region_.tensors[t].producer = static_cast<int>(region_.nodes.size());
      out.results.push_back(t);
      names[node.first_result + k] = t;
    }
    region_.nodes.push_back(std::move(out));
  }

  // The body's results take the node's own observed bits: those are the ones that mark_rounding saw.
  // Values of a body have numbers of their own, and a body that is inlined again has new tensors for them.
  void inline_body(const krn_gnode& node, Names& names, int depth) {
    const krn_gfunction& body = *krn_graph_function(&g_, node.body);
    uint32_t present = 0;
    for (uint32_t k = 0; k < node.num_operands; ++k) {
      uint32_t v = krn_graph_operand(&g_, &node, k);
      if (v == KRN_NONE) continue;
      if (present >= body.num_inputs) throw kit::Error(KRN_STATUS_corrupt, "a body has fewer inputs than its node operands");
      names[krn_graph_input(&g_, body.first_input + present++)->value] = tensor_of(names, v);
    }
    if (present != body.num_inputs || body.num_outputs != node.num_results) {
      throw kit::Error(KRN_STATUS_corrupt, "the body of node " + std::to_string(claim_node_) + " has another signature");
    }
    for (uint32_t i = 0; i < body.num_nodes; ++i) read_node(*krn_graph_node(&g_, body.first_node + i), names, depth + 1);
    for (uint32_t k = 0; k < node.num_results; ++k) {
      int t = tensor_of(names, krn_graph_output(&g_, body.first_output + k)->value);
      bool own = region_.tensors[t].producer >= 0;
      if (own) region_.tensors[t].observed |= bool(krn_graph_value(&g_, node.first_result + k)->flags & KRN_VALUE_OBSERVED);
      if (own) region_.tensors[t].strides = strides_of(node.first_result + k);
      names[node.first_result + k] = t;
    }
  }

  Dims strides_of(uint32_t value) const {
    const krn_gtype& type = *krn_graph_value_type(&g_, value);
    const int64_t* strides = krn_graph_strides(&g_, &type);
    return Dims(strides, strides + type.rank);
  }

  const krn_graph& g_;
  FlatRegion region_;
  uint32_t claim_node_ = 0;
};

double as_double(uint64_t bits) { return std::bit_cast<double>(bits); }

}  // namespace

Attrs read_attrs(const krn_graph& g, const krn_gnode& node) {
  Attrs out;
  for (uint32_t i = 0; i < node.num_attrs; ++i) {
    const krn_gattr& a = *krn_graph_attr(&g, node.first_attr + i);
    int64_t number = static_cast<int64_t>(a.bits);
    auto list = [&] { return a.count ? Dims(krn_graph_words(&g, &a), krn_graph_words(&g, &a) + a.count) : Dims{}; };
    auto chars = [&] { return a.count ? std::string(krn_graph_chars(&g, &a), a.count) : std::string(); };
    switch (a.key) {
      case kAttr_dims: out.dims = list(); break;
      case kAttr_sizes: out.sizes = list(); break;
      case kAttr_low: out.low = list(); break;
      case kAttr_high: out.high = list(); break;
      case kAttr_stride: out.stride = list(); break;
      case kAttr_padding: out.padding = list(); break;
      case kAttr_dilation: out.dilation = list(); break;
      case kAttr_output_padding: out.output_padding = list(); break;
      case kAttr_kernel: out.kernel = list(); break;
      case kAttr_scales: out.scales = list(); break;
      case kAttr_dim: out.dim = number; break;
      case kAttr_start: out.start = number; break;
      case kAttr_end: out.end = number; break;
      case kAttr_step: out.step = number; break;
      case kAttr_value_i: out.value_i = number; break;
      case kAttr_dtype: out.dtype = number; break;
      case kAttr_groups: out.groups = number; break;
      case kAttr_layers: out.layers = number; break;
      case kAttr_divisor: out.divisor = number; break;
      case kAttr_rank: out.rank = number; break;
      case kAttr_value_d: out.value_d = as_double(a.bits); break;
      case kAttr_scale: out.scale = as_double(a.bits); break;
      case kAttr_eps: out.eps = as_double(a.bits); break;
      case kAttr_keepdim: out.keepdim = number; break;
      case kAttr_include_self: out.include_self = number; break;
      case kAttr_transposed: out.transposed = number; break;
      case kAttr_causal: out.causal = number; break;
      case kAttr_gqa: out.gqa = number; break;
      case kAttr_bidirectional: out.bidirectional = number; break;
      case kAttr_batch_first: out.batch_first = number; break;
      case kAttr_has_biases: out.has_biases = number; break;
      case kAttr_ceil_mode: out.ceil_mode = number; break;
      case kAttr_count_include_pad: out.count_include_pad = number; break;
      case kAttr_align_corners: out.align_corners = number; break;
      case kAttr_include_last_offset: out.include_last_offset = number; break;
      case kAttr_ieee: out.ieee = number; break;
      case kAttr_reduce: out.reduce = chars(); break;
      case kAttr_mode: out.mode = chars(); break;
      case kAttr_encoding: out.encoding = chars(); break;
      default: break;
    }
  }
  return out;
}

Dims row_major(const Dims& sizes) {
  Dims out(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    out[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return out;
}

bool is_view(uint32_t op) {
  switch (op) {
    case kOp_expand:
    case kOp_reshape:
    case kOp_permute:
    case kOp_slice:
    case kOp_flip:
    case kOp_relayout:
      return true;
    default:
      return false;
  }
}

int FlatRegion::add(uint32_t op, std::vector<int> operands, uint8_t dtype, Dims sizes, Attrs attrs) {
  int result = static_cast<int>(tensors.size());
  Tensor t;
  t.dtype = dtype;
  t.strides = row_major(sizes);
  t.sizes = std::move(sizes);
  t.producer = static_cast<int>(nodes.size());
  tensors.push_back(std::move(t));
  nodes.push_back(TensorNode{op, std::move(operands), {result}, std::move(attrs), 0});
  return result;
}

int FlatRegion::constant(double value, uint8_t dtype, Dims sizes) {
  Attrs a;
  a.value_d = value;
  a.value_i = static_cast<int64_t>(value);
  a.dtype = dtype;
  a.sizes = sizes;
  return add(kOp_full, {}, dtype, std::move(sizes), a);
}

void FlatRegion::tidy(std::span<const int> kept) {
  std::vector<TensorNode> ordered;
  ordered.reserve(nodes.size());
  std::vector<int> place(nodes.size(), -1);
  std::function<void(int)> visit = [&](int tensor) {
    int node = tensors[tensor].producer;
    if (node < 0 || place[node] != -1) return;
    place[node] = -2;
    for (int operand : nodes[node].operands) {
      if (operand >= 0) visit(operand);
    }
    place[node] = static_cast<int>(ordered.size());
    ordered.push_back(std::move(nodes[node]));
  };
  for (const RegionOutput& out : outputs) visit(out.tensor);
  for (int tensor : kept) visit(tensor);
  nodes = std::move(ordered);
  for (Tensor& t : tensors) t.readers.clear(), t.producer = -1;
  for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
    for (int r : nodes[n].results) tensors[r].producer = n;
    for (int o : nodes[n].operands) {
      if (o >= 0 && (tensors[o].readers.empty() || tensors[o].readers.back() != n)) tensors[o].readers.push_back(n);
    }
  }
}

FlatRegion read_region(const krn_graph& graph) { return Reader(graph).read(); }

FlatRegion read_region(std::span<const uint8_t> bytes) {
  krn_graph graph;
  int32_t line = krn_graph_open(bytes.data(), bytes.size(), &graph);
  if (line != 0) {
    throw kit::Error(KRN_STATUS_corrupt, "the region's bytes break a rule of the graph reader (line " + std::to_string(line) +
                                             "); the host should report the region file");
  }
  return read_region(graph);
}

}  // namespace keirin::codegen
