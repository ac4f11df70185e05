// SPDX-License-Identifier: Apache-2.0
//
// Recipes of matrix products, convolutions and attention: every form ends in one of the anchors matmul, linear, conv,
// attention.
#include <algorithm>
#include <cmath>

#include "core/ops/lowering.h"

namespace keirin {
namespace {

int64_t product(const Dims& dims, size_t from, size_t to) {
  int64_t n = 1;
  for (size_t i = from; i < to; ++i) n *= dims[i];
  return n;
}

// torch.matmul: vectors get an axis, a matrix on the right folds the batch into rows, else batches broadcast.
ValueId matmul_of(Lowering& w, ValueId a, ValueId b) {
  if (w.rank(a) == 0 || w.rank(b) == 0) w.decline("matmul of a 0-d tensor");
  if (w.failed()) return kNone;
  const bool row = w.rank(a) == 1, column = w.rank(b) == 1;
  if (row) a = w.unsqueeze(a, 0);
  if (column) b = w.unsqueeze(b, 1);
  Dims sa = w.sizes(a), sb = w.sizes(b);
  ValueId out = kNone;
  if (sb.size() == 2) {
    ValueId rows = w.reshape(a, {product(sa, 0, sa.size() - 1), sa.back()});
    Dims full = sa;
    full.back() = sb[1];
    out = w.reshape(w.row(OpCode::k_matmul, {rows, b}), full);
  } else {
    Dims batch = w.broadcast({Dims(sa.begin(), sa.end() - 2), Dims(sb.begin(), sb.end() - 2)});
    auto wide = [&](ValueId v, const Dims& s) {
      Dims sizes = batch;
      sizes.insert(sizes.end(), s.end() - 2, s.end());
      return w.expand(v, sizes);
    };
    out = w.row(OpCode::k_matmul, {wide(a, sa), wide(b, sb)});
  }
  Dims s = w.sizes(out);
  if (w.failed()) return kNone;
  if (column) s.pop_back();
  if (row) s.erase(s.end() - (column ? 1 : 2));
  return w.reshape(out, s);
}

Values matmul(Lowering& w) {
  ValueId a = w.tensor("self");
  return {matmul_of(w, a,
                    w.tensor(w.given("other")  ? "other"
                             : w.given("mat2") ? "mat2"
                             : w.given("vec")  ? "vec"
                                               : "tensor"))};
}

Values linear(Lowering& w) {
  ValueId x = w.tensor("input"), weight = w.tensor("weight"), bias = w.tensor_or_none("bias");
  return {w.row(OpCode::k_linear, bias == kNone ? Values{x, weight} : Values{x, weight, bias})};
}

// Rows in groups, each group by its own weights.
Values grouped_mm(Lowering& w) {
  const bool libtorch = w.given("self");
  const ValueId x = w.tensor(libtorch ? "self" : "input"), weights = w.tensor(libtorch ? "mat2" : "weight");
  const ValueId ends = w.tensor_or_none("offs");
  if (w.failed()) return {};
  if (ends == kNone || w.rank(x) != 2 || w.rank(weights) != 3) return w.decline("products of groups of other than rows"), Values{};
  if (w.given("bias")) return w.decline("products of groups with a bias"), Values{};
  if (w.dtype("out_dtype").value_or(w.dtype_of(x)) != w.dtype_of(x)) return w.decline("products of groups in another dtype"), Values{};
  return {w.row(OpCode::k_grouped_matmul, {x, weights, ends})};
}

// beta * input + alpha * (a @ b), rounded once where it is not one row.
ValueId scaled_sum(Lowering& w, ValueId input, ValueId contraction) {
  double alpha = w.real("alpha", 1), beta = w.real("beta", 1);
  DType d = w.dtype_of(contraction), compute = compute_dtype(d);
  ValueId sum = w.cast(contraction, compute);
  if (alpha != 1) sum = w.with_number(OpCode::k_mul, sum, alpha);
  if (beta != 0) {
    ValueId term = w.expand(w.cast(input, compute), w.sizes(sum));
    if (beta != 1) term = w.with_number(OpCode::k_mul, term, beta);
    sum = w.binary(OpCode::k_add, term, sum);
  }
  return w.cast(sum, d);
}

// addmm with a bias row is a linear layer whose weight is a transposed view.
Values addmm(Lowering& w) {
  ValueId input = w.tensor("self"), a = w.tensor("mat1"), b = w.tensor("mat2");
  Dims s = w.sizes(input);
  int64_t n = w.rank(b) == 2 ? w.sizes(b)[1] : -1;
  bool bias = (s == Dims{n} || s == Dims{1, n}) && w.real("alpha", 1) == 1 && w.real("beta", 1) == 1;
  if (bias) return {w.row(OpCode::k_linear, {a, w.transpose(b, 0, 1), w.reshape(input, {n})})};
  return {scaled_sum(w, input, w.row(OpCode::k_matmul, {a, b}))};
}

Values baddbmm(Lowering& w) {
  ValueId input = w.tensor("self"), a = w.tensor("batch1"), b = w.tensor("batch2");
  return {scaled_sum(w, input, w.row(OpCode::k_matmul, {a, b}))};
}

Values outer(Lowering& w) {
  ValueId a = w.tensor("self"), b = w.tensor(w.given("vec2") ? "vec2" : "other");
  if (w.rank(a) != 1 || w.rank(b) != 1) return w.decline("outer of other than vectors"), Values{};
  auto left = w.as_operand(w.unsqueeze(a, 1));
  return {w.pointwise(OpCode::k_mul, {left, w.as_operand(b)}, w.result_type({left, w.as_operand(b)}))};
}

struct EinsumSide {
  std::string labels;
  ValueId value;
};

// Brings an operand to `order` of its labels, then to three axes [batch, kept or summed, the other].
ValueId arranged(Lowering& w, const EinsumSide& side, const std::string& batch, const std::string& first,
                 const std::string& second) {
  std::string order = batch + first + second;
  Dims dims, s = w.sizes(side.value);
  for (char c : order) dims.push_back(static_cast<int64_t>(side.labels.find(c)));
  ValueId v = w.permute(side.value, dims);
  Dims sizes;
  for (int64_t d : dims) sizes.push_back(s[d]);
  size_t b = batch.size(), f = b + first.size();
  return w.reshape(v, {product(sizes, 0, b), product(sizes, b, f), product(sizes, f, sizes.size())});
}

bool splits(const std::string& text, std::vector<std::string>& inputs, std::string& output) {
  std::string t;
  for (char c : text)
    if (c != ' ') t += c;
  size_t arrow = t.find("->");
  if (arrow == std::string::npos || t.find('.') != std::string::npos) return false;
  output = t.substr(arrow + 2);
  std::string rest = t.substr(0, arrow);
  for (size_t comma; (comma = rest.find(',')) != std::string::npos; rest = rest.substr(comma + 1))
    inputs.push_back(rest.substr(0, comma));
  inputs.push_back(rest);
  for (const std::string& s : inputs)
    for (char c : s)
      if (std::count(s.begin(), s.end(), c) > 1) return false;
  return true;
}

// Two operands without diagonals and without labels that only one side sums: one batched matmul.
Values einsum(Lowering& w) {
  std::vector<std::string> inputs;
  std::string output;
  Values operands = w.tensors("tensors");
  if (!splits(w.word("equation"), inputs, output) || inputs.size() != 2 || operands.size() != 2)
    return w.decline("einsum " + w.word("equation")), Values{};
  EinsumSide a{inputs[0], operands[0]}, b{inputs[1], operands[1]};
  std::string batch, left, right, sum;
  auto in = [](const std::string& s, char c) { return s.find(c) != std::string::npos; };
  for (char c : a.labels) (in(b.labels, c) ? (in(output, c) ? batch : sum) : left) += c;
  for (char c : b.labels)
    if (!in(a.labels, c)) right += c;
  bool kept = std::all_of(left.begin(), left.end(), [&](char c) { return in(output, c); }) &&
              std::all_of(right.begin(), right.end(), [&](char c) { return in(output, c); });
  bool fits = static_cast<int64_t>(a.labels.size()) == w.rank(a.value) &&
              static_cast<int64_t>(b.labels.size()) == w.rank(b.value);
  if (!kept || !fits || output.size() != batch.size() + left.size() + right.size() ||
      w.dtype_of(a.value) != w.dtype_of(b.value))
    return w.decline("einsum " + w.word("equation")), Values{};
  for (char c : batch + sum)
    if (w.sizes(a.value)[a.labels.find(c)] != w.sizes(b.value)[b.labels.find(c)])
      return w.decline("einsum that broadcasts"), Values{};
  ValueId out = w.row(OpCode::k_matmul, {arranged(w, a, batch, left, sum), arranged(w, b, batch, sum, right)});
  std::string natural = batch + left + right;
  Dims sizes, dims;
  for (char c : natural) {
    const EinsumSide& side = in(a.labels, c) ? a : b;
    sizes.push_back(w.sizes(side.value)[side.labels.find(c)]);
  }
  for (char c : output) dims.push_back(static_cast<int64_t>(natural.find(c)));
  return {w.permute(w.reshape(out, sizes), dims)};
}

Dims per_axis(Lowering& w, const char* name, size_t n, int64_t fallback) {
  Dims list = w.ints(name);
  if (list.empty()) return Dims(n, fallback);
  if (list.size() == 1) return Dims(n, list[0]);
  return list;
}

// padding="same": only where it is even on both sides.
Dims named_padding(Lowering& w, const Dims& kernel, const Dims& dilation) {
  Dims padding(dilation.size(), 0);
  if (w.word("padding") == "valid") return padding;
  for (size_t i = 0; i < padding.size(); ++i) {
    int64_t total = dilation[i] * (kernel[i + 2] - 1);
    if (total % 2 != 0) w.decline("same padding that is uneven");
    padding[i] = total / 2;
  }
  return padding;
}

ValueId conv_row(Lowering& w, bool transposed, bool words) {
  ValueId x = w.tensor("input"), weight = w.tensor("weight"), bias = w.tensor_or_none("bias");
  Dims kernel = w.sizes(weight);
  if (w.failed() || kernel.size() < 3) return w.decline("a convolution without spatial axes"), kNone;
  const size_t n = kernel.size() - 2;
  bool unbatched = w.rank(x) == static_cast<int64_t>(n) + 1;
  if (unbatched) x = w.unsqueeze(x, 0);
  Dims dilation = per_axis(w, "dilation", n, 1);
  Dims padding = words ? named_padding(w, kernel, dilation) : per_axis(w, "padding", n, 0);
  Attrs attrs{{AttrKey::k_stride, per_axis(w, "stride", n, 1)},
                          {AttrKey::k_padding, padding},
                          {AttrKey::k_dilation, dilation},
                          {AttrKey::k_groups, w.integer("groups", 1)},
                          {AttrKey::k_transposed, transposed},
                          {AttrKey::k_output_padding, per_axis(w, "output_padding", n, 0)}};
  ValueId out = w.row(OpCode::k_conv, bias == kNone ? Values{x, weight} : Values{x, weight, bias}, std::move(attrs));
  Dims s = w.sizes(out);
  if (unbatched && !w.failed()) out = w.reshape(out, Dims(s.begin() + 1, s.end()));
  return out;
}

Values conv(Lowering& w) { return {conv_row(w, false, false)}; }
Values conv_padding(Lowering& w) { return {conv_row(w, false, true)}; }
Values conv_transpose(Lowering& w) { return {conv_row(w, true, false)}; }
Values convolution(Lowering& w) { return {conv_row(w, w.flag("transposed"), false)}; }

// Its gradients: of the input by the convolution that goes the other way with the same weight, of the weight by an anchor of its own, of
// the bias by a sum. What `output_mask` leaves out nobody reads.
Values convolution_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_output"), x = w.tensor("input"), weight = w.tensor("weight");
  if (w.failed() || w.rank(weight) < 3) return w.decline("a convolution without spatial axes"), Values{};
  const Dims sizes = w.sizes(x), kernel = w.sizes(weight), from = w.sizes(grad);
  if (sizes.size() != kernel.size() || from.size() != kernel.size())
    return w.decline("a convolution of one image without a batch"), Values{};
  const size_t n = kernel.size() - 2;
  const Dims stride = per_axis(w, "stride", n, 1), padding = per_axis(w, "padding", n, 0), dilation = per_axis(w, "dilation", n, 1);
  const bool transposed = w.flag("transposed");
  Dims extra(n, 0);  // of the input, what the windows do not reach
  for (size_t i = 0; i < n && !transposed; ++i)
    extra[i] = sizes[i + 2] - ((from[i + 2] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i + 2] - 1) + 1);
  const Attrs windows{{AttrKey::k_stride, stride},
                                  {AttrKey::k_padding, padding},
                                  {AttrKey::k_dilation, dilation},
                                  {AttrKey::k_groups, w.integer("groups", 1)}};
  Attrs of_input = windows, of_weight = windows;
  of_input.insert(of_input.end(), {{AttrKey::k_transposed, !transposed}, {AttrKey::k_output_padding, extra}});
  of_weight.push_back({AttrKey::k_sizes, Dims(kernel.begin() + 2, kernel.end())});
  const ValueId dx = w.row(OpCode::k_conv, {grad, weight}, std::move(of_input));
  const ValueId dw = w.row(OpCode::k_conv_grad_weight, transposed ? Values{grad, x} : Values{x, grad}, std::move(of_weight));
  Dims all_but_channel{0};
  for (size_t i = 2; i < from.size(); ++i) all_but_channel.push_back(static_cast<int64_t>(i));
  const DType dtype = w.dtype_of(grad);
  const ValueId sum = w.reduce(OpCode::k_sum, w.cast(grad, compute_dtype(dtype)), all_but_channel, false);
  return {dx, dw, w.cast(sum, dtype)};
}

