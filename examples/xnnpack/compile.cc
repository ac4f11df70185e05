// SPDX-License-Identifier: Apache-2.0
//
// From a region to a subgraph of XNNPACK and its runtime. First what crosses the border is found and numbered, then values and nodes are
// defined in the region's order. XNNPACK itself fuses a clamp into what is before it.
#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "device.h"

namespace xnnpack_plugin {
namespace {

using namespace keirin::kit;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint64_t kAlign = 64;

uint64_t padded(uint64_t bytes) { return (bytes + XNN_EXTRA_BYTES + kAlign - 1) / kAlign * kAlign; }

bool is_window(uint32_t op) { return op == kOp_conv || op == kOp_max_pool || op == kOp_avg_pool || op == kOp_adaptive_avg_pool; }
bool is_packed(uint32_t op, uint32_t operand) { return (op == kOp_conv || op == kOp_linear) && operand > 0; }

// The values of one weight while XNNPACK packs them.
class Weight {
 public:
  Weight(const Region& region, uint32_t value, Program& program) : set_(region.weights), id_(weight_of(region.graph, value)) {
    const Host& h = host();
    const krn_code code = h.consts && h.consts->open ? h.consts->open(h.host, set_, id_, &tensor_, nullptr) : KRN_STATUS_unsupported;
    opened_ = code == KRN_STATUS_ok;
    if (opened_) {
      data_ = static_cast<const float*>(tensor_.data);
    } else if (h.role == KRN_ROLE_COMPILE) {
      data_ = program.filters.emplace_back(static_cast<size_t>(elements_of(region.graph, value))).data();
    } else {
      throw Error(code, "the values of a weight are not at hand, and XNNPACK packs them while it compiles");
    }
  }
  ~Weight() {
    if (opened_ && host().consts->close) host().consts->close(host().host, set_, id_);
  }
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  const float* data() const { return data_; }
  bool is_there() const { return opened_; }

 private:
  const uint64_t set_;
  const uint32_t id_;
  krn_tensor tensor_{};
  bool opened_ = false;
  const float* data_ = nullptr;
};

class Compiler {
 public:
  Compiler(const Region& region, Program& program)
      : region_(region), graph_(region.graph), top_(*krn_graph_function(&graph_, 0)), program_(program) {}
  ~Compiler() {
    if (subgraph_) engine().xnn_delete_subgraph(subgraph_);
  }
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  void compile() {
    const std::vector<std::string> reasons = why_not(graph_);
    for (const std::string& why : reasons)
      if (!why.empty()) throw Error(KRN_STATUS_unsupported, why);
    program_.num_inputs = top_.num_inputs;
    program_.num_outputs = top_.num_outputs;
    program_.num_nodes = top_.num_nodes;
    find_inputs();
    find_outputs();
    check(engine().xnn_create_subgraph(static_cast<uint32_t>(program_.borders.size()), 0, &subgraph_), "making a subgraph");
    for (const auto& [key, id] : ids_) define(key.first, key.second, id, nullptr);
    for (uint32_t n = 0; n < top_.num_nodes; ++n) add_node(*krn_graph_node(&graph_, top_.first_node + n));
    program_.threads = host_threads();
    check(engine().xnn_create_runtime_v2(subgraph_, program_.threads.get(), 0, &program_.runtime), "making a runtime");
  }

 private:
  using Key = std::pair<uint32_t, Form>;  // a value, and how XNNPACK sees it

  // What is read of the operand: it, or what is broadcast to it.
  uint32_t read(const krn_gnode& node, uint32_t operand) const { return source_of(graph_, krn_graph_operand(&graph_, &node, operand)); }
  Form wanted(const krn_gnode& node, uint32_t operand) const {
    return is_window(node.op) || node.op == kOp_relayout ? Form::kImage : form_of(graph_, read(node, operand));
  }
  // A window's result is an image in XNNPACK, whatever it is outside.
  Form made_as(const krn_gnode& node) const { return is_window(node.op) ? Form::kImage : form_of(graph_, node.first_result); }

  uint64_t reserve(uint64_t bytes) {
    const uint64_t offset = program_.workspace_bytes;
    program_.workspace_bytes += padded(bytes);
    return offset;
  }

  void add_border(uint32_t value, Form form, uint32_t tensor, bool is_output, bool always_copy) {
    Border b;
    b.id = static_cast<uint32_t>(program_.borders.size());
    b.tensor = tensor;
    b.is_output = is_output;
    b.always_copy = always_copy;
    b.reorder = form != form_of(graph_, value);
    b.bytes = static_cast<uint64_t>(elements_of(graph_, value)) * sizeof(float);
    b.offset = reserve(b.bytes);
    if (b.reorder) std::copy_n(sizes_in_memory(graph_, value).begin(), 4, b.sizes.begin());
    ids_[{value, form}] = b.id;
    program_.borders.push_back(b);
  }

