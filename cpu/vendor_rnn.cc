// SPDX-License-Identifier: Apache-2.0
#include "cpu/vendor_rnn.h"

#include <algorithm>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>

#include "cpu/packed_weights.h"
#include "cpu/vendor_step.h"
#include "plugins/codegen/region/rnn.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::cpu {
namespace {

using enum kit::Op;
using enum kit::DType;
using codegen::AnchorDesc;
using codegen::RnnShape;
using codegen::TensorDesc;
using dnnl::memory;
constexpr auto kFloat = memory::data_type::f32;

// The gate of LibTorch's that stands at `gate` of oneDNN's: i f g o are the same; r z n is z r n there.
int64_t torch_gate(const RnnShape& s, int64_t gate) { return s.lstm || gate == 2 ? gate : 1 - gate; }

// A sequence in the order of its strides.
memory::desc sequence_desc(const TensorDesc& t, bool batch_first) {
  const size_t time = batch_first ? 1 : 0, batch = 1 - time;
  return memory::desc({t.sizes[time], t.sizes[batch], t.sizes[2]}, kFloat, memory::dims{t.strides[time], t.strides[batch], t.strides[2]});
}

// Buffers of one run, as the layers' steps number them.
enum LocalBuffer : uint32_t { kX, kH0, kC0, kY, kHn, kCn, kBetween0, kBetween1, kScratch, kNumLocal };

TensorDesc local(LocalBuffer buffer, int64_t offset = 0) {
  TensorDesc t;
  t.buffer = buffer;
  t.offset = offset;
  t.dtype = kDType_f32;
  return t;
}

class RnnStep : public codegen::Step {
 public:
  RnnStep(const AnchorDesc& a, const RnnShape& s) {
    const size_t states = s.lstm ? 2 : 1;
    for (size_t i = 0; i <= states; ++i) operands_[i] = a.operands[i], results_[i] = a.results[i];
    between_bytes_ = s.layers > 1 ? (s.time * s.batch * s.directions * s.hidden * 4 + 63) / 64 * 64 : 0;
  }
  void add_layer(std::unique_ptr<VendorStep> step) {
    scratch_bytes_ = std::max(scratch_bytes_, step->workspace_bytes());
    step->set_workspace(kScratch);
    layers_.push_back(std::move(step));
  }
  krn_code run(const codegen::RunContext& context) const override {
    void* table[kNumLocal] = {};
    auto at = [&](const TensorDesc& t) { return t.present() ? static_cast<char*>(context.buffers[t.buffer]) + 4 * t.offset : nullptr; };
    table[kX] = at(operands_[0]), table[kH0] = at(operands_[1]), table[kC0] = at(operands_[2]);
    table[kY] = at(results_[0]), table[kHn] = at(results_[1]), table[kCn] = at(results_[2]);
    if (workspace_ != TensorDesc::KRN_NONE_BUFFER) {
      char* workspace = static_cast<char*>(context.buffers[workspace_]);
      table[kBetween0] = workspace;
      table[kBetween1] = workspace + between_bytes_;
      table[kScratch] = workspace + 2 * between_bytes_;
    }
    codegen::RunContext inner = context;
    inner.buffers = table;
    for (const auto& layer : layers_) {
      if (krn_code code = layer->run(inner); code != KRN_STATUS_ok) return code;
    }
    return KRN_STATUS_ok;
  }
  std::string describe() const override {
    return layers_.front()->describe() + " x " + std::to_string(layers_.size()) + " layers";
  }
  int64_t workspace_bytes() const override { return 2 * between_bytes_ + scratch_bytes_; }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }
  int64_t constant_bytes() const override {
    int64_t bytes = 0;
    for (const auto& layer : layers_) bytes += layer->constant_bytes();
    return bytes;
  }

 private:
  TensorDesc operands_[3], results_[3];
  std::vector<std::unique_ptr<VendorStep>> layers_;
  int64_t between_bytes_ = 0, scratch_bytes_ = 0;
  uint32_t workspace_ = TensorDesc::KRN_NONE_BUFFER;
};

