// SPDX-License-Identifier: Apache-2.0
#include "core/tune/verify.h"

#include <string.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "abi/planted.h"
#include "core/base/overlap.h"
#include "core/tune/elements.h"

namespace keirin {
namespace {

// The elements of a tensor, in host memory and row-major order: the tensor's own where they lie so, else a copy.
class Elements {
 public:
  Elements(Elements&&) = default;  // a copy would point into the other one's
  static Result<Elements> of(const TensorRef& tensor, TensorServices& services) {
    Elements out;
    out.tensor_ = tensor;
    if (tensor->device().kind != Device::kCpu) {
      KRN_TRY_LET(out.tensor_, services.to_device(tensor, Device{}));
    }
    out.dtype_ = out.tensor_->dtype();
    out.size_ = static_cast<size_t>(num_elements(*out.tensor_));
    out.bytes_ = static_cast<size_t>(dtype_bytes(out.dtype_));
    out.data_ = static_cast<const char*>(out.tensor_->data());
    if (is_row_major(*out.tensor_)) return out;
    out.copy_.resize(out.size_ * out.bytes_);
    each_element_parallel(*out.tensor_, services, [to = out.copy_.data(), bytes = out.bytes_](int64_t i, void* at) {
      memcpy(to + static_cast<size_t>(i) * bytes, at, bytes);
    });
    out.data_ = out.copy_.data();
    return out;
  }

  size_t size() const { return size_; }
  size_t bytes() const { return size_ * bytes_; }
  double operator[](size_t i) const { return load_element(dtype_, address(i)); }
  const char* address(size_t i) const { return data_ + i * bytes_; }

  // fn(load), load(i) being this[i], for loops over all of them.
  template <class Fn>
  decltype(auto) with_values(Fn&& fn) const { return with_loader(dtype_, data_, std::forward<Fn>(fn)); }

 private:
  Elements() = default;
  static bool is_row_major(const Tensor& tensor) {
    int64_t step = 1;
    for (int64_t d = tensor.rank() - 1; d >= 0; step *= tensor.sizes()[d], --d)
      if (tensor.sizes()[d] > 1 && tensor.strides()[d] != step) return false;
    return true;
  }