  void find_inputs() {
    for (uint32_t n = 0; n < top_.num_nodes; ++n) {
      const krn_gnode& node = *krn_graph_node(&graph_, top_.first_node + n);
      made_by_[node.first_result] = &node;
      for (uint32_t k = 0; k < node.num_operands; ++k) {
        if (is_packed(node.op, k)) continue;
        const uint32_t value = read(node, k);
        if (krn_graph_value(&graph_, value)->producer != KRN_NONE) continue;
        if (ids_.count({value, wanted(node, k)})) continue;
        add_border(value, wanted(node, k), krn_graph_value(&graph_, value)->result, false, false);
      }
    }
  }

  void find_outputs() {
    std::map<uint32_t, uint32_t> written;  // value to the output that holds it
    for (const bool updates : {false, true})
      for (uint32_t o = 0; o < top_.num_outputs; ++o) {
        const krn_goutput& output = *krn_graph_output(&graph_, top_.first_output + o);
        if ((output.alias_input != KRN_NONE) != updates) continue;
        const krn_gnode* const maker = made_by(graph_, output.value);
        if (maker && (maker->op == kOp_expand || maker->op == kOp_full || maker->op == kOp_relayout))
          throw Error(KRN_STATUS_unsupported, "a value leaves the region that is nowhere in memory");
        const auto made = made_by_.find(output.value);
        if (made != made_by_.end() && written.emplace(output.value, o).second) {
          add_border(output.value, made_as(*made->second), o, true, updates);
          continue;
        }
        const krn_gtype& type = *krn_graph_value_type(&graph_, output.value);
        if (type.dtype != kDType_f32 || form_of(graph_, output.value) == Form::kOther || repeats(graph_, output.value))
          throw Error(KRN_STATUS_unsupported, "an input that is an output, and no dense f32");
        Copy copy;
        copy.from_input = made == made_by_.end();
        copy.from = copy.from_input ? krn_graph_value(&graph_, output.value)->result : written.at(output.value);
        copy.to = o;
        copy.is_update = updates;
        copy.bytes = static_cast<uint64_t>(elements_of(graph_, output.value)) * sizeof(float);
        copy.offset = reserve(copy.bytes);
        program_.copies.push_back(copy);
      }
  }

  uint32_t define(uint32_t value, Form form, uint32_t external, const float* data) {
    const std::vector<int64_t> sizes = sizes_in_memory(graph_, value);
    std::vector<size_t> dims(sizes.begin(), sizes.end());
    if (form == Form::kImage) dims = {dims[0], dims[2], dims[3], dims[1]};
    if (dims.empty()) dims.push_back(1);
    const bool border = external != XNN_INVALID_VALUE_ID;
    uint32_t flags = 0;
    if (border) flags = program_.borders[external].is_output ? XNN_VALUE_FLAG_EXTERNAL_OUTPUT : XNN_VALUE_FLAG_EXTERNAL_INPUT;
    uint32_t id = 0;
    check(engine().xnn_define_tensor_value(subgraph_, xnn_datatype_fp32, dims.size(), dims.data(), data, external, flags, &id),
          "defining a value");
    return id;
  }

  uint32_t id_of(uint32_t value, Form form) {
    const auto at = ids_.find({value, form});
    if (at != ids_.end()) return at->second;
    return ids_[{value, form}] = define(value, form, XNN_INVALID_VALUE_ID, nullptr);
  }

  // A weight as XNNPACK takes it: filters as O, H, W, I.
  uint32_t weight(const krn_gnode& node, uint32_t operand) {
    if (operand >= node.num_operands) return XNN_INVALID_VALUE_ID;
    const uint32_t value = krn_graph_operand(&graph_, &node, operand);
    if (value == KRN_NONE) return XNN_INVALID_VALUE_ID;
    weights_.push_back(std::make_unique<Weight>(region_, value, program_));
    const float* data = weights_.back()->data();
    const bool filter = node.op == kOp_conv && operand == 1;
    if (filter && form_of(graph_, value) != Form::kImage && weights_.back()->is_there()) data = as_image(value, data);
    return define(value, filter ? Form::kImage : Form::kRows, XNN_INVALID_VALUE_ID, data);
  }