// The descriptions of one layer.
struct Layer {
  memory::desc x, state, y, bias, plain_input, plain_hidden, any_input, any_hidden;

  Layer(const AnchorDesc& a, const RnnShape& s, int64_t number) {
    const int64_t in = s.layer_input(number), out = s.directions * s.hidden;
    auto between = [&](int64_t channels) { return memory::desc({s.time, s.batch, channels}, kFloat, memory::format_tag::tnc); };
    x = number == 0 ? sequence_desc(a.operands[0], s.batch_first) : between(in);
    y = number == s.layers - 1 ? sequence_desc(a.results[0], s.batch_first) : between(out);
    state = memory::desc({1, s.directions, s.batch, s.hidden}, kFloat, memory::format_tag::ldnc);
    bias = memory::desc({1, s.directions, 4, s.hidden}, kFloat, memory::format_tag::ldgo);
    const memory::dims input{1, s.directions, in, s.gates, s.hidden}, hidden{1, s.directions, s.hidden, s.gates, s.hidden};
    plain_input = memory::desc(input, kFloat, memory::format_tag::ldgoi);
    plain_hidden = memory::desc(hidden, kFloat, memory::format_tag::ldgoi);
    any_input = memory::desc(input, kFloat, memory::format_tag::any);
    any_hidden = memory::desc(hidden, kFloat, memory::format_tag::any);
  }
};

struct Made {
  dnnl::primitive primitive;
  memory::desc weights_input, weights_hidden, scratchpad;
  std::string implementation;
};

Made make_layer(const RnnShape& s, const Layer& l) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto direction = s.directions == 2 ? dnnl::rnn_direction::bidirectional_concat
                                           : dnnl::rnn_direction::unidirectional_left2right;
  const auto kind = dnnl::prop_kind::forward_inference;
  if (s.lstm) {
    dnnl::lstm_forward::primitive_desc d(vendor_engine(), kind, direction, l.x, l.state, l.state, l.any_input, l.any_hidden, l.bias,
                                         l.y, l.state, l.state, attributes);
    return {dnnl::lstm_forward(d), d.weights_layer_desc(), d.weights_iter_desc(), d.scratchpad_desc(), d.impl_info_str()};
  }
  dnnl::lbr_gru_forward::primitive_desc d(vendor_engine(), kind, direction, l.x, l.state, l.any_input, l.any_hidden, l.bias, l.y,
                                          l.state, attributes);
  return {dnnl::lbr_gru_forward(d), d.weights_layer_desc(), d.weights_iter_desc(), d.scratchpad_desc(), d.impl_info_str()};
}

// Both directions' matrices behind each other, gates in oneDNN's order, then in the layout it asked for. Null without values.
std::shared_ptr<const PackedWeight> pack_matrix(const AnchorDesc& a, const RnnShape& s, int64_t layer, size_t which, int64_t columns,
                                                const memory::desc& plain, const memory::desc& wanted,
                                                const codegen::CompileContext& context) {
  const int64_t gate_elements = s.hidden * columns;
  std::vector<float> gathered(static_cast<size_t>(s.directions * s.gates * gate_elements));
  for (int64_t d = 0; d < s.directions; ++d) {
    const TensorDesc& weight = s.weight(a, layer, d, which);
    const ConstantView values(weight.weight, context);
    if (!values.data()) return nullptr;
    const float* from = static_cast<const float*>(values.data()) + weight.offset;
    for (int64_t g = 0; g < s.gates; ++g) {
      std::memcpy(&gathered[static_cast<size_t>((d * s.gates + g) * gate_elements)], from + torch_gate(s, g) * gate_elements,
                  static_cast<size_t>(gate_elements) * 4);
    }
  }
  auto pack = std::make_shared<PackedWeight>(wanted, context);
  memory from(plain, vendor_engine(), gathered.data()), to(wanted, vendor_engine(), pack->data());
  dnnl::stream stream(vendor_engine());
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
  return pack;
}

