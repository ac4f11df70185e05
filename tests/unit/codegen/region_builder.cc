// SPDX-License-Identifier: Apache-2.0
//
// Sections of abi/graph.h, written record by record.
#include "tests/unit/codegen/region_builder.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace keirin::codegen::test {

int RegionBuilder::input(uint8_t dtype, Dims sizes, Dims strides, bool weight) {
  int v = static_cast<int>(values_.size());
  if (strides.empty()) strides = row_major(sizes);
  values_.push_back({dtype, std::move(sizes), std::move(strides), false, -1, static_cast<int>(inputs_.size())});
  inputs_.emplace_back(v, weight ? weights_++ : KRN_NONE);
  return v;
}

int RegionBuilder::op(uint32_t op, std::vector<int> operands, uint8_t dtype, Dims sizes, AttrList attrs, int results) {
  int first = static_cast<int>(values_.size());
  for (int r = 0; r < results; ++r) {
    values_.push_back({dtype, sizes, row_major(sizes), false, static_cast<int>(nodes_.size()), r});
  }
  nodes_.push_back({op, std::move(operands), first, results, std::move(attrs)});
  return first;
}

void RegionBuilder::set_body(int v, const RegionBuilder& body) {
  bodies_.push_back(body);
  nodes_[values_[v].producer].body = static_cast<int>(bodies_.size());
}