  const float* as_image(uint32_t value, const float* from) {
    const int64_t* const s = krn_graph_sizes(&graph_, krn_graph_value_type(&graph_, value));
    std::vector<float>& to = program_.filters.emplace_back(static_cast<size_t>(elements_of(graph_, value)));
    for (int64_t o = 0; o < s[0]; ++o)
      for (int64_t i = 0; i < s[1]; ++i)
        for (int64_t p = 0; p < s[2] * s[3]; ++p)
          to[static_cast<size_t>((o * s[2] * s[3] + p) * s[1] + i)] = from[(o * s[1] + i) * s[2] * s[3] + p];
    return to.data();
  }

  uint32_t number(float value) {
    const std::vector<float>& held = program_.filters.emplace_back(XNN_EXTRA_BYTES / sizeof(float) + 1, value);
    const size_t one = 1;
    uint32_t id = 0;
    check(engine().xnn_define_tensor_value(subgraph_, xnn_datatype_fp32, 1, &one, held.data(), XNN_INVALID_VALUE_ID, 0, &id),
          "defining a number");
    return id;
  }

  // A value between two nodes of XNNPACK that the region knows as one.
  uint32_t between(const krn_gnode& node) { return define(node.first_result, made_as(node), XNN_INVALID_VALUE_ID, nullptr); }

  // x clamp(x + 3, 0, 6) / 6, or the same without x. XNNPACK's own hardswish is off by more than eager's.
  void add_hard(const krn_gnode& node, uint32_t x, uint32_t out) {
    const Engine& e = engine();
    const uint32_t clamped = between(node);
    check(e.xnn_define_add2(subgraph_, 0, 6, x, number(3), clamped, 0), "defining a node");
    uint32_t whole = clamped;
    if (node.op == kOp_hardswish) {
      whole = between(node);
      check(e.xnn_define_multiply2(subgraph_, -kInfinity, kInfinity, x, clamped, whole, 0), "defining a node");
    }
    check(e.xnn_define_multiply2(subgraph_, -kInfinity, kInfinity, whole, number(1.0f / 6), out, 0), "defining a node");
  }

  void add_silu(const krn_gnode& node, uint32_t x, uint32_t out) {
    const uint32_t sigmoid = between(node);
    check(engine().xnn_define_sigmoid(subgraph_, x, sigmoid, 0), "defining a node");
    check(engine().xnn_define_multiply2(subgraph_, -kInfinity, kInfinity, x, sigmoid, out, 0), "defining a node");
  }

  void add_node(const krn_gnode& node) {
    if (node.op == kOp_expand || node.op == kOp_full) return;  // who reads them reads what is broadcast
    if (node.op == kOp_relayout) {                              // the border has done it
      ids_[{node.first_result, Form::kImage}] = ids_.at({krn_graph_operand(&graph_, &node, 0), Form::kImage});
      return;
    }
    const Engine& e = engine();
    const auto in = [&](uint32_t k) {
      const uint32_t value = read(node, k);
      if (!is_number(graph_, value)) return id_of(value, wanted(node, k));
      const krn_gattr* const attr = krn_graph_find_attr(&graph_, made_by(graph_, value), kAttr_value_d);
      if (!attr) throw Error(KRN_STATUS_invalid_input, "a number of the region has no value");
      return number(static_cast<float>(std::bit_cast<double>(attr->bits)));
    };
    const uint32_t x = in(0), out = id_of(node.first_result, made_as(node));
    const auto done = [](xnn_status status) { check(status, "defining a node"); };
    switch (node.op) {
      case kOp_conv: return add_conv(node, x, out);
      case kOp_linear: {
        const uint32_t w = weight(node, 1), bias = weight(node, 2);
        return done(e.xnn_define_fully_connected(subgraph_, -kInfinity, kInfinity, x, w, bias, out, 0));
      }
      case kOp_max_pool:
      case kOp_avg_pool: return add_pool(node, x, out);
      case kOp_adaptive_avg_pool: return done(e.xnn_define_global_average_pooling_2d(subgraph_, -kInfinity, kInfinity, x, out, 0));
      case kOp_softmax: return done(e.xnn_define_softmax(subgraph_, x, out, 0));
      case kOp_reshape: return add_reshape(node, x, out);
      case kOp_add: return done(e.xnn_define_add2(subgraph_, -kInfinity, kInfinity, x, in(1), out, 0));
      case kOp_sub: return done(e.xnn_define_subtract(subgraph_, -kInfinity, kInfinity, x, in(1), out, 0));
      case kOp_mul: return done(e.xnn_define_multiply2(subgraph_, -kInfinity, kInfinity, x, in(1), out, 0));
      case kOp_div: return done(e.xnn_define_divide(subgraph_, -kInfinity, kInfinity, x, in(1), out, 0));
      case kOp_maximum: return done(e.xnn_define_maximum2(subgraph_, x, in(1), out, 0));
      case kOp_minimum: return done(e.xnn_define_minimum2(subgraph_, x, in(1), out, 0));
      case kOp_relu: return done(e.xnn_define_clamp(subgraph_, 0, kInfinity, x, out, 0));
      case kOp_abs: return done(e.xnn_define_abs(subgraph_, x, out, 0));
      case kOp_neg: return done(e.xnn_define_negate(subgraph_, x, out, 0));
      case kOp_sigmoid: return done(e.xnn_define_sigmoid(subgraph_, x, out, 0));
      case kOp_sqrt: return done(e.xnn_define_square_root(subgraph_, x, out, 0));
      case kOp_silu: return add_silu(node, x, out);
      case kOp_hardsigmoid:
      case kOp_hardswish: return add_hard(node, x, out);
      case kOp_floor: return done(e.xnn_define_floor(subgraph_, x, out, 0));
      case kOp_ceil: return done(e.xnn_define_ceiling(subgraph_, x, out, 0));
      case kOp_round: return done(e.xnn_define_bankers_rounding(subgraph_, x, out, 0));
      default: throw Error(KRN_STATUS_internal, "a node that is claimed and not compiled");
    }
  }