// Query and key batches that only broadcast are expanded; grouped heads stay as they are.
ValueId attention_of(Lowering& w) {
  ValueId q = w.tensor("query"), k = w.tensor("key"), v = w.tensor("value"), mask = w.tensor_or_none("attn_mask");
  if (w.real("dropout_p", 0) != 0) w.decline("attention with dropout draws random numbers");
  if (w.rank(q) < 3 || w.rank(k) != w.rank(q) || w.rank(v) != w.rank(q))
    w.decline("attention below 3-d or of mixed ranks");
  if (w.failed()) return kNone;
  Dims sq = w.sizes(q), sk = w.sizes(k), sv = w.sizes(v);
  const size_t r = sq.size();
  bool gqa = w.flag("enable_gqa") && sq[r - 3] != sk[r - 3];
  if (!gqa) {
    Dims batch =
        w.broadcast({Dims(sq.begin(), sq.end() - 2), Dims(sk.begin(), sk.end() - 2), Dims(sv.begin(), sv.end() - 2)});
    for (auto [value, s] : {std::pair{&q, &sq}, {&k, &sk}, {&v, &sv}}) {
      std::copy(batch.begin(), batch.end(), s->begin());
      *value = w.expand(*value, *s);
    }
  }
  double scale = w.given("scale") ? w.real("scale") : 1.0 / std::sqrt(static_cast<double>(sq[r - 1]));
  Values operands{q, k, v};
  if (mask != kNone) {
    Dims want(sq.begin(), sq.end() - 1);
    want.push_back(sk[r - 2]);
    operands.push_back(w.expand(mask, want));
  }
  return w.row(OpCode::k_attention, operands,
               {{AttrKey::k_causal, w.flag("is_causal")}, {AttrKey::k_scale, scale}, {AttrKey::k_gqa, gqa}});
}

