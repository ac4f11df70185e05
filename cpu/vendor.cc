// SPDX-License-Identifier: Apache-2.0
//
// From an anchor to a oneDNN primitive. A Contraction is the common form of matmul, linear, convolution and a convolution's gradient of
// its weight: oneDNN's view of the operands (logical sizes and strides, nothing moved) and a function that makes the primitive's
// description. Trying an anchor and compiling it run the same code, so what is claimed is what compiles.
#include "cpu/vendor.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <set>
#include <unordered_map>

#include "abi/planted.h"
#include "cpu/packed_weights.h"
#include "cpu/vendor_grouped.h"
#include "cpu/vendor_rnn.h"
#include "cpu/vendor_step.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::cpu {
namespace {

using enum kit::Op;
using enum kit::DType;
using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;
using dnnl::memory;
using Dims = memory::dims;

// That are remembered. Of 1,024, as oneDNN has it, plans for a few hundred sizes drive out each other's, and what is driven out takes
// longer to be let go, half a millisecond for the code of a product, than the next small one takes to be made.
constexpr int kMostPrimitives = 8192;

std::string find_obstacle() {
  std::set<std::string> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const char* slash = std::strrchr(info->dlpi_name, '/');
        const std::string name = slash ? slash + 1 : info->dlpi_name;
        for (const char* runtime : {"libgomp", "libiomp", "libomp"}) {
          if (name.rfind(runtime, 0) == 0) static_cast<std::set<std::string>*>(out)->insert(info->dlpi_name);
        }
        return 0;
      },
      &found);
  if (found.size() <= 1) return {};
  std::string text = "two OpenMP run times are mapped:";
  for (const std::string& name : found) text += ' ' + name;
  return text + "; contractions stay eager, because both would start threads; load LibTorch before the plugin";
}

// A tensor as oneDNN sees it. Broadcast axes (stride 0) have size 1 there.
struct View {
  const TensorDesc* tensor = nullptr;
  Dims sizes, strides;

  View() = default;
  explicit View(const TensorDesc& t) : tensor(&t), sizes(t.sizes.begin(), t.sizes.end()), strides(t.strides.begin(), t.strides.end()) {}
  size_t rank() const { return sizes.size(); }
  void shrink_broadcasts() {
    for (size_t i = 0; i < rank(); ++i) {
      if (strides[i] == 0) sizes[i] = 1;
    }
  }
  // Size-1 axes have any stride; oneDNN's format matching wants a sensible one.
  void settle_unit_strides() {
    int64_t dense = 1;
    for (size_t i = rank(); i-- > 0;) {
      if (sizes[i] == 1) strides[i] = dense;
      dense = std::max(dense, sizes[i] * strides[i]);
    }
  }
  memory::desc desc(memory::data_type type) const { return {sizes, type, strides}; }
  std::string text() const {  // "[2x197x768]"
    std::string out;
    for (int64_t size : sizes) out += (out.empty() ? "[" : "x") + std::to_string(size);
    return out + "]";
  }
};