  struct Window {
    uint32_t height = 0, width = 0;
  };
  Window window(const krn_gnode& node, uint32_t key) const {
    const int64_t* const words = list_of(graph_, node, key);
    return {static_cast<uint32_t>(words[0]), static_cast<uint32_t>(words[1])};
  }

  void add_conv(const krn_gnode& node, uint32_t x, uint32_t out) {
    const int64_t* const filter = krn_graph_sizes(&graph_, krn_graph_value_type(&graph_, krn_graph_operand(&graph_, &node, 1)));
    const Window pad = window(node, kAttr_padding), stride = window(node, kAttr_stride), dilation = window(node, kAttr_dilation);
    const auto groups = static_cast<uint32_t>(number_of(graph_, node, kAttr_groups));
    const uint32_t w = weight(node, 1), bias = weight(node, 2);
    check(engine().xnn_define_convolution_2d(subgraph_, pad.height, pad.width, pad.height, pad.width, static_cast<uint32_t>(filter[2]),
                                             static_cast<uint32_t>(filter[3]), stride.height, stride.width, dilation.height, dilation.width,
                                             groups, static_cast<size_t>(filter[1]), static_cast<size_t>(filter[0]) / groups, -kInfinity,
                                             kInfinity, x, w, bias, out, 0),
          "defining a convolution");
  }

  void add_pool(const krn_gnode& node, uint32_t x, uint32_t out) {
    const Window pad = window(node, kAttr_padding), kernel = window(node, kAttr_kernel), stride = window(node, kAttr_stride);
    if (node.op == kOp_avg_pool)
      return check(engine().xnn_define_average_pooling_2d(subgraph_, pad.height, pad.width, pad.height, pad.width, kernel.height,
                                                          kernel.width, stride.height, stride.width, -kInfinity, kInfinity, x, out, 0),
                   "defining a pooling");
    const Window dilation = window(node, kAttr_dilation);
    check(engine().xnn_define_max_pooling_2d(subgraph_, pad.height, pad.width, pad.height, pad.width, kernel.height, kernel.width,
                                             stride.height, stride.width, dilation.height, dilation.width, -kInfinity, kInfinity, x, out,
                                             0),
          "defining a pooling");
  }

  void add_reshape(const krn_gnode& node, uint32_t x, uint32_t out) {
    const krn_gtype& type = *krn_graph_value_type(&graph_, node.first_result);
    const int64_t* const s = krn_graph_sizes(&graph_, &type);
    std::vector<size_t> dims(s, s + type.rank);
    if (made_as(node) == Form::kImage) dims = {dims[0], dims[2], dims[3], dims[1]};
    if (dims.empty()) dims.push_back(1);
    check(engine().xnn_define_static_reshape(subgraph_, dims.size(), dims.data(), x, out, 0), "defining a reshape");
  }

  const Region& region_;
  const krn_graph& graph_;
  const krn_gfunction& top_;
  Program& program_;
  xnn_subgraph_t subgraph_ = nullptr;
  std::map<Key, uint32_t> ids_;
  std::map<uint32_t, const krn_gnode*> made_by_;  // by value
  std::vector<std::unique_ptr<Weight>> weights_;  // open until the runtime has packed them
};

}  // namespace

Program::~Program() {
  if (runtime) engine().xnn_delete_runtime(runtime);
}

std::unique_ptr<Program> compile(const Region& region) {
  auto program = std::make_unique<Program>();
  program->region.assign(reinterpret_cast<const char*>(region.hash), 32);
  Compiler(region, *program).compile();
  return program;
}

}  // namespace xnnpack_plugin