Values attention(Lowering& w) { return {attention_of(w)}; }
Values attention_with_logsumexp(Lowering& w) { return {attention_of(w), kNone}; }

constexpr RecipeRow kRecipes[] = {
    {"aten::matmul", matmul},
    {"aten::mm", matmul},
    {"aten::bmm", matmul},
    {"aten::mv", matmul},
    {"aten::dot", matmul},
    {"aten::linear", linear},
    {"aten::addmm", addmm},
    {"aten::baddbmm", baddbmm},
    {"aten::_grouped_mm", grouped_mm},
    {"transformers::grouped_mm_fallback", grouped_mm},
    {"keirin_transformers::grouped_mm_fallback", grouped_mm},  // our stand-in for it (core/eager/program/package_ops.h)
    {"aten::outer", outer},
    {"aten::einsum", einsum},
    {"aten::conv1d", conv},
    {"aten::conv2d", conv},
    {"aten::conv3d", conv},
    {"aten::conv1d.padding", conv_padding},
    {"aten::conv2d.padding", conv_padding},
    {"aten::conv3d.padding", conv_padding},
    {"aten::conv_transpose1d", conv_transpose},
    {"aten::conv_transpose2d.input", conv_transpose},
    {"aten::conv_transpose3d.input", conv_transpose},
    {"aten::convolution", convolution},
    {"aten::_convolution", convolution},
    {"aten::convolution_backward", convolution_backward},
    {"aten::scaled_dot_product_attention", attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attention_with_logsumexp},
};

}  // namespace

std::span<const RecipeRow> contraction_recipes() { return kRecipes; }

}  // namespace keirin
