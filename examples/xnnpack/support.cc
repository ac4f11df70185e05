// SPDX-License-Identifier: Apache-2.0
//
// Which nodes the plugin claims, and why not the others. And the device: its facts, and who answers the host's questions.
#include <algorithm>
#include <set>

#include "device.h"

namespace xnnpack_plugin {
namespace {

using keirin::kit::Error;

class Device final : public keirin::kit::Device {
 public:
  void describe(krn_device_desc& out) const override {
    out.name = keirin::kit::str("XNNPACK on the host CPU");
    out.arch = keirin::kit::str("host");
    out.fingerprint = keirin::kit::str(XNNPACK_SONAME);
    out.prior_score = 10;
    out.alignment = 64;
    out.bytes_per_s = 10e9;
    out.launch_ns = 1000;
  }

  void claim(const keirin::kit::Region& region, const krn_policy&, keirin::kit::ClaimSink& sink) override {
    const std::vector<std::string> reasons = why_not(region.graph);
    std::vector<uint32_t> nodes;
    for (uint32_t i = 0; i < reasons.size(); ++i) {
      const uint32_t node = krn_graph_function(&region.graph, 0)->first_node + i;
      if (reasons[i].empty()) nodes.push_back(node);
      else sink.refuse(node, reasons[i]);
    }
    if (!nodes.empty()) sink.claim(nodes, static_cast<uint32_t>(nodes.size()), 0, 0);
  }

  std::unique_ptr<keirin::kit::Executable> compile(const keirin::kit::Region& region, const krn_policy&,
                                                   const krn_options& options) override {
    if (options.candidate > 0) throw Error(KRN_STATUS_unsupported, "xnnpack has one way only");
    stop_if_cancelled(options);
    return make_executable(xnnpack_plugin::compile(region));
  }

  uint32_t check(std::string_view token) const override { return token == artifact_token() ? KRN_VERDICT_OPTIMAL : KRN_VERDICT_REJECT; }

  std::unique_ptr<keirin::kit::Executable> load(const keirin::kit::Region& region, std::string_view token, std::string_view body) override {
    if (token != artifact_token()) throw Error(KRN_STATUS_version, "the artifact is of another form, or of another XNNPACK");
    check_artifact(body, {reinterpret_cast<const char*>(region.hash), 32});
    return make_executable(xnnpack_plugin::compile(region));
  }

 private:
  static void stop_if_cancelled(const krn_options& options) {
    const krn_host_core* const core = keirin::kit::host().core;
    if (core && core->cancelled && options.cancel_token && core->cancelled(keirin::kit::host().host, options.cancel_token))
      throw Error(KRN_STATUS_cancelled, "stopped on request");
  }
};

bool has_order(const krn_graph& graph, uint32_t value, std::initializer_list<size_t> axes_from_the_last) {
  const std::vector<int64_t> sizes = sizes_in_memory(graph, value);
  const int64_t* strides = krn_graph_strides(&graph, krn_graph_value_type(&graph, value));
  int64_t step = 1;
  for (size_t axis : axes_from_the_last) {
    if (sizes[axis] != 1 && strides[axis] != step) return false;
    step *= sizes[axis];
  }
  return true;
}

bool is_broadcast(const krn_gnode& node) { return node.op == keirin::kit::kOp_expand || node.op == keirin::kit::kOp_full; }

bool is_nowhere(const krn_gnode& node) { return is_broadcast(node) || node.op == keirin::kit::kOp_relayout; }

bool takes_broadcast(uint32_t op) {
  using namespace keirin::kit;
  return op == kOp_add || op == kOp_sub || op == kOp_mul || op == kOp_div || op == kOp_maximum || op == kOp_minimum || op == kOp_expand;
}

class Judge {
 public:
  // `refused`: nodes that cannot run because of nodes that follow.
  Judge(const krn_graph& graph, const std::set<uint32_t>& refused) : graph_(graph), refused_(refused) {}

  // After it said that a node can run, the node counts as claimed.
  std::string judge(const krn_gnode& node) {
    std::string why = refused_.count(node.first_result) ? "not all that read it are XNNPACK's" : judge_node(node);
    if (why.empty())
      for (uint32_t r = 0; r < node.num_results; ++r) claimed_.insert(node.first_result + r);
    return why;
  }