memory::data_type type_of(const TensorDesc& t) {
  return t.dtype == kDType_bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

enum class Kind { kProduct, kConvolution, kTransposed, kWeightGradient };

// `weights` of a gradient is what is computed, `result` the gradient of the convolution's result.
struct Contraction {
  View source, weights, bias, result;
  std::vector<View> post_operands;  // one per post-op, without tensor where it has none
  Kind kind = Kind::kProduct;
  Dims stride, dilation, pad_low, pad_high;
};

// Axes i and i + 1 of a view are one axis.
bool fuses(const View& v, size_t i) {
  return v.sizes[i + 1] == 1 || v.sizes[i] == 1 || v.strides[i] == v.strides[i + 1] * v.sizes[i + 1] ||
         (v.strides[i] == 0 && v.strides[i + 1] == 0);
}

void fuse(View& v, size_t i) {
  const int64_t stride = v.sizes[i + 1] == 1 ? v.strides[i] : v.strides[i + 1];
  v.sizes[i] *= v.sizes[i + 1];
  v.strides[i] = stride;
  v.sizes.erase(v.sizes.begin() + static_cast<ptrdiff_t>(i) + 1);
  v.strides.erase(v.strides.begin() + static_cast<ptrdiff_t>(i) + 1);
}

// Leading axes of `views` up to `keep` trailing ones become one where all of them allow it.
void fuse_leading(std::vector<View*> views, size_t keep) {
  for (size_t i = views[0]->rank() - keep; i-- > 1;) {
    const size_t at = i - 1;
    if (!std::all_of(views.begin(), views.end(), [&](View* v) { return fuses(*v, at); })) continue;
    for (View* v : views) fuse(*v, at);
  }
}

// The rows of a linear come in any order, so where several axes of them remain, the longest becomes those of the matrix and the
// others batches: of [197, 2, 768] in that order, oneDNN made 197 products of two rows, which took half as long again.
void longest_rows_last(std::vector<View*> views) {
  const size_t rank = views[0]->rank();
  if (rank < 3) return;
  const auto first = views[0]->sizes.begin();
  const auto longest = static_cast<size_t>(std::max_element(first, first + static_cast<ptrdiff_t>(rank) - 1) - first);
  for (View* v : views) {
    std::swap(v->sizes[longest], v->sizes[rank - 2]);
    std::swap(v->strides[longest], v->strides[rank - 2]);
  }
  fuse_leading(views, 2);
}

// [N, K] as oneDNN's [K, N], with as many leading ones as the source has axes.
View linear_weights(const TensorDesc& t, size_t rank) {
  View v(t);
  std::swap(v.sizes[0], v.sizes[1]);
  std::swap(v.strides[0], v.strides[1]);
  while (v.rank() < rank) {
    v.sizes.insert(v.sizes.begin(), 1);
    v.strides.insert(v.strides.begin(), v.sizes[1] * v.strides[1]);
  }
  return v;
}

void add_bias(Contraction& c, const TensorDesc& bias, size_t rank) {
  c.bias = View(bias);
  while (c.bias.rank() < rank) {
    c.bias.sizes.insert(c.bias.sizes.begin(), 1);
    c.bias.strides.insert(c.bias.strides.begin(), c.bias.sizes[1]);
  }
}

void add_post_operands(Contraction& c, const AnchorDesc& a) {
  for (const PostOp& post : a.post_ops) c.post_operands.push_back(post.operand.present() ? View(post.operand) : View());
}

std::vector<View*> result_views(Contraction& c) {
  std::vector<View*> views{&c.result};
  for (View& v : c.post_operands) {
    if (v.tensor) views.push_back(&v);
  }
  return views;
}

Contraction describe_matmul(const AnchorDesc& a) {
  Contraction c;
  c.source = View(a.operands[0]);
  c.result = View(a.results[0]);
  add_post_operands(c, a);
  if (a.op == kOp_linear) {
    if (c.source.rank() == 1) throw kit::Error(KRN_STATUS_unsupported, "linear over a vector");
    std::vector<View*> views = result_views(c);
    views.push_back(&c.source);
    fuse_leading(views, 1);
    longest_rows_last(views);
    c.weights = linear_weights(a.operands[1], c.source.rank());
    if (a.operands.size() > 2 && a.operands[2].present()) add_bias(c, a.operands[2], c.source.rank());
  } else {
    c.weights = View(a.operands[1]);
    std::vector<View*> views = result_views(c);
    views.push_back(&c.source);
    views.push_back(&c.weights);
    if (c.source.rank() > 3) fuse_leading(views, 2);
  }
  for (View* v : {&c.source, &c.weights}) {
    for (size_t i = v->rank() - 2; i < v->rank(); ++i) {
      if (v->strides[i] == 0 && v->sizes[i] != 1) throw kit::Error(KRN_STATUS_unsupported, "a matrix with a broadcast row or column");
    }
    v->shrink_broadcasts();
  }
  return c;
}

// [O, C/g, k..] as [g, O/g, C/g, k..]; of a transposed convolution [C, O/g, k..] likewise, with its two channel axes swapped.
View conv_weights(const TensorDesc& t, int64_t groups, bool transposed) {
  View v(t);
  if (groups > 1) {
    v.sizes[0] /= groups;
    v.sizes.insert(v.sizes.begin(), groups);
    v.strides.insert(v.strides.begin(), (KRN_PLANTED(grouped_weights) ? 1 : v.sizes[1]) * v.strides[0]);
  }
  if (transposed) {
    const size_t first = groups > 1 ? 1 : 0;
    std::swap(v.sizes[first], v.sizes[first + 1]);
    std::swap(v.strides[first], v.strides[first + 1]);
  }
  return v;
}

Contraction describe_conv(const AnchorDesc& a) {
  Contraction c;
  const bool gradient = a.op == kOp_conv_grad_weight;
  c.kind = gradient ? Kind::kWeightGradient : a.transposed ? Kind::kTransposed : Kind::kConvolution;
  c.source = View(a.operands[0]);
  c.weights = conv_weights(gradient ? a.results[0] : a.operands[1], a.groups, a.transposed);
  c.result = View(gradient ? a.operands[1] : a.results[0]);
  if (a.operands.size() > 2 && a.operands[2].present()) c.bias = View(a.operands[2]);
  add_post_operands(c, a);
  const size_t spatial = c.source.rank() - 2;
  auto of = [](const std::vector<int64_t>& list, size_t i, int64_t otherwise) {
    return list.empty() ? otherwise : list[std::min(i, list.size() - 1)];
  };
  for (size_t i = 0; i < spatial; ++i) {
    const int64_t step = of(a.stride, i, 1), gap = of(a.dilation, i, 1), low = of(a.padding, i, 0);
    const int64_t reach = gap * (c.weights.sizes[c.weights.rank() - spatial + i] - 1) + 1;
    const int64_t wide = a.transposed ? c.result.sizes[2 + i] : c.source.sizes[2 + i];
    const int64_t narrow = a.transposed ? c.source.sizes[2 + i] : c.result.sizes[2 + i];
    c.stride.push_back(step);
    c.dilation.push_back(gap - 1);
    c.pad_low.push_back(low);
    c.pad_high.push_back((narrow - 1) * step + reach - wide - low);
  }
  return c;
}

Contraction describe(const AnchorDesc& a) {
  Contraction c = a.op == kOp_conv || a.op == kOp_conv_grad_weight ? describe_conv(a) : describe_matmul(a);
  for (View* v : {&c.source, &c.weights, &c.bias, &c.result}) v->settle_unit_strides();
  for (View& v : c.post_operands) {
    v.shrink_broadcasts();
    v.settle_unit_strides();
  }
  return c;
}

// ---- epilogues

struct Eltwise {
  uint32_t op;
  dnnl::algorithm algorithm;
  float alpha, beta;
};

const Eltwise kEltwise[] = {
    {kOp_relu, dnnl::algorithm::eltwise_relu, 0, 0},
    {kOp_leaky_relu, dnnl::algorithm::eltwise_relu, 0, 0},  // alpha: the slope
    {kOp_gelu, dnnl::algorithm::eltwise_gelu_erf, 0, 0},
    {kOp_gelu_tanh, dnnl::algorithm::eltwise_gelu_tanh, 0, 0},
    {kOp_silu, dnnl::algorithm::eltwise_swish, 1, 0},
    {kOp_sigmoid, dnnl::algorithm::eltwise_logistic, 0, 0},
    {kOp_tanh, dnnl::algorithm::eltwise_tanh, 0, 0},
    {kOp_clamp, dnnl::algorithm::eltwise_clip_v2, 0, 0},  // alpha, beta: the bounds
    {kOp_hardswish, dnnl::algorithm::eltwise_hardswish, 1.0f / 6, 0.5f},
    {kOp_hardsigmoid, dnnl::algorithm::eltwise_hardsigmoid, 1.0f / 6, 0.5f},
};

const Eltwise* find_eltwise(uint32_t op) {
  for (const Eltwise& e : kEltwise) {
    if (e.op == op) return &e;
  }
  return nullptr;
}

dnnl::algorithm binary_of(uint32_t op) {
  switch (op) {
    case kOp_add: return dnnl::algorithm::binary_add;
    case kOp_sub: return dnnl::algorithm::binary_sub;
    case kOp_mul: return dnnl::algorithm::binary_mul;
    default: return dnnl::algorithm::undef;
  }
}

// An addend that lies in the result's own memory is oneDNN's `sum`, which reads it before it writes.
bool adds_in_place(const AnchorDesc& a, const PostOp& post) {
  return post.op == kOp_add && post.operand.buffer == a.results[0].buffer && post.operand.offset == a.results[0].offset &&
         post.operand.sizes == a.results[0].sizes && post.operand.strides == a.results[0].strides;
}

dnnl::primitive_attr make_attributes(const AnchorDesc& a, const Contraction& c) {
  dnnl::post_ops ops;
  for (size_t i = 0; i < a.post_ops.size(); ++i) {
    const PostOp& post = a.post_ops[i];
    if (const Eltwise* e = find_eltwise(post.op)) {
      const bool has_bounds = post.op == kOp_clamp || post.op == kOp_leaky_relu;
      if (KRN_PLANTED(epilogue_twice)) ops.append_eltwise(e->algorithm, e->alpha, e->beta);
      ops.append_eltwise(e->algorithm, has_bounds ? static_cast<float>(post.alpha) : e->alpha,
                         has_bounds ? static_cast<float>(post.beta) : e->beta);
    } else if (adds_in_place(a, post)) {
      ops.append_sum(1.0f);
    } else {
      ops.append_binary(binary_of(post.op), c.post_operands[i].desc(type_of(post.operand)));
    }
  }
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(ops);
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// ---- primitives

struct Made {
  dnnl::primitive primitive;
  memory::desc source, weights, result, scratchpad;
  std::string implementation;
};

// Making the primitive generates its code (0.5-2 ms); asking which implementation there is does not.
enum class Want { kImplementation, kPrimitive };

// What may be laid out as oneDNN likes best, the rest being as it lies.
enum class Free { kNothing, kWeights, kAll };

template <class Primitive, class Description>
Made finish(const Description& d, Want want) {
  Made out;
  if (want == Want::kPrimitive) out.primitive = dnnl::primitive(Primitive(d));
  out.scratchpad = d.scratchpad_desc();
  out.implementation = d.impl_info_str();
  if constexpr (std::is_same_v<Primitive, dnnl::convolution_backward_weights>) {
    out.source = d.src_desc(), out.weights = d.diff_weights_desc(), out.result = d.diff_dst_desc();
  } else {
    out.source = d.src_desc(), out.weights = d.weights_desc(), out.result = d.dst_desc();
  }
  return out;
}

// One matrix after the other, and code of its own for the epilogue behind it.
bool is_plain_product(std::string_view implementation) { return implementation.starts_with("gemm"); }

// Rows that lie apart, as one token of each text does: how far, the sizes decide, and oneDNN generates the code of its epilogue for each
// distance, a third of a millisecond, if it is told.
bool has_rows_apart(const AnchorDesc& a, const Contraction& c) {
  return c.kind == Kind::kProduct && !a.post_ops.empty() && c.source.rank() == 2 && c.source.strides[1] == 1 &&
         c.source.strides[0] > c.source.sizes[1];
}

Made make_anew(const AnchorDesc& a, const Contraction& c, Free free, Want want) {
  const dnnl::engine& engine = vendor_engine();
  const auto type = type_of(a.operands[0]);
  const auto lies = [&](const View& v, memory::data_type of, bool is_free) {
    return is_free ? memory::desc(v.sizes, of, memory::format_tag::any) : v.desc(of);
  };
  const memory::desc weights = lies(c.weights, type, free != Free::kNothing);
  const memory::desc bias = c.bias.tensor ? c.bias.desc(type_of(*c.bias.tensor)) : memory::desc();
  const memory::desc source = lies(c.source, type, free == Free::kAll);
  const memory::desc result = lies(c.result, type_of(a.results[0]), free == Free::kAll);
  const dnnl::primitive_attr attributes = make_attributes(a, c);
  const auto direct = dnnl::algorithm::convolution_direct;
  switch (c.kind) {
    case Kind::kProduct: {
      const dnnl::matmul::primitive_desc d(engine, source, weights, bias, result, attributes);
      if (!has_rows_apart(a, c) || !is_plain_product(d.impl_info_str())) return finish<dnnl::matmul>(d, want);
      const memory::desc apart(c.source.sizes, type, Dims{DNNL_RUNTIME_DIM_VAL, 1});
      const dnnl::matmul::primitive_desc of_any(engine, apart, weights, bias, result, attributes, true);
      if (!of_any || std::string_view(of_any.impl_info_str()) != d.impl_info_str() || of_any.weights_desc() != d.weights_desc())
        return finish<dnnl::matmul>(d, want);
      Made made = finish<dnnl::matmul>(of_any, want);
      made.source = source;
      return made;
    }
    case Kind::kTransposed: {
      dnnl::deconvolution_forward::primitive_desc d(engine, dnnl::prop_kind::forward_inference,
                                                    dnnl::algorithm::deconvolution_direct, source, weights, bias, result,
                                                    c.stride, c.dilation, c.pad_low, c.pad_high, attributes);
      return finish<dnnl::deconvolution_forward>(d, want);
    }
    case Kind::kWeightGradient: {
      // oneDNN wants to be told of the convolution that it is a gradient of.
      const auto any = [&](const View& v) { return memory::desc(v.sizes, type, memory::format_tag::any); };
      const dnnl::convolution_forward::primitive_desc forward(engine, dnnl::prop_kind::forward_training, direct, any(c.source),
                                                              any(c.weights), any(c.result), c.stride, c.dilation, c.pad_low, c.pad_high);
      dnnl::convolution_backward_weights::primitive_desc d(engine, direct, source, weights, result, c.stride, c.dilation, c.pad_low,
                                                           c.pad_high, forward, attributes);
      return finish<dnnl::convolution_backward_weights>(d, want);
    }
    case Kind::kConvolution: break;
  }
  dnnl::convolution_forward::primitive_desc d(engine, dnnl::prop_kind::forward_inference, direct, source, weights, bias, result,
                                              c.stride, c.dilation, c.pad_low, c.pad_high, attributes);
  // This one multiplies what is not finite by the zeros that it fills up with: NaN where eager has an infinity.
  while (std::string_view(d.impl_info_str()) == "jit:avx512_core_amx" && d.next_impl()) {
  }
  return finish<dnnl::convolution_forward>(d, want);
}

// That a primitive made by this thread shares its work among: oneDNN asks the OpenMP that it is linked with.
int num_threads_of_openmp() {
  static const auto ask = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  return ask ? ask() : 0;
}

// All that make_anew reads.
std::string key_of(const AnchorDesc& a, const Contraction& c, Free free) {
  std::vector<int64_t> words{num_threads_of_openmp(), static_cast<int64_t>(c.kind), static_cast<int64_t>(free), a.op,
                             a.operands[0].dtype, a.results[0].dtype};
  const auto add_all = [&](const Dims& list) {
    words.push_back(static_cast<int64_t>(list.size()));
    words.insert(words.end(), list.begin(), list.end());
  };
  const auto add = [&](const View& view) {
    words.push_back(view.tensor ? view.tensor->dtype : -1);
    add_all(view.sizes), add_all(view.strides);
  };
  for (const View* view : {&c.source, &c.weights, &c.bias, &c.result}) add(*view);
  for (const Dims* list : {&c.stride, &c.dilation, &c.pad_low, &c.pad_high}) add_all(*list);
  for (size_t i = 0; i < a.post_ops.size(); ++i) {
    const PostOp& post = a.post_ops[i];
    words.insert(words.end(), {post.op, adds_in_place(a, post), std::bit_cast<int64_t>(post.alpha), std::bit_cast<int64_t>(post.beta)});
    add(c.post_operands[i]);
  }
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t)};
}

