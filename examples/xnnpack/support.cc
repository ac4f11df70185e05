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
  explicit Device(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}

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
    return make_executable(xnnpack_plugin::compile(region, pool_->get()));
  }

  uint32_t check(std::string_view token) const override { return token == artifact_token() ? KRN_VERDICT_OPTIMAL : KRN_VERDICT_REJECT; }

  std::unique_ptr<keirin::kit::Executable> load(const keirin::kit::Region& region, std::string_view token, std::string_view body) override {
    if (token != artifact_token()) throw Error(KRN_STATUS_version, "the artifact is of another form, or of another XNNPACK");
    check_artifact(body, {reinterpret_cast<const char*>(region.hash), 32});
    return make_executable(xnnpack_plugin::compile(region, pool_->get()));
  }

 private:
  static void stop_if_cancelled(const krn_options& options) {
    const krn_host_core* const core = keirin::kit::host().core;
    if (core && core->cancelled && options.cancel_token && core->cancelled(keirin::kit::host().host, options.cancel_token))
      throw Error(KRN_STATUS_cancelled, "stopped on request");
  }

  const std::shared_ptr<Pool> pool_;
};

bool has_order(const krn_graph& graph, uint32_t value, std::initializer_list<int> axes_from_the_last) {
  const krn_gtype& type = *krn_graph_value_type(&graph, value);
  const int64_t* sizes = krn_graph_sizes(&graph, &type);
  const int64_t* strides = krn_graph_strides(&graph, &type);
  int64_t step = 1;
  for (int axis : axes_from_the_last) {
    if (sizes[axis] != 1 && strides[axis] != step) return false;
    step *= sizes[axis];
  }
  return true;
}

class Judge {
 public:
  explicit Judge(const krn_graph& graph) : graph_(graph) {}

  // After it said that a node can run, the node counts as claimed.
  std::string judge(const krn_gnode& node) {
    std::string why = judge_node(node);
    if (why.empty())
      for (uint32_t r = 0; r < node.num_results; ++r) claimed_.insert(node.first_result + r);
    return why;
  }

 private:
  std::string judge_node(const krn_gnode& node) {
    using namespace keirin::kit;
    if (node.num_results != 1) return "one result only";
    for (uint32_t k = 0; k < node.num_operands; ++k)
      if (krn_graph_operand(&graph_, &node, k) != KRN_NONE)
        if (std::string why = judge_value(krn_graph_operand(&graph_, &node, k)); !why.empty()) return why;
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
      case kOp_relu: case kOp_abs: case kOp_neg: case kOp_sigmoid: case kOp_sqrt:
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
    for (uint32_t k = 0; k < node.num_operands; ++k)
      if (form_of(graph_, krn_graph_operand(&graph_, &node, k)) != form_of(graph_, node.first_result)) return "no change of order";
    return "";
  }

  const krn_graph& graph_;
  std::set<uint32_t> claimed_, scattered_;  // values
};

}  // namespace

int64_t elements_of(const krn_graph& graph, uint32_t value) {
  const krn_gtype& type = *krn_graph_value_type(&graph, value);
  int64_t elements = 1;
  for (int d = 0; d < type.rank; ++d) elements *= krn_graph_sizes(&graph, &type)[d];
  return elements;
}

bool is_rows(const krn_graph& graph, uint32_t value) {
  const krn_gtype& type = *krn_graph_value_type(&graph, value);
  int64_t step = 1;
  for (int d = type.rank; d-- > 0;) {
    if (krn_graph_sizes(&graph, &type)[d] != 1 && krn_graph_strides(&graph, &type)[d] != step) return false;
    step *= krn_graph_sizes(&graph, &type)[d];
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

std::vector<std::string> why_not(const krn_graph& graph) {
  const krn_gfunction& top = *krn_graph_function(&graph, 0);
  Judge judge(graph);
  std::vector<std::string> reasons;
  for (uint32_t n = top.first_node; n < top.first_node + top.num_nodes; ++n) reasons.push_back(judge.judge(*krn_graph_node(&graph, n)));
  return reasons;
}

std::unique_ptr<keirin::kit::Device> make_device(std::shared_ptr<Pool> pool) { return std::make_unique<Device>(std::move(pool)); }

}  // namespace xnnpack_plugin