 private:
  std::string judge_node(const krn_gnode& node) {
    using namespace keirin::kit;
    if (node.num_results != 1) return "one result only";
    if (is_broadcast(node)) return judge_broadcast(node);
    if (node.op == kOp_relayout) return judge_relayout(node);
    for (uint32_t k = 0; k < node.num_operands; ++k)
      if (krn_graph_operand(&graph_, &node, k) != KRN_NONE)
        if (std::string why = judge_operand(node, krn_graph_operand(&graph_, &node, k)); !why.empty()) return why;
    if (std::string why = judge_value(node.first_result); !why.empty()) return why;
    switch (node.op) {
      case kOp_conv: return judge_conv(node);
      case kOp_linear: return judge_linear(node);
      case kOp_max_pool:
      case kOp_avg_pool: return judge_pool(node);
      case kOp_adaptive_avg_pool: return judge_mean(node);
      case kOp_softmax: return judge_softmax(node);
      case kOp_reshape: return judge_reshape(node);
      case kOp_add: case kOp_sub: case kOp_mul: case kOp_div: case kOp_maximum: case kOp_minimum:
      case kOp_relu: case kOp_abs: case kOp_neg: case kOp_sigmoid: case kOp_sqrt: case kOp_silu: case kOp_hardsigmoid: case kOp_hardswish:
      case kOp_floor: case kOp_ceil: case kOp_round: return judge_elements(node);
      default: return "not an operator that XNNPACK has";
    }
  }

  std::string judge_value(uint32_t value) const {
    const krn_gtype& type = *krn_graph_value_type(&graph_, value);
    if (type.dtype != keirin::kit::kDType_f32) return "f32 only";
    if (type.rank > XNN_MAX_TENSOR_DIMS) return "at most six axes";
    if (elements_of(graph_, value) == 0) return "no empty tensors";
    if (form_of(graph_, value) == Form::kOther) return "only values that lie densely, row by row or channels-last";
    if (scattered_.count(value)) return "the window before it writes rows, which are made at the end of a region";
    return "";
  }

  // XNNPACK has no such node: whoever reads it reads what is broadcast.
  std::string judge_broadcast(const krn_gnode& node) {
    const krn_gtype& type = *krn_graph_value_type(&graph_, node.first_result);
    if (type.dtype != keirin::kit::kDType_f32) return "f32 only";
    if (type.rank > XNN_MAX_TENSOR_DIMS) return "at most six axes";
    if (elements_of(graph_, node.first_result) == 0) return "no empty tensors";
    if (node.op == keirin::kit::kOp_expand) {
      const uint32_t x = krn_graph_operand(&graph_, &node, 0), source = source_of(graph_, x);
      if (made_by(graph_, x) && is_broadcast(*made_by(graph_, x)) && !claimed_.count(x)) return "of a broadcast value that is not claimed";
      if (!is_number(graph_, source))
        if (std::string why = judge_value(source); !why.empty()) return why;
    } else if (elements_of(graph_, node.first_result) != 1) {
      return "a constant of one element only";
    }
    return "";
  }

  // Where an image enters the region its order is changed anyway.
  std::string judge_relayout(const krn_gnode& node) const {
    const uint32_t x = krn_graph_operand(&graph_, &node, 0);
    if (std::string why = judge_value(x); !why.empty()) return why;
    if (made_by(graph_, x)) return "no change of order inside of a region";
    if (form_of(graph_, x) != Form::kRows || form_of(graph_, node.first_result) != Form::kImage) return "from rows to channels-last only";
    return "";
  }

  std::string judge_operand(const krn_gnode& node, uint32_t value) const {
    const uint32_t source = source_of(graph_, value);
    if (source == value && !is_number(graph_, value) && !repeats(graph_, value)) return judge_value(value);
    if (!takes_broadcast(node.op)) return "no broadcast values";
    if (source != value && !claimed_.count(value)) return "of a broadcast value that is not claimed";
    return is_number(graph_, source) ? "" : judge_value(source);
  }

  // XNNPACK's windows want images. What lies in rows is reordered where it enters or leaves a region, so it may be no value inside of one.
  std::string judge_border(const krn_gnode& node) {
    const uint32_t x = krn_graph_operand(&graph_, &node, 0);
    if (krn_graph_value_type(&graph_, x)->rank != 4 || krn_graph_value_type(&graph_, node.first_result)->rank != 4)
      return "windows over two axes only, with a batch";
    if (form_of(graph_, x) != Form::kImage && claimed_.count(x)) return "its input lies in rows inside of a region";
    return "";
  }

  std::string note_result(const krn_gnode& node) {
    if (form_of(graph_, node.first_result) != Form::kImage) scattered_.insert(node.first_result);
    return "";
  }

  std::string judge_conv(const krn_gnode& node) {
    if (std::string why = judge_border(node); !why.empty()) return why;
    if (number_of(graph_, node, keirin::kit::kAttr_transposed)) return "no transposed convolutions";
    for (uint32_t k = 1; k < node.num_operands; ++k) {
      const uint32_t value = krn_graph_operand(&graph_, &node, k);
      if (value != KRN_NONE && weight_of(graph_, value) == KRN_NONE) return "XNNPACK packs filters once: they have to be constants";
    }
    return note_result(node);
  }