// What oneDNN answered. A model's layers are alike, and so are plans for sizes of one class, and it is asked of each product several times
// in a plan, 10 to 50 us each.
class Known {
 public:
  std::shared_ptr<const Made> find(const std::string& key, Want want) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(key);
    return found == all_.end() || (want == Want::kPrimitive && !found->second->primitive) ? nullptr : found->second;
  }
  void add(const std::string& key, std::shared_ptr<const Made> made) {
    const std::lock_guard lock(mutex_);
    if (all_.size() >= kMostPrimitives) all_.clear();
    all_[key] = std::move(made);
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::unordered_map<std::string, std::shared_ptr<const Made>> all_;
};

Made make_primitive(const AnchorDesc& a, const Contraction& c, Free free, Want want = Want::kPrimitive) {
  static Known* const known = new Known;  // threads may outlive what is static
  const std::string key = key_of(a, c, free);
  if (const auto found = known->find(key, want)) return *found;
  const auto made = std::make_shared<const Made>(make_anew(a, c, free, want));
  known->add(key, made);
  return *made;
}

// "ref:any"; of a transposed convolution, which is a convolution's gradient, "conv:any+ref:any".
bool is_reference(const std::string& implementation) {
  return implementation.rfind("ref", 0) == 0 || implementation.find("+ref") != std::string::npos;
}