  TensorRef tensor_;
  DType dtype_ = DType::kNone;
  size_t size_ = 0, bytes_ = 0;
  const char* data_ = nullptr;
  std::vector<char> copy_;
};

std::string name_of(const std::vector<std::string>& names, size_t i) {
  return i < names.size() ? names[i] : "output " + std::to_string(i);
}

std::string dims_text(const int64_t* dims, int64_t rank) {
  std::string text = "[";
  for (int64_t i = 0; i < rank; ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

// The same, read when somebody asks.
class LazyElements {
 public:
  LazyElements(TensorRef tensor, TensorServices& services) : tensor_(std::move(tensor)), services_(services) {}
  const TensorRef& tensor() const { return tensor_; }
  Result<const Elements*> read() {
    if (!elements_) {
      KRN_TRY_LET(Elements elements, Elements::of(tensor_, services_));
      elements_.emplace(std::move(elements));
    }
    return &*elements_;
  }

 private:
  TensorRef tensor_;
  TensorServices& services_;
  std::optional<Elements> elements_;
};

// One output under judgement.
class OutputJudge {
 public:
  OutputJudge(const JudgeOptions& options, LazyElements& referee, LazyElements& eager, const TensorRef& candidate, bool must_vary,
              TensorServices& services)
      : options_(options), dtype_(eager.tensor()->dtype()), referee_(referee), eager_(eager), candidate_(candidate, services),
        must_vary_(must_vary), services_(services) {}

  Result<OutputVerdict> run() {
    if (is_right_there()) return verdict_;
    verdict_ = {};
    KRN_TRY_LET(r_, referee_.read());
    KRN_TRY_LET(e_, eager_.read());
    KRN_TRY_LET(c_, candidate_.read());
    if (judges_bits()) judge_bits();
    else judge_floats();
    if (verdict_.right && must_vary_) look_for_proof();
    return std::move(verdict_);
  }

 private:
  bool judges_bits() const { return options_.strict || !is_float(dtype_); }

  // By sums that the device takes, where these tell that it is right. What is wrong, and where, is for those who read the elements.
  bool is_right_there() {
    const TensorRef &r = referee_.tensor(), &e = eager_.tensor(), &c = candidate_.tensor();
    if (judges_bits()) {
      // As 64-bit floats integers are equal where they are, up to 2^53.
      if (options_.strict && is_float(dtype_)) return false;
      const auto errors = errors_there(e, r, c, services_);
      verdict_.right = errors && errors->changed == 0 && errors->scale < 0x1p53;
      return verdict_.right && !(errors->constant && must_vary_);
    }
    const auto errors = errors_there(r, e, c, services_, dtype_, options_.ulps);
    if (!errors) return false;
    verdict_.right = true;
    judge_errors(*errors, static_cast<double>(num_elements(*r)));
    return verdict_.right && !(errors->constant && must_vary_);
  }

  void wrong(int64_t index, std::string reason) {
    verdict_.right = false;
    verdict_.worst_index = index;
    verdict_.reason = std::move(reason);
  }

  void judge_bits() {
    verdict_.right = true;
    if (e_->bytes() == 0 || memcmp(e_->address(0), c_->address(0), e_->bytes()) == 0) return;
    const size_t bytes = e_->bytes() / e_->size();
    int64_t different = 0, first = -1;
    for (size_t i = 0; i < e_->size(); ++i)
      if (memcmp(e_->address(i), c_->address(i), bytes) != 0) {
        if (different++ == 0) first = static_cast<int64_t>(i);
        verdict_.max_error = std::max(verdict_.max_error, std::abs((*c_)[i] - (*e_)[i]));
      }
    const auto at = static_cast<size_t>(first);
    wrong(first, std::to_string(different) + " of " + std::to_string(e_->size()) + " elements differ from eager, first at " +
                     std::to_string(first) + ": " + number_text((*c_)[at]) + ", eager " + number_text((*e_)[at]));
  }

  // Whether an element is settled by what is not finite, well or badly.
  enum class Special { kNo, kRight, kWrong };
  static Special special_of(double r, double e, double c) {
    if (std::isfinite(r) && std::isfinite(e) && std::isfinite(c)) return Special::kNo;
    const auto same = [](double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; };
    if (same(e, c) || same(r, c) || (KRN_PLANTED(judge_takes_nan) && std::isnan(c))) return Special::kRight;
    if (!std::isfinite(e) && std::isfinite(r) && std::isfinite(c)) return Special::kNo;  // better than eager: judged by its error
    return Special::kWrong;
  }

  // What a slice of the elements shows.
  struct Slice {
    ElementErrors errors;
    int64_t special = -1;  // the first that is settled badly
  };

  template <class R, class E, class C>
  Slice look_at(int64_t begin, int64_t end, R of_referee, E of_eager, C of_candidate) const {
    Slice out;
    ElementErrors& errors = out.errors;
    for (int64_t at = begin; at < end; ++at) {
      const auto i = static_cast<size_t>(at);
      const double r = of_referee(i), e = of_eager(i), c = of_candidate(i);
      if (const Special special = special_of(r, e, c); special != Special::kNo) {
        if (special == Special::kWrong && out.special < 0) out.special = at;
        continue;
      }
      ++errors.judged;
      const double magnitude = std::abs(r), error_c = std::abs(c - r);
      const double error_e = std::isfinite(e) ? std::abs(e - r) : 0;
      errors.scale = std::max(errors.scale, magnitude);
      errors.squares += magnitude * magnitude;
      errors.first.squares += error_e * error_e;
      errors.second.squares += error_c * error_c;
      errors.first.worst = std::max(errors.first.worst, error_e);
      errors.second.worst = std::max(errors.second.worst, error_c);
      if (error_c <= errors.worst_beyond) continue;
      const double beyond = error_c - options_.ulps * ulp_at(dtype_, magnitude);
      if (beyond > errors.worst_beyond) errors.worst_beyond = beyond, errors.worst_index = at;
    }
    return out;
  }

  // Slice by slice on several threads, and then in their order, so that sums are the same whoever took them.
  void judge_floats() {
    verdict_.right = true;
    const auto n = static_cast<int64_t>(r_->size());
    std::vector<Slice> slices(static_cast<size_t>((n + kElementsOfSlice - 1) / kElementsOfSlice));
    services_.parallel_for(static_cast<int64_t>(slices.size()), 1, [&](int64_t first, int64_t last) {
      for (int64_t k = first; k < last; ++k) {
        const auto look = [&](auto r, auto e, auto c) {
          slices[static_cast<size_t>(k)] = look_at(k * kElementsOfSlice, std::min(n, (k + 1) * kElementsOfSlice), r, e, c);
        };
        // The loop is made for each dtype that each of the three may have.
        r_->with_values([&](auto r) { e_->with_values([&](auto e) { c_->with_values([&](auto c) { look(r, e, c); }); }); });
      }
    });
    ElementErrors all;
    int64_t special = -1;
    for (const Slice& slice : slices) {
      const ElementErrors& errors = slice.errors;
      all.judged += errors.judged;
      if (special < 0) special = slice.special;
      all.scale = std::max(all.scale, errors.scale);
      all.squares += errors.squares, all.first.squares += errors.first.squares, all.second.squares += errors.second.squares;
      all.first.worst = std::max(all.first.worst, errors.first.worst);
      all.second.worst = std::max(all.second.worst, errors.second.worst);
      if (errors.worst_beyond > all.worst_beyond) all.worst_beyond = errors.worst_beyond, all.worst_index = errors.worst_index;
    }
    if (special >= 0) {
      const auto i = static_cast<size_t>(special);
      wrong(special, "element " + std::to_string(i) + " is " + number_text((*c_)[i]) + ", eager has " + number_text((*e_)[i]) + ", fp64 " +
                         number_text((*r_)[i]));
    }
    judge_errors(all, num_different());
  }

  // `different`: how many values the referee has.
  void judge_errors(const ElementErrors& errors, double different) {
    const double unit = errors.scale > 0 ? errors.scale : 1, n = errors.judged > 0 ? static_cast<double>(errors.judged) : 1;
    const double rms_c = std::sqrt(errors.second.squares / n), rms_e = std::sqrt(errors.first.squares / n);
    verdict_.max_error = errors.second.worst / unit;
    verdict_.eager_error = errors.first.worst / unit;
    verdict_.rms_error = rms_c / unit;
    verdict_.eager_rms_error = rms_e / unit;
    if (!verdict_.right) return;
    if (errors.worst_index >= 0) verdict_.worst_index = errors.worst_index;
    if (options_.error_budget > 0 && verdict_.max_error <= options_.error_budget) return;
    const bool narrow = dtype_ == DType::k_f16 || dtype_ == DType::k_bf16;
    // The worst of few elements is a matter of luck on both sides: with n of them the ratio of two worst errors of equal
    // distribution spreads like 1 / sqrt(n), so small outputs get more room and large ones none. Equal elements are one.
    const double k = (narrow ? options_.k_narrow : options_.k) * (1 + 3 / std::sqrt(std::min(n, different)));
    // Elements of one output are sums of terms of like size: what the order of summation does to a small one is measured by the
    // large ones. 16-bit results are accumulated in f32, and their ulp hides that.
    const double rms_r = std::sqrt(errors.squares / n);
    const double one_sum = narrow ? 0 : 0.3 * std::sqrt(static_cast<double>(options_.summands)) * ulp_at(dtype_, 1) / 2 * rms_r;
    const double summation = narrow ? 0 : std::max(options_.summation_ulps * ulp_at(dtype_, errors.scale), 12 * one_sum);
    if (errors.worst_beyond > k * errors.first.worst + summation) {
      wrong(verdict_.worst_index, text_of_worst(errors.first.worst));
    } else if (rms_c > k * rms_e + options_.ulps * ulp_at(dtype_, rms_r) + one_sum) {
      wrong(verdict_.worst_index, "the root mean square error is " + number_text(rms_c) + ", eager's is " + number_text(rms_e));
    }
  }

  std::string text_of_worst(double worst_of_eager) const {
    if (!c_) return {};  // the elements were not read
    const auto i = static_cast<size_t>(verdict_.worst_index);
    return "element " + std::to_string(i) + " is " + number_text((*c_)[i]) + ", fp64 has " + number_text((*r_)[i]) + ": error " +
           number_text(std::abs((*c_)[i] - (*r_)[i])) + ", eager's worst is " + number_text(worst_of_eager);
  }

  // How many values the referee has; where they are many, that they differ is taken for granted.
  double num_different() const {
    constexpr size_t kFew = 4096;
    if (r_->size() > kFew) return static_cast<double>(r_->size());
    std::vector<double> values;
    for (size_t i = 0; i < r_->size(); ++i)
      if (std::isfinite((*r_)[i])) values.push_back((*r_)[i]);
    std::sort(values.begin(), values.end());
    return static_cast<double>(std::max<ptrdiff_t>(1, std::unique(values.begin(), values.end()) - values.begin()));
  }

  // A constant output would also be passed by a plan that writes a constant.
  void look_for_proof() {
    if (r_->size() == 0 || KRN_PLANTED(judge_takes_constants)) return;
    const double first = (*r_)[0];
    size_t same = 1;
    while (same < r_->size() && ((*r_)[same] == first || (std::isnan((*r_)[same]) && std::isnan(first)))) ++same;
    // A single number varies with the inputs, not within the output: only a zero proves nothing.
    if (same < r_->size() || (r_->size() == 1 && first != 0 && std::isfinite(first))) return;
    verdict_.vacuous = true;
    verdict_.reason = "the output of the 64-bit reference is constant (" + number_text(first) + ")";
  }

  const JudgeOptions& options_;
  const DType dtype_;
  LazyElements &referee_, &eager_;
  LazyElements candidate_;
  const bool must_vary_;
  TensorServices& services_;
  const Elements *r_ = nullptr, *e_ = nullptr, *c_ = nullptr;  // once they are read
  OutputVerdict verdict_;
};

// What can be said without reading an element; empty if nothing is wrong.
std::string wrong_form(const Tensor& eager, const Tensor& candidate) {
  if (candidate.dtype() != eager.dtype())
    return "the dtype is " + std::string(dtype_name(candidate.dtype())) + ", eager has " + std::string(dtype_name(eager.dtype()));
  if (!same_sizes(candidate, eager))
    return "the sizes are " + dims_text(candidate.sizes(), candidate.rank()) + ", eager has " + dims_text(eager.sizes(), eager.rank());
  if (!same_strides(candidate, eager))
    return "the strides are " + dims_text(candidate.strides(), candidate.rank()) + ", eager has " +
           dims_text(eager.strides(), eager.rank());
  return {};
}

int64_t longest_dot_product(const Graph& graph) {
  int64_t longest = 0;
  for (const Op& op : graph.ops) {
    if (op.code == OpCode::k_matmul || op.code == OpCode::k_linear || op.code == OpCode::k_grouped_matmul) {
      longest = std::max(longest, graph.type(op.operands[0]).sizes.back());
    } else if (op.code == OpCode::k_conv) {
      const Type& weight = graph.type(op.operands[1]);  // [out, in / groups, kernel..], transposed [in, out / groups, kernel..]
      const int64_t outputs = op.b(AttrKey::k_transposed) ? weight.sizes[1] * op.i(AttrKey::k_groups) : weight.sizes[0];
      longest = std::max(longest, weight.num_elements() / std::max<int64_t>(outputs, 1));
    } else if (op.code == OpCode::k_conv_grad_weight) {
      const Type& grad = graph.type(op.operands[1]);
      longest = std::max(longest, grad.num_elements() / std::max<int64_t>(grad.sizes[1], 1));
    }
  }
  return longest;
}

// One unit of the last place at 1 of the narrowest float of the graph.
double widest_ulp(const Graph& graph) {
  double eps = 0;
  for (const Value& value : graph.values)
    if (is_float(value.type.dtype)) eps = std::max(eps, ulp_at(value.type.dtype, 1));
  return eps;
}

}  // namespace

JudgeOptions judge_options(const Graph& graph, Numerics numerics, double error_budget) {
  JudgeOptions out;
  out.summands = longest_dot_product(graph);
  out.strict = numerics == Numerics::kStrict;
  if (numerics == Numerics::kFast) out.error_budget = error_budget;
  return out;
}

bool only_numbers_differ(const Judgement& judgement, const JudgeOptions& judging) {
  return !judgement.right && !judging.strict && !judgement.outputs.empty() &&
         std::ranges::all_of(judgement.outputs, [](const OutputVerdict& v) { return v.right || v.worst_index >= 0; });
}

double roundings_of_sum(int64_t terms) { return 1 + 0.3 * std::sqrt(static_cast<double>(terms)); }

double eager_bound(const Graph& graph, bool tf32) {
  double eps = widest_ulp(graph);
  const bool narrow = eps > ulp_at(DType::k_f32, 1);
  if (tf32 && !narrow) eps = std::max(eps, ulp_at(DType::k_f16, 1));  // both have 10 bits behind the point
  const double operators = 4 * std::sqrt(static_cast<double>(graph.ops.size()));
  const double sums = narrow ? 0 : 4 * 0.3 * std::sqrt(static_cast<double>(longest_dot_product(graph)));
  return eps * (8 + operators) * (1 + sums);
}

double roundings_of_sums(const Graph& graph) {
  if (widest_ulp(graph) > ulp_at(DType::k_f32, 1)) return 1;
  int64_t longest = longest_dot_product(graph);
  for (const Op& op : graph.ops)
    if (op.code == OpCode::k_sum || op.code == OpCode::k_mean || op.code == OpCode::k_var)
      longest =
          std::max(longest, graph.type(op.operands[0]).num_elements() / std::max<int64_t>(graph.type(op.results[0]).num_elements(), 1));
  return roundings_of_sum(longest);
}

Result<std::string> find_difference(std::span<const TensorRef> referee, std::span<const TensorRef> other, TensorServices& services,
                                    const Nearness& nearness, const std::vector<std::string>& names) {
  if (referee.size() != other.size())
    return "there are " + std::to_string(other.size()) + " tensors, not " + std::to_string(referee.size());
  for (size_t i = 0; i < referee.size(); ++i) {
    const std::string where = name_of(names, i) + ": ";
    if (!referee[i] || !other[i]) {
      if (!referee[i] && !other[i]) continue;
      return where + "one of them is missing";
    }
    if (!same_sizes(*referee[i], *other[i]))
      return where + "the sizes are " + dims_text(other[i]->sizes(), other[i]->rank()) + ", not " +
             dims_text(referee[i]->sizes(), referee[i]->rank());
    const bool floats = is_float(referee[i]->dtype());
    if (!floats && !nearness.exact_rest) continue;
    if (const auto errors = errors_there(referee[i], other[i], services)) {
      const double unit = errors->scale > 0 ? errors->scale : 1;
      if (errors->scale < 0x1p53 && errors->second.worst <= (floats ? nearness.bound * unit : 0)) continue;
    }
    KRN_TRY_LET(const Elements r, Elements::of(referee[i], services));
    KRN_TRY_LET(const Elements o, Elements::of(other[i], services));
    double scale = 0, allowed = 0;
    const auto first_far = [&](auto theirs, auto ours) {
      for (size_t k = 0; k < r.size(); ++k)
        if (const double x = std::abs(theirs(k)); std::isfinite(x)) scale = std::max(scale, x);
      if (scale == 0) scale = 1;
      allowed = floats ? nearness.bound * scale : 0;
      for (size_t k = 0; k < r.size(); ++k) {
        const double a = theirs(k), b = ours(k);
        const bool finite = std::isfinite(a) && std::isfinite(b);
        const bool same = a == b || (std::isnan(a) && std::isnan(b));
        if (!same && !(finite && std::abs(a - b) <= allowed) && (finite || nearness.exact_rest)) return k;
      }
      return r.size();
    };
    const size_t far = r.with_values([&](auto theirs) { return o.with_values([&](auto ours) { return first_far(theirs, ours); }); });
    if (far == r.size()) continue;
    const double error = std::abs(r[far] - o[far]) / scale;
    return where + "element " + std::to_string(far) + " is " + number_text(o[far]) + ", not " + number_text(r[far]) +
           (floats && std::isfinite(error)
                ? " (" + number_text(error) + " of the largest; " + number_text(nearness.bound) + " would be allowed)"
                : "");
  }
  return std::string();
}

struct Judge::Impl {
  struct Output {
    LazyElements referee, eager;
  };
  TensorServices& services;
  JudgeOptions options;
  std::vector<Output> outputs;  // whose elements are read by the first candidate that asks for them
};

Judge::Judge(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Judge::Judge(Judge&&) noexcept = default;
Judge::~Judge() = default;

Result<Judge> Judge::make(std::span<const TensorRef> referee, std::span<const TensorRef> eager, TensorServices& services,
                          JudgeOptions options) {
  if (referee.size() != eager.size())
    return Status(Code::k_invalid_input, "judge: the 64-bit reference and eager have different numbers of outputs");
  auto impl = std::make_unique<Impl>(services, std::move(options));
  for (size_t i = 0; i < eager.size(); ++i) {
    if (!referee[i] || !eager[i] || !same_sizes(*referee[i], *eager[i]))
      return Status(Code::k_invalid_input,
                    "judge: output " + std::to_string(i) + " is missing or has another shape than that of the 64-bit reference");
    impl->outputs.push_back({{referee[i], services}, {eager[i], services}});
  }
  return Judge(std::move(impl));
}

Result<Judgement> Judge::operator()(std::span<const TensorRef> candidate) const {
  const JudgeOptions& options = impl_->options;
  if (candidate.size() != impl_->outputs.size())
    return Status(Code::k_invalid_input, "judge: eager and candidate have different numbers of outputs");
  Judgement judgement;
  judgement.right = true;
  bool vacuous = false;
  std::string first_wrong, first_vacuous;
  for (size_t i = 0; i < candidate.size(); ++i) {
    auto& [referee, eager] = impl_->outputs[i];
    if (!candidate[i]) return Status(Code::k_invalid_input, "judge: output " + std::to_string(i) + " is missing");
    OutputVerdict verdict;
    verdict.reason = wrong_form(*eager.tensor(), *candidate[i]);
    if (verdict.reason.empty()) {
      KRN_TRY_LET(verdict, OutputJudge(options, referee, eager, candidate[i], i < options.must_vary, impl_->services).run());
    }
    const std::string where = name_of(options.names, i) + ": " + verdict.reason;
    if (!verdict.right && first_wrong.empty()) first_wrong = where;
    if (verdict.vacuous && first_vacuous.empty()) first_vacuous = where;
    judgement.right = judgement.right && verdict.right;
    vacuous = vacuous || verdict.vacuous;
    judgement.max_error = std::max(judgement.max_error, verdict.max_error);
    judgement.eager_error = std::max(judgement.eager_error, verdict.eager_error);
    judgement.outputs.push_back(std::move(verdict));
  }
  judgement.verified = judgement.right && !vacuous;
  judgement.reason = !first_wrong.empty() ? first_wrong : first_vacuous;
  return judgement;
}

Result<Judgement> judge(std::span<const TensorRef> referee, std::span<const TensorRef> eager,
                        std::span<const TensorRef> candidate, TensorServices& services, const JudgeOptions& options) {
  KRN_TRY_LET(const Judge judge, Judge::make(referee, eager, services, options));
  return judge(candidate);
}

}  // namespace keirin