  std::string judge_linear(const krn_gnode& node) const {
    for (uint32_t k = 1; k < node.num_operands; ++k) {
      const uint32_t value = krn_graph_operand(&graph_, &node, k);
      if (value != KRN_NONE && weight_of(graph_, value) == KRN_NONE) return "XNNPACK packs weights once: they have to be constants";
    }
    const uint32_t x = krn_graph_operand(&graph_, &node, 0), w = krn_graph_operand(&graph_, &node, 1);
    if (form_of(graph_, x) != Form::kRows || form_of(graph_, node.first_result) != Form::kRows || !is_rows(graph_, w))
      return "linear on rows only";
    return "";
  }

  std::string judge_pool(const krn_gnode& node) {
    using namespace keirin::kit;
    if (std::string why = judge_border(node); !why.empty()) return why;
    const int64_t* const kernel = list_of(graph_, node, kAttr_kernel);
    const int64_t* const stride = list_of(graph_, node, kAttr_stride);
    const int64_t* const padding = list_of(graph_, node, kAttr_padding);
    const int64_t* const dilation = node.op == kOp_max_pool ? list_of(graph_, node, kAttr_dilation) : nullptr;
    if (kernel[0] * kernel[1] == 1) return "XNNPACK has no pooling over one element";
    if (node.op == kOp_avg_pool) {
      if (number_of(graph_, node, kAttr_divisor)) return "no divisor of the caller's";
      if (number_of(graph_, node, kAttr_count_include_pad) && padding[0] + padding[1] > 0) return "XNNPACK does not count padding";
    }
    const krn_gtype& in = *krn_graph_value_type(&graph_, krn_graph_operand(&graph_, &node, 0));
    const krn_gtype& out = *krn_graph_value_type(&graph_, node.first_result);
    for (int d = 0; d < 2; ++d) {
      const int64_t reach = (kernel[d] - 1) * (dilation ? dilation[d] : 1) + 1;
      const int64_t room = krn_graph_sizes(&graph_, &in)[2 + d] + 2 * padding[d] - reach;
      if (room < 0 || room / stride[d] + 1 != krn_graph_sizes(&graph_, &out)[2 + d]) return "only windows that lie within the padding";
      if (stride[d] > kernel[d]) return "no strides beyond the window";
    }
    return note_result(node);
  }

  std::string judge_mean(const krn_gnode& node) {
    if (std::string why = judge_border(node); !why.empty()) return why;
    const int64_t* const sizes = list_of(graph_, node, keirin::kit::kAttr_sizes);
    if (sizes[0] != 1 || sizes[1] != 1) return "adaptive pooling to one element only";
    return note_result(node);
  }

  std::string judge_softmax(const krn_gnode& node) const {
    const uint32_t x = krn_graph_operand(&graph_, &node, 0);
    const int rank = krn_graph_value_type(&graph_, x)->rank;
    const int64_t last = form_of(graph_, x) == Form::kImage ? 1 : rank - 1;
    if (form_of(graph_, x) != form_of(graph_, node.first_result)) return "no change of order";
    if (rank == 0 || number_of(graph_, node, keirin::kit::kAttr_dim) != last) return "softmax over the innermost axis only";
    return "";
  }

  std::string judge_reshape(const krn_gnode& node) const {
    if (!is_rows(graph_, krn_graph_operand(&graph_, &node, 0)) || !is_rows(graph_, node.first_result)) return "reshape of rows only";
    return "";
  }

  std::string judge_elements(const krn_gnode& node) const {
    const krn_gtype& type = *krn_graph_value_type(&graph_, node.first_result);
    std::vector<int64_t> largest(static_cast<size_t>(type.rank), 1);
    for (uint32_t k = 0; k < node.num_operands; ++k) {
      const uint32_t source = source_of(graph_, krn_graph_operand(&graph_, &node, k));
      if (is_number(graph_, source)) continue;
      if (form_of(graph_, source) != form_of(graph_, node.first_result)) return "no change of order";
      const std::vector<int64_t> sizes = sizes_in_memory(graph_, source);
      for (size_t d = 0; d < largest.size(); ++d) largest[d] = std::max(largest[d], sizes[d]);
    }
    if (!std::equal(largest.begin(), largest.end(), krn_graph_sizes(&graph_, &type))) return "no operand is as large as the result";
    return "";
  }