// A product of patches that are copied for it. What follows it is computed one element after the other by the reference's functions: a
// GELU calls erff for each.
bool is_product_of_patches(const std::string& implementation) { return implementation.find("gemm") != std::string::npos; }

// Seen of oneDNN 3.2's brgconv:avx512_core_bf16, which takes channels of bf16 in pairs (conformance, conv/bf16/grouped/*/edges).
bool pairs_across_groups(const AnchorDesc& a, const std::string& implementation) {
  if (a.op != kOp_conv || a.operands[0].dtype != kDType_bf16 || a.groups <= 1 || implementation.rfind("brg", 0) != 0) return false;
  const int64_t channels = a.operands[0].sizes[1] / a.groups, results = a.results[0].sizes[1] / a.groups;
  return channels % 2 != 0 && (channels > 1 || results > 1);
}

bool is_contraction(uint32_t op) {
  return op == kOp_matmul || op == kOp_linear || op == kOp_conv || op == kOp_conv_grad_weight;
}

std::string implementation_of(const AnchorDesc& a, const Contraction& c, Free free) {
  try {
    return make_primitive(a, c, free, Want::kImplementation).implementation;
  } catch (const dnnl::error&) {
    return "ref: none";
  }
}

// What is laid out anew for the primitive: a constant weight once, where that was asked for. Anything, for each run, where what lies there
// would get the reference implementation, which is a thousand times slower, or a product of patches and a run of another kind is to be had.
Free freedom(const AnchorDesc& a, const Contraction& c) {
  const bool constant = c.kind != Kind::kWeightGradient && a.operands[1].weight != KRN_NONE_WEIGHT;
  if (constant && a.packed) return Free::kWeights;
  const std::string as_it_lies = implementation_of(a, c, Free::kNothing);
  if (constant) return is_reference(as_it_lies) ? Free::kWeights : Free::kNothing;
  if (c.kind == Kind::kProduct) return Free::kNothing;
  const auto rank = [](const std::string& name) { return is_reference(name) ? 2 : is_product_of_patches(name) ? 1 : 0; };
  Free best = Free::kNothing;
  int least = rank(as_it_lies);
  for (const Free free : {Free::kWeights, Free::kAll}) {
    if (least == 0 || (free == Free::kAll && !a.post_ops.empty())) break;  // an epilogue's operands lie as the result does
    if (const int its = rank(implementation_of(a, c, free)); its < least) best = free, least = its;
  }
  return best;
}