static Dims broadcast(const Dims& a, const Dims& b) {
  Dims out(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < out.size(); ++i) {
    int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1, y = i < b.size() ? b[b.size() - 1 - i] : 1;
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

int RegionBuilder::expand(int x, Dims to) {
  if (sizes(x) == to) return x;
  if (sizes(x).size() < to.size()) {
    Dims grown(to.size() - sizes(x).size(), 1);
    grown.insert(grown.end(), sizes(x).begin(), sizes(x).end());
    x = reshape(x, grown);
  }
  return sizes(x) == to ? x : op(kOp_expand, {x}, dtype(x), to, {{kAttr_sizes, to}});
}

int RegionBuilder::binary(uint32_t o, int a, int b) {
  Dims to = broadcast(sizes(a), sizes(b));
  a = expand(a, to), b = expand(b, to);
  return op(o, {a, b}, dtype(a), to);
}
int RegionBuilder::compare(uint32_t o, int a, int b) {
  Dims to = broadcast(sizes(a), sizes(b));
  a = expand(a, to), b = expand(b, to);
  return op(o, {a, b}, kDType_bool, to);
}
int RegionBuilder::scalar(double v, int like) {
  Dims one(sizes(like).size(), 1);
  int f = op(kOp_full, {}, dtype(like), one,
             {{kAttr_sizes, one}, {kAttr_dtype, int64_t{dtype(like)}}, {kAttr_value_i, static_cast<int64_t>(v)}, {kAttr_value_d, v}});
  return expand(f, sizes(like));
}
int RegionBuilder::permute(int x, Dims dims) {
  Dims to;
  for (int64_t d : dims) to.push_back(sizes(x)[d]);
  return op(kOp_permute, {x}, dtype(x), to, {{kAttr_dims, dims}});
}
int RegionBuilder::slice(int x, int64_t dim, int64_t start, int64_t end, int64_t step) {
  Dims to = sizes(x);
  to[dim] = (end - start + step - 1) / step;
  return op(kOp_slice, {x}, dtype(x), to, {{kAttr_dim, dim}, {kAttr_start, start}, {kAttr_end, end}, {kAttr_step, step}});
}
int RegionBuilder::cat(std::vector<int> x, int64_t dim) {
  Dims to = sizes(x[0]);
  to[dim] = 0;
  for (int v : x) to[dim] += sizes(v)[dim];
  return op(kOp_cat, x, dtype(x[0]), to, {{kAttr_dim, dim}});
}
int RegionBuilder::pad(int x, Dims low, Dims high, double value) {
  Dims to = sizes(x);
  for (size_t d = 0; d < to.size(); ++d) to[d] += low[d] + high[d];
  return op(kOp_pad, {x}, dtype(x), to,
            {{kAttr_low, low}, {kAttr_high, high}, {kAttr_value_i, static_cast<int64_t>(value)}, {kAttr_value_d, value}});
}
int RegionBuilder::take(int x, int index, int64_t dim) {
  Dims to = sizes(x);
  to.erase(to.begin() + dim);
  to.insert(to.begin() + dim, sizes(index).begin(), sizes(index).end());
  return op(kOp_take, {x, index}, dtype(x), to, {{kAttr_dim, dim}});
}
int RegionBuilder::reduce(uint32_t o, int x, Dims dims, bool keepdim) {
  Dims to;
  for (int64_t d = 0; d < static_cast<int64_t>(sizes(x).size()); ++d) {
    bool reduced = std::find(dims.begin(), dims.end(), d) != dims.end();
    if (!reduced || keepdim) to.push_back(reduced ? 1 : sizes(x)[d]);
  }
  bool index = o == kOp_argmax || o == kOp_argmin;
  return op(o, {x}, index ? static_cast<uint8_t>(kDType_i64) : dtype(x), to, {{kAttr_dims, dims}, {kAttr_keepdim, keepdim}});
}
int RegionBuilder::linear(int x, int w, int b) {
  Dims to = sizes(x);
  to.back() = sizes(w)[0];
  return op(kOp_linear, {x, w, b}, dtype(x), to);
}
int RegionBuilder::matmul(int a, int b) {
  Dims to = sizes(a);
  to.back() = sizes(b).back();
  return op(kOp_matmul, {a, b}, dtype(a), to);
}
int RegionBuilder::conv(int x, int w, int b, int64_t stride, int64_t padding) {
  Dims to{sizes(x)[0], sizes(w)[0]};
  for (int d = 2; d < 4; ++d) to.push_back((sizes(x)[d] + 2 * padding - sizes(w)[d]) / stride + 1);
  return op(kOp_conv, {x, w, b}, dtype(x), to,
            {{kAttr_stride, Dims{stride, stride}}, {kAttr_padding, Dims{padding, padding}}, {kAttr_dilation, Dims{1, 1}},
             {kAttr_groups, int64_t{1}}, {kAttr_transposed, false}, {kAttr_output_padding, Dims{0, 0}}});
}

int RegionBuilder::mean(int x, Dims dims) {
  double n = 1;
  for (int64_t d : dims) n *= static_cast<double>(sizes(x)[d]);
  int s = reduce(kOp_sum, x, dims, true);
  return binary(kOp_div, s, scalar(n, s));
}
int RegionBuilder::softmax(int x, int64_t dim) {
  int e = unary(kOp_exp, binary(kOp_sub, x, reduce(kOp_amax, x, {dim}, true)));
  return binary(kOp_div, e, reduce(kOp_sum, e, {dim}, true));
}
int RegionBuilder::layer_norm(int x, int w, int b, double eps) {
  int64_t last = static_cast<int64_t>(sizes(x).size()) - 1;
  int centred = binary(kOp_sub, x, mean(x, {last}));
  int var = mean(binary(kOp_mul, centred, centred), {last});
  int rstd = unary(kOp_rsqrt, binary(kOp_add, var, scalar(eps, var)));
  return binary(kOp_add, binary(kOp_mul, binary(kOp_mul, centred, rstd), w), b);
}
int RegionBuilder::rms_norm(int x, int w, double eps) {
  int64_t last = static_cast<int64_t>(sizes(x).size()) - 1;
  int ms = mean(binary(kOp_mul, x, x), {last});
  return binary(kOp_mul, binary(kOp_mul, x, unary(kOp_rsqrt, binary(kOp_add, ms, scalar(eps, ms)))), w);
}
int RegionBuilder::group_norm(int x, int w, int b, int64_t groups, double eps) {
  Dims shape = sizes(x);
  int64_t inner = shape[1] / groups;
  for (size_t d = 2; d < shape.size(); ++d) inner *= shape[d];
  int rows = reshape(x, {shape[0], groups, inner});
  int centred = binary(kOp_sub, rows, mean(rows, {2}));
  int var = mean(binary(kOp_mul, centred, centred), {2});
  int y = binary(kOp_mul, centred, unary(kOp_rsqrt, binary(kOp_add, var, scalar(eps, var))));
  Dims channel(shape.size(), 1);
  channel[1] = shape[1];
  return binary(kOp_add, binary(kOp_mul, reshape(y, shape), reshape(w, channel)), reshape(b, channel));
}

namespace {

class Sections {
 public:
  template <class T>
  void add(uint32_t id, const std::vector<T>& records) {
    Section s{id, sizeof(T), records.size(), {}};
    s.bytes.resize(records.size() * sizeof(T));
    if (!records.empty()) std::memcpy(s.bytes.data(), records.data(), s.bytes.size());
    sections_.push_back(std::move(s));
  }
  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> out(sizeof(krn_graph_header) + sections_.size() * sizeof(krn_graph_section));
    std::vector<krn_graph_section> directory;
    for (const Section& s : sections_) {
      directory.push_back({s.id, 0, s.stride, 0, out.size(), s.count});
      out.insert(out.end(), s.bytes.begin(), s.bytes.end());
      out.resize((out.size() + 7) / 8 * 8);
    }
    krn_graph_header header{{}, KRN_GRAPH_MAJOR, KRN_GRAPH_MINOR, static_cast<uint32_t>(sections_.size()), out.size()};
    std::memcpy(header.magic, KRN_GRAPH_MAGIC, 8);
    std::memcpy(out.data(), &header, sizeof header);
    std::memcpy(out.data() + sizeof header, directory.data(), directory.size() * sizeof(krn_graph_section));
    return out;
  }

 private:
  struct Section {
    uint32_t id, stride;
    uint64_t count;
    std::vector<uint8_t> bytes;
  };
  std::vector<Section> sections_;
};

}  // namespace

// The bytes need not be canonical: plugins only read them. Values are numbered inputs first, then results node by node.
std::vector<uint8_t> RegionBuilder::bytes() const {
  std::vector<krn_gtype> types;
  std::vector<int64_t> dims, words;
  std::vector<krn_gvalue> values;
  std::vector<krn_gnode> nodes;
  std::vector<uint32_t> operands;
  std::vector<krn_gattr> attrs;
  std::vector<char> chars;
  std::vector<krn_ginput> inputs;
  std::vector<krn_goutput> outputs;
  std::vector<krn_gfunction> functions;
  std::vector<const RegionBuilder*> all{this};
  for (const RegionBuilder& b : bodies_) all.push_back(&b);
  for (const RegionBuilder* f : all) {
    uint32_t base = static_cast<uint32_t>(values.size());  // of this function's values
    uint32_t first_node = static_cast<uint32_t>(nodes.size());
    functions.push_back({static_cast<uint32_t>(inputs.size()), static_cast<uint32_t>(f->inputs_.size()), first_node,
                         static_cast<uint32_t>(f->nodes_.size()), static_cast<uint32_t>(outputs.size()),
                         static_cast<uint32_t>(f->outputs_.size())});
    for (const Value& x : f->values_) {
      uint8_t encoding = x.strides == row_major(x.sizes) ? KRN_ENCODING_CONTIGUOUS : KRN_ENCODING_STRIDED;
      types.push_back({x.dtype, static_cast<uint8_t>(x.sizes.size()), encoding, 0, static_cast<uint32_t>(dims.size())});
      dims.insert(dims.end(), x.sizes.begin(), x.sizes.end());
      dims.insert(dims.end(), x.strides.begin(), x.strides.end());
      uint32_t producer = x.producer < 0 ? KRN_NONE : first_node + static_cast<uint32_t>(x.producer);
      values.push_back({static_cast<uint32_t>(types.size()) - 1, producer, static_cast<uint32_t>(x.result),
                        x.observed ? KRN_VALUE_OBSERVED : 0});
    }
    for (const Node& n : f->nodes_) {
      krn_gnode out{n.op, static_cast<uint32_t>(operands.size()), static_cast<uint32_t>(n.operands.size()),
                    base + static_cast<uint32_t>(n.first_result), static_cast<uint32_t>(n.num_results),
                    static_cast<uint32_t>(attrs.size()), static_cast<uint32_t>(n.attrs.size()),
                    n.body < 0 ? KRN_NONE : static_cast<uint32_t>(n.body)};
      for (int o : n.operands) operands.push_back(o < 0 ? KRN_NONE : base + static_cast<uint32_t>(o));
      AttrList sorted = n.attrs;
      std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      for (const auto& [key, value] : sorted) {
        krn_gattr a{key, 0, 0};
        if (const int64_t* i = std::get_if<int64_t>(&value)) a.bits = static_cast<uint64_t>(*i);
        if (const double* d = std::get_if<double>(&value)) a.bits = std::bit_cast<uint64_t>(*d);
        if (const bool* b = std::get_if<bool>(&value)) a.bits = *b;
        if (const Dims* list = std::get_if<Dims>(&value)) {
          a.count = static_cast<uint32_t>(list->size()), a.bits = words.size();
          words.insert(words.end(), list->begin(), list->end());
        }
        if (const std::string* s = std::get_if<std::string>(&value)) {
          a.count = static_cast<uint32_t>(s->size()), a.bits = chars.size();
          chars.insert(chars.end(), s->begin(), s->end());
        }
        attrs.push_back(a);
      }
      nodes.push_back(out);
    }
    for (const auto& [v, weight] : f->inputs_) {
      inputs.push_back({base + static_cast<uint32_t>(v), weight == KRN_NONE ? 0 : KRN_INPUT_WEIGHT, weight, 0});
    }
    for (const auto& [v, alias] : f->outputs_) {
      outputs.push_back({base + static_cast<uint32_t>(v), alias < 0 ? KRN_NONE : static_cast<uint32_t>(alias)});
    }
  }
  Sections s;
  s.add(KRN_SECTION_OPSET, std::vector<uint64_t>{KRN_OPSET_VERSION});
  s.add(KRN_SECTION_TYPES, types);
  s.add(KRN_SECTION_DIMS, dims);
  s.add(KRN_SECTION_VALUES, values);
  s.add(KRN_SECTION_NODES, nodes);
  s.add(KRN_SECTION_OPERANDS, operands);
  s.add(KRN_SECTION_ATTRS, attrs);
  s.add(KRN_SECTION_WORDS, words);
  s.add(KRN_SECTION_CHARS, chars);
  s.add(KRN_SECTION_FUNCTIONS, functions);
  s.add(KRN_SECTION_INPUTS, inputs);
  s.add(KRN_SECTION_OUTPUTS, outputs);
  return s.bytes();
}

void RegionBuilder::momentum_step(int64_t elements) {
  const Dims sizes = {elements};
  const int first = static_cast<int>(inputs_.size());
  const int parameter = input(kDType_f32, sizes), gradient = input(kDType_f32, sizes), velocity = input(kDType_f32, sizes),
            count = input(kDType_f32, {});
  const int counted = binary(kOp_add, count, scalar(1, count));
  const int faster = binary(kOp_add, binary(kOp_mul, velocity, scalar(0.75, velocity)), gradient);
  const int there = binary(kOp_sub, parameter, binary(kOp_mul, faster, expand(unary(kOp_tanh, counted), sizes)));
  output(counted, first + 3);
  output(faster, first + 2);
  output(there, first);
}

}  // namespace keirin::codegen::test