// b_ih + b_hh for each gate; GRU's candidate keeps the two apart, because the reset gate acts on the hidden part only.
std::shared_ptr<const PackedWeight> pack_bias(const AnchorDesc& a, const RnnShape& s, int64_t layer, const memory::desc& desc,
                                              const codegen::CompileContext& context) {
  auto pack = std::make_shared<PackedWeight>(desc, context);
  auto* out = static_cast<float*>(pack->data());
  std::fill_n(out, s.directions * 4 * s.hidden, 0.0f);
  if (!s.biases) return pack;
  for (int64_t d = 0; d < s.directions; ++d, out += 4 * s.hidden) {
    const TensorDesc &input = s.weight(a, layer, d, 2), &hidden = s.weight(a, layer, d, 3);
    const ConstantView input_values(input.weight, context), hidden_values(hidden.weight, context);
    if (!input_values.data() || !hidden_values.data()) return nullptr;
    const float* bi = static_cast<const float*>(input_values.data()) + input.offset;
    const float* bh = static_cast<const float*>(hidden_values.data()) + hidden.offset;
    for (int64_t g = 0; g < s.gates; ++g) {
      for (int64_t i = 0; i < s.hidden; ++i) {
        const int64_t from = torch_gate(s, g) * s.hidden + i;
        const bool apart = !s.lstm && g == 2;
        out[g * s.hidden + i] = apart ? bi[from] : bi[from] + bh[from];
        if (apart) out[3 * s.hidden + i] = bh[from];
      }
    }
  }
  return pack;
}

}  // namespace

bool rnn_takes(const AnchorDesc& a, std::string& why_not) {
  if (a.operands[0].dtype != kDType_f32) return why_not = "recurrent cells are taken in f32 only", false;
  if (!codegen::rnn_is_plain(a, why_not)) return false;
  const RnnShape s(a);
  for (size_t i = s.first_weight; i < a.operands.size(); ++i)
    if (a.operands[i].weight == KRN_NONE_WEIGHT) return why_not = "a recurrent cell whose weights are not constants", false;
  for (int64_t layer = 0; layer < s.layers; ++layer) make_layer(s, Layer(a, s, layer));
  return true;
}

std::unique_ptr<codegen::Step> make_rnn(const AnchorDesc& a, const codegen::CompileContext& context) {
  const RnnShape s(a);
  auto step = std::make_unique<RnnStep>(a, s);
  for (int64_t n = 0; n < s.layers; ++n) {
    const Layer layer(a, s, n);
    Made made = make_layer(s, layer);
    auto one = std::make_unique<VendorStep>(made.primitive, made.scratchpad, "onednn " + made.implementation);
    const int64_t state = n * s.directions * s.batch * s.hidden;
    const auto before = n == 0 ? kX : n % 2 ? kBetween0 : kBetween1, after = n == s.layers - 1 ? kY : n % 2 ? kBetween1 : kBetween0;
    one->bind(DNNL_ARG_SRC_LAYER, layer.x, local(before));
    one->bind(DNNL_ARG_DST_LAYER, layer.y, local(after));
    one->bind(DNNL_ARG_SRC_ITER, layer.state, local(kH0, state));
    one->bind(DNNL_ARG_DST_ITER, layer.state, local(kHn, state));
    if (s.lstm) {
      one->bind(DNNL_ARG_SRC_ITER_C, layer.state, local(kC0, state));
      one->bind(DNNL_ARG_DST_ITER_C, layer.state, local(kCn, state));
    }
    auto input = pack_matrix(a, s, n, 0, s.layer_input(n), layer.plain_input, made.weights_input, context);
    auto hidden = pack_matrix(a, s, n, 1, s.hidden, layer.plain_hidden, made.weights_hidden, context);
    auto bias = pack_bias(a, s, n, layer.bias, context);
    // Without values (a child that holds no weights) the step is only a description: the artifact is made again with them.
    if (input && hidden && bias) {
      one->bind_pack(DNNL_ARG_WEIGHTS_LAYER, input);
      one->bind_pack(DNNL_ARG_WEIGHTS_ITER, hidden);
      one->bind_pack(DNNL_ARG_BIAS, bias);
    }
    step->add_layer(std::move(one));
  }
  return step;
}

}  // namespace keirin::cpu