std::unique_ptr<codegen::Step> make_contraction(const AnchorDesc& a, const codegen::CompileContext& context) {
  const Contraction c = describe(a);
  const auto type = type_of(a.operands[0]);
  const bool gradient = c.kind == Kind::kWeightGradient, constant = !gradient && a.operands[1].weight != KRN_NONE_WEIGHT;
  std::shared_ptr<const PackedWeight> pack;
  Free free = freedom(a, c);
  Made made = make_primitive(a, c, free);
  if (constant && made.weights != c.weights.desc(type)) {
    pack = pack_weight(a.operands[1], c.weights.desc(type), made.weights, context);
    if (!pack) made = make_primitive(a, c, Free::kNothing);  // a child that holds no weights
  }
  auto step = std::make_unique<VendorStep>(std::move(made.primitive), made.scratchpad,
                                           "onednn " + made.implementation + " " + c.source.text() + " * " + c.weights.text());
  const TensorDesc &weights = gradient ? a.results[0] : a.operands[1], &result = gradient ? a.operands[1] : a.results[0];
  step->bind(DNNL_ARG_SRC, c.source.desc(type), a.operands[0], made.source);
  if (pack) {
    step->bind_pack(DNNL_ARG_WEIGHTS, std::move(pack));
  } else if (gradient) {
    step->bind_result(DNNL_ARG_DIFF_WEIGHTS, c.weights.desc(type), weights, made.weights);
  } else {
    step->bind(DNNL_ARG_WEIGHTS, c.weights.desc(type), weights, made.weights);
  }
  if (c.bias.tensor) step->bind(DNNL_ARG_BIAS, c.bias.desc(type_of(*c.bias.tensor)), *c.bias.tensor);
  if (gradient) step->bind(DNNL_ARG_DIFF_DST, c.result.desc(type_of(result)), result, made.result);
  else step->bind_result(DNNL_ARG_DST, c.result.desc(type_of(result)), result, made.result);
  for (size_t i = 0; i < a.post_ops.size(); ++i) {
    if (!c.post_operands[i].tensor || adds_in_place(a, a.post_ops[i])) continue;
    step->bind(DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(i)) | DNNL_ARG_SRC_1,
               c.post_operands[i].desc(type_of(a.post_ops[i].operand)), a.post_ops[i].operand);
  }
  return step;
}