  const krn_graph& graph_;
  const std::set<uint32_t>& refused_;
  std::set<uint32_t> claimed_, scattered_;  // values
};

}  // namespace

std::vector<int64_t> sizes_in_memory(const krn_graph& graph, uint32_t value) {
  const krn_gtype& type = *krn_graph_value_type(&graph, value);
  const int64_t* const sizes = krn_graph_sizes(&graph, &type);
  std::vector<int64_t> out(sizes, sizes + type.rank);
  for (size_t d = 0; d < out.size(); ++d)
    if (krn_graph_value(&graph, value)->producer == KRN_NONE && out[d] > 1 && krn_graph_strides(&graph, &type)[d] == 0) out[d] = 1;
  return out;
}

bool repeats(const krn_graph& graph, uint32_t value) {
  const std::vector<int64_t> sizes = sizes_in_memory(graph, value);
  return !std::equal(sizes.begin(), sizes.end(), krn_graph_sizes(&graph, krn_graph_value_type(&graph, value)));
}

int64_t elements_of(const krn_graph& graph, uint32_t value) {
  int64_t elements = 1;
  for (const int64_t size : sizes_in_memory(graph, value)) elements *= size;
  return elements;
}

bool is_rows(const krn_graph& graph, uint32_t value) {
  const std::vector<int64_t> sizes = sizes_in_memory(graph, value);
  const int64_t* const strides = krn_graph_strides(&graph, krn_graph_value_type(&graph, value));
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != step) return false;
    step *= sizes[d];
  }
  return true;
}

Form form_of(const krn_graph& graph, uint32_t value) {
  if (krn_graph_value_type(&graph, value)->rank == 4 && has_order(graph, value, {1, 3, 2, 0})) return Form::kImage;
  return is_rows(graph, value) ? Form::kRows : Form::kOther;
}

const int64_t* list_of(const krn_graph& graph, const krn_gnode& node, uint32_t key) {
  const krn_gattr* const attr = krn_graph_find_attr(&graph, &node, key);
  if (!attr || attr->count < 2) throw Error(KRN_STATUS_invalid_input, "a window of the region lacks a pair of numbers");
  return krn_graph_words(&graph, attr);
}

int64_t number_of(const krn_graph& graph, const krn_gnode& node, uint32_t key) {
  const krn_gattr* const attr = krn_graph_find_attr(&graph, &node, key);
  if (!attr) throw Error(KRN_STATUS_invalid_input, "a node of the region lacks an attribute");
  return static_cast<int64_t>(attr->bits);
}

uint32_t weight_of(const krn_graph& graph, uint32_t value) {
  const krn_gvalue& v = *krn_graph_value(&graph, value);
  if (v.producer != KRN_NONE) return KRN_NONE;
  const krn_ginput& input = *krn_graph_input(&graph, krn_graph_function(&graph, 0)->first_input + v.result);
  return input.flags & KRN_INPUT_WEIGHT ? input.weight : KRN_NONE;
}

const krn_gnode* made_by(const krn_graph& graph, uint32_t value) {
  const uint32_t producer = krn_graph_value(&graph, value)->producer;
  return producer == KRN_NONE ? nullptr : krn_graph_node(&graph, producer);
}

uint32_t source_of(const krn_graph& graph, uint32_t value) {
  for (const krn_gnode* node = made_by(graph, value); node && node->op == keirin::kit::kOp_expand; node = made_by(graph, value))
    value = krn_graph_operand(&graph, node, 0);
  return value;
}

bool is_number(const krn_graph& graph, uint32_t value) {
  const krn_gnode* const node = made_by(graph, value);
  return node && node->op == keirin::kit::kOp_full;
}

std::vector<std::string> why_not(const krn_graph& graph) {
  const krn_gfunction& top = *krn_graph_function(&graph, 0);
  // A broadcast value, or an input in another order, is nowhere in memory: all who read it have to be XNNPACK's as well, and with each that
  // is refused the next may be.
  std::set<uint32_t> refused;
  for (;;) {
    Judge judge(graph, refused);
    std::vector<std::string> reasons;
    std::set<uint32_t> needed;
    for (uint32_t o = 0; o < top.num_outputs; ++o) needed.insert(krn_graph_output(&graph, top.first_output + o)->value);
    for (uint32_t n = top.first_node; n < top.first_node + top.num_nodes; ++n) {
      const krn_gnode& node = *krn_graph_node(&graph, n);
      reasons.push_back(judge.judge(node));
      if (reasons.back().empty()) continue;
      for (uint32_t k = 0; k < node.num_operands; ++k) needed.insert(krn_graph_operand(&graph, &node, k));
    }
    bool again = false;
    for (uint32_t n = 0; n < top.num_nodes; ++n) {
      const krn_gnode& node = *krn_graph_node(&graph, top.first_node + n);
      if (reasons[n].empty() && is_nowhere(node) && needed.count(node.first_result))
        again = refused.insert(node.first_result).second || again;
    }
    if (!again) return reasons;
  }
}

std::unique_ptr<keirin::kit::Device> make_device() { return std::make_unique<Device>(); }

}  // namespace xnnpack_plugin