class OneDnn final : public processor::Library {
 public:
  OneDnn(const processor::Machine& machine, bool packed, bool drops_nan)
      : native_bf16_(machine.native_bf16), packed_(packed), drops_nan_(drops_nan), num_threads_(machine.info.num_threads) {}

  bool takes(const AnchorDesc& anchor, std::string& why_not) const override {
    return vendor_takes(anchor, native_bf16_, why_not, num_threads_);
  }
  bool takes_post_op(const AnchorDesc& anchor, const PostOp& post) const override {
    return (drops_nan_ || !vendor_drops_nan(post)) && vendor_takes_post_op(anchor, post);
  }
  std::unique_ptr<codegen::Step> make_step(const AnchorDesc& anchor, const codegen::CompileContext& context) const override {
    AnchorDesc wanted = anchor;
    wanted.packed = packed_;
    return make_vendor_step(wanted, context, num_threads_);
  }
  std::string token() const override { return std::string(packed_ ? "" : "\nplain weights") + (drops_nan_ ? "\nfast epilogues" : ""); }

 private:
  const bool native_bf16_, packed_, drops_nan_;
  const int num_threads_;
};

}  // namespace

const dnnl::engine& vendor_engine() {
  static const auto* engine = [] {
    dnnl::set_primitive_cache_capacity(kMostPrimitives);
    return new dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return *engine;
}

const std::string& vendor_obstacle() {
  static const auto* obstacle = new std::string(find_obstacle());
  return *obstacle;
}

bool vendor_takes(const AnchorDesc& a, bool native_bf16, std::string& why_not, int num_threads) {
  if (!vendor_obstacle().empty()) {
    why_not = vendor_obstacle();
    return false;
  }
  if (!is_contraction(a.op) && a.op != kOp_grouped_matmul && a.op != kOp_lstm && a.op != kOp_gru) {
    why_not = "oneDNN is used for contractions and recurrent cells only";
    return false;
  }
  const uint8_t dtype = a.operands[0].dtype;
  if (dtype != kDType_f32 && !(dtype == kDType_bf16 && native_bf16)) {
    why_not = dtype == kDType_bf16 ? "this CPU has no bf16 multiply" : "oneDNN is used for f32 and bf16 only";
    return false;
  }
  try {
    if (a.op == kOp_grouped_matmul) return grouped_takes(a, num_threads, why_not);
    if (!is_contraction(a.op)) return rnn_takes(a, why_not);
    const Contraction c = describe(a);
    const Made made = make_primitive(a, c, freedom(a, c), Want::kImplementation);
    if (pairs_across_groups(a, made.implementation)) {
      why_not = "oneDNN's " + made.implementation + " multiplies a channel of the next group by zero, which is NaN where it is infinite";
      return false;
    }
    if (!is_reference(made.implementation)) return true;
    why_not = "oneDNN has only " + made.implementation + " for this shape";
  } catch (const dnnl::error& e) {
    why_not = std::string("oneDNN refuses it: ") + e.what();
  } catch (const kit::Error& e) {
    why_not = e.what();
  }
  return false;
}

// oneDNN makes these of maxps and minps, which answer a NaN with the bound.
bool vendor_drops_nan(const PostOp& post) { return post.op == kOp_relu || post.op == kOp_clamp || post.op == kOp_hardsigmoid; }

bool vendor_takes_post_op(const AnchorDesc& a, const PostOp& post) {
  if (!is_contraction(a.op) || a.op == kOp_conv_grad_weight || a.post_ops.size() >= 6) return false;
  const bool binary = binary_of(post.op) != dnnl::algorithm::undef && post.operand.present() &&
                      (post.operand.dtype == kDType_f32 || post.operand.dtype == kDType_bf16);
  if (!find_eltwise(post.op) && !binary) return false;
  AnchorDesc longer = a;
  longer.post_ops.push_back(post);
  // Not the result's own memory: what oneDNN has for `sum` says nothing about other addends.
  if (post.operand.present()) longer.post_ops.back().operand.buffer = a.results[0].buffer + 1;
  std::string why_not;
  if (!vendor_takes(longer, true, why_not)) return false;  // an epilogue may leave nothing but the reference implementation
  if (longer.op != kOp_conv) return true;
  const Contraction c = describe(longer);
  return !is_product_of_patches(make_primitive(longer, c, freedom(longer, c), Want::kImplementation).implementation);
}

std::unique_ptr<codegen::Step> make_vendor_step(const AnchorDesc& a, const codegen::CompileContext& context, int num_threads) {
  try {
    if (a.op == kOp_grouped_matmul) return make_grouped(a, num_threads, context);
    return is_contraction(a.op) ? make_contraction(a, context) : make_rnn(a, context);
  } catch (const dnnl::error& e) {
    throw kit::Error(e.status == dnnl_out_of_memory ? KRN_STATUS_exhausted : KRN_STATUS_unsupported,
                     std::string("oneDNN cannot make this anchor: ") + e.what() + "; leave the node to eager");
  }
}

std::unique_ptr<const processor::Library> make_onednn(const processor::Machine& machine, const krn_policy& policy, bool packed) {
  return std::make_unique<OneDnn>(machine, packed, policy.numerics == KRN_NUMERICS_FAST);
}

}  // namespace keirin::cpu
