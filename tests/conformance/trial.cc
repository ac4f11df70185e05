// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/trial.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>

#include "core/eager/rows/graph_calls.h"
#include "core/ops/table.h"
#include "core/tune/verify.h"
#include "tests/conformance/formula.h"
#include "tests/conformance/values.h"

namespace keirin::conformance {
namespace {

// FNV-1a of the name: the same values in every build and order.
uint64_t seed_of(const std::string& name) {
  uint64_t h = 0xcbf29ce484222325u;
  for (char c : name) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return h;
}

std::string text(double v) {
  char out[40];
  std::snprintf(out, sizeof out, "%.17g", v);
  return out;
}

class Trial {
 public:
  Trial(const Case& c, Subject& subject, TensorServices& services) : c_(c), subject_(subject), services_(services) {}

  std::vector<Outcome> run() {
    bool edges = false;
    for (const Feed& f : c_.feeds) edges = edges || (f.edges && c_.graph.type(f.value).dtype != DType::k_bool);
    std::vector<std::string> sets{"random"};
    if (edges && !c_.large) sets.push_back("edges");
    for (const std::string& set : sets) {
      begin(set);
      if (Status s = try_set(set == "edges"); !s.ok()) fail(s);
      outcomes_.push_back(outcome_);
    }
    // A kernel on a GPU has no way to say it: there the caller's program is at fault, as with LibTorch's own.
    if (!compiled_ || !compiled_->claimed || subject_.on_gpu()) return std::move(outcomes_);
    for (bad_ = 0; bad_ < static_cast<int>(c_.feeds.size()); ++bad_) {
      const Feed& feed = c_.feeds[static_cast<size_t>(bad_)];
      if ((feed.fill != Feed::kIndex && feed.fill != Feed::kDistinct) || c_.graph.values[feed.value].kind != ValueKind::kInput) continue;
      begin("bad_index");
      const Result<bool> tried = try_bad_index();
      if (!tried.ok()) fail(tried.status());
      else if (!*tried) continue;
      outcomes_.push_back(outcome_);
    }
    return std::move(outcomes_);
  }

 private:
  void begin(const std::string& set) { outcome_ = {c_.name + "/" + set, Outcome::kPassed, {}, false, false}; }
  void fail(std::string why) {
    outcome_.verdict = Outcome::kFailed;
    outcome_.reason = std::move(why);
  }
  void fail(const Status& status) {
    fail(status.text());
    outcome_.died = status.code() == Code::k_crashed || status.code() == Code::k_timeout || status.code() == Code::k_corrupt;
  }

  Status try_set(bool edges) {
    KRN_TRY(make_inputs(edges));
    if (!compiled_.has_value() || !constants_.empty()) {  // constants may be baked in
      KRN_TRY_LET(compiled_, subject_.compile(c_, lent_constants_));
    }
    if (!compiled_->claimed) {
      outcome_.verdict = Outcome::kUnclaimed;
      outcome_.reason = compiled_->why;
      return {};
    }
    std::vector<GuardedTensor> outputs;
    for (const Output& o : c_.graph.outputs) outputs.emplace_back(c_.graph.type(o.value), c_.shifted);
    std::vector<Subject::Fed> inputs(c_.graph.values.size());
    for (size_t i = 0; i < c_.feeds.size(); ++i) inputs[c_.feeds[i].value] = {&tensors_[i], &lent_[i]};
    KRN_TRY_LET(const std::string damage, subject_.run(*compiled_, inputs, outputs));
    if (!damage.empty()) return fail(damage), Status();
    // A second run finds the first one's workspace and memory.
    std::vector<GuardedTensor> again;
    for (const Output& o : c_.graph.outputs) again.emplace_back(c_.graph.type(o.value), c_.shifted);
    KRN_TRY_LET(const std::string later_damage, subject_.run(*compiled_, inputs, again));
    if (!later_damage.empty()) return fail("second run: " + later_damage), Status();
    for (size_t o = 0; o < outputs.size(); ++o)
      if (!outputs[o].same_elements(again[o])) return fail("output " + std::to_string(o) + " differs between two runs"), Status();
    KRN_TRY(ask_eager());
    for (size_t o = 0; o < outputs.size() && outcome_.verdict == Outcome::kPassed; ++o) {
      check_bools(outputs[o]);
      if (c_.law == Law::kFormula) judge_formula(outputs[o]);
      else if (c_.law != Law::kError) judge_bits(outputs[o], o);
      else KRN_TRY(judge_error(outputs[o], o));
    }
    return {};
  }

  // Where eager raises an error the run fails, unless the plugin has no way to say it: then the host asks eager, which names it. Nothing
  // but the outputs may be touched. False where eager takes the index, or there is none.
  Result<bool> try_bad_index() {
    KRN_TRY(make_inputs(false));
    const auto eager = evaluate(c_.graph, nullptr, inputs_, constants_);
    if (eager.ok()) return false;
    if (!constants_.empty()) {
      KRN_TRY_LET(compiled_, subject_.compile(c_, lent_constants_));
    }
    std::vector<GuardedTensor> outputs;
    for (const Output& o : c_.graph.outputs) outputs.emplace_back(c_.graph.type(o.value), c_.shifted);
    std::vector<Subject::Fed> inputs(c_.graph.values.size());
    for (size_t i = 0; i < c_.feeds.size(); ++i) inputs[c_.feeds[i].value] = {&tensors_[i], &lent_[i]};
    const Result<std::string> damage = subject_.run(*compiled_, inputs, outputs);
    if (damage.ok() && !damage->empty()) fail(*damage);
    else if (damage.ok() && !subject_.may_answer_bad_index()) fail("the plugin answers where eager says: " + eager.status().message().what);
    else if (!damage.ok() && damage.status().code() != Code::k_invalid_input && !subject_.may_answer_bad_index())
      fail("an index out of range ends as " + damage.status().text());
    return true;
  }

  Status make_inputs(bool edges) {
    tensors_.clear(), lent_.clear(), logical_.clear(), constants_.clear(), inputs_.clear(), lent_constants_.clear();
    for (size_t i = 0; i < c_.feeds.size(); ++i) {
      const Feed& feed = c_.feeds[i];
      const Value& value = c_.graph.values[feed.value];
      const bool constant = value.kind == ValueKind::kConstant;
      logical_.push_back(fill(value.type, feed, edges, seed_of(c_.name) + i));
      if (bad_ == static_cast<int>(i)) spoil(logical_.back(), value.type.dtype, feed.bound);
      tensors_.emplace_back(value.type, c_.shifted && !constant);
      const auto size = static_cast<size_t>(dtype_bytes(value.type.dtype));
      for (int64_t k = 0; k < tensors_.back().num_elements(); ++k)
        tensors_.back().set(k, logical_.back().data() + static_cast<size_t>(k) * size);
      tensors_.back().seal();
      KRN_TRY_LET(TensorRef view, tensors_.back().view(services_));
      (constant ? constants_ : inputs_).push_back(std::move(view));
      KRN_TRY_LET(Lent lent, subject_.lend(tensors_.back()));
      if (constant) lent_constants_.push_back(lent);
      lent_.push_back(std::move(lent));
    }
    return {};
  }

  // One index, anywhere, just past either end or far away.
  void spoil(std::vector<uint8_t>& elements, DType dtype, int64_t bound) const {
    const uint64_t seed = seed_of(c_.name + "/bad_index");
    const auto size = static_cast<size_t>(dtype_bytes(dtype));
    if (elements.empty()) return;
    const int64_t far = dtype == DType::k_i64 ? int64_t{1} << 62 : int64_t{1} << 30;
    const int64_t bad[] = {bound, -bound - 1, far, -far};
    put_integer(dtype, bad[seed % 4], elements.data() + seed / 4 % (elements.size() / size) * size);
  }

  // Eager's answer in the graph's own dtypes, row-major, and for floats the referee's in fp64.
  Status ask_eager() {
    eager_.clear(), referee_.clear();
    KRN_TRY_LET(const std::vector<TensorRef> own, evaluate(c_.graph, nullptr, inputs_, constants_));
    KRN_TRY(gather(own, eager_, false));
    if (c_.law != Law::kError) return {};
    CallOptions wide;
    wide.float_dtype = DType::k_f64;
    KRN_TRY_LET(const std::vector<TensorRef> exact, evaluate(c_.graph, nullptr, inputs_, constants_, wide));
    return gather(exact, referee_, true);
  }

  Status gather(const std::vector<TensorRef>& from, std::vector<TensorRef>& to, bool wide) {
    for (size_t o = 0; o < from.size(); ++o) {
      const Type& type = c_.graph.type(c_.graph.outputs[o].value);
      KRN_TRY_LET(TensorRef t,
                  services_.allocate({wide && is_float(type.dtype) ? DType::k_f64 : type.dtype, type.sizes.vec(), type.strides.vec(), {}}));
      if (from[o]->dtype() != t->dtype())
        return Status(Code::k_internal, "eager answers dtype " + std::string(dtype_name(from[o]->dtype())));
      KRN_TRY(services_.copy(t, from[o]));
      to.push_back(std::move(t));
    }
    return {};
  }

  // A tensor of the graph's strides, element by element.
  static std::vector<uint8_t> read(const Tensor& t) {
    int64_t n = 1;
    for (int64_t d = 0; d < t.rank(); ++d) n *= t.sizes()[d];
    const int64_t size = dtype_bytes(t.dtype());
    std::vector<uint8_t> out(static_cast<size_t>(n * size));
    for (int64_t k = 0; k < n; ++k) {
      int64_t rest = k, at = 0;
      for (int64_t d = t.rank(); d-- > 0;) at += rest % t.sizes()[d] * t.strides()[d], rest /= t.sizes()[d];
      std::memcpy(out.data() + k * size, static_cast<const char*>(t.data()) + at * size, static_cast<size_t>(size));
    }
    return out;
  }

  void check_bools(const GuardedTensor& t) {
    if (t.type().dtype != DType::k_bool) return;
    for (int64_t k = 0; k < t.num_elements(); ++k) {
      uint8_t b;
      t.get(k, &b);
      if (b > 1) return fail("element " + std::to_string(k) + " of a bool output is the byte " + std::to_string(b));
    }
  }

  void judge_formula(const GuardedTensor& t) {
    const DType out = t.type().dtype;
    const Op& op = c_.graph.ops[c_.op];
    const DType in = c_.graph.type(op.operands[0]).dtype;
    const std::vector<uint8_t> eager = read(*eager_[0]);
    int64_t wrong = 0;
    std::string first;
    for (int64_t k = 0; k < t.num_elements(); ++k) {
      Number x[4];
      for (size_t p = 0; p < c_.operands.size(); ++p) x[p] = number_at(p, k);
      Number want = apply_row(c_.row, in, out, x);
      uint8_t got[8] = {}, other[8] = {};
      t.get(k, got);
      std::memcpy(other, eager.data() + k * dtype_bytes(out), static_cast<size_t>(dtype_bytes(out)));
      const bool as_eager = std::isinf(want.room) && row_meaning(c_.row).tolerance_ulp > 0 && same(out, got, other);
      const bool right = as_eager || is_right(out, want, got), eager_right = as_eager || is_right(out, want, other);
      outcome_.eager_differs = outcome_.eager_differs || !eager_right;
      if (right || wrong++ > 0) continue;
      first = "element " + std::to_string(k) + " is " + text(get_double(out, got)) + ", the formula gives " +
              text(is_float(out) ? want.d : static_cast<double>(want.i)) + ", eager " + text(get_double(out, other)) + ", of";
      for (size_t p = 0; p < c_.operands.size(); ++p)
        first += " " + text(is_float(operand_dtype(p)) ? x[p].d : static_cast<double>(x[p].i));
    }
    if (wrong > 0) fail(std::to_string(wrong) + " of " + std::to_string(t.num_elements()) + " wrong; " + first);
  }

  bool is_right(DType out, const Number& want, const void* got) const {
    if (is_float(out)) return within_row(c_.row, out, want, get_double(out, got));
    uint8_t stored[8] = {};
    put_integer(out, want.i, stored);
    return std::memcmp(stored, got, static_cast<size_t>(dtype_bytes(out))) == 0;
  }

  static bool same(DType dtype, const void* a, const void* b) {
    const double x = get_double(dtype, a), y = get_double(dtype, b);
    return x == y || (std::isnan(x) && std::isnan(y));
  }

  DType operand_dtype(size_t p) const { return c_.graph.type(c_.graph.ops[c_.op].operands[p]).dtype; }

  Number number_at(size_t p, int64_t k) const {
    const Source& source = c_.operands[p];
    const DType dtype = operand_dtype(p);
    if (source.feed < 0) return {source.number, static_cast<int64_t>(source.number)};
    const void* at = logical_[static_cast<size_t>(source.feed)].data() + source.from[static_cast<size_t>(k)] * dtype_bytes(dtype);
    return is_float(dtype) ? Number{get_double(dtype, at), 0} : Number{0, get_integer(dtype, at)};
  }

  void judge_bits(const GuardedTensor& t, size_t o) {
    const std::vector<uint8_t> eager = read(*eager_[o]);
    const DType dtype = t.type().dtype;
    const auto size = static_cast<size_t>(dtype_bytes(dtype));
    for (int64_t k = 0; k < t.num_elements(); ++k) {
      uint8_t got[8] = {}, want[8] = {};
      t.get(k, got);
      std::memcpy(want, eager.data() + static_cast<size_t>(k) * size, size);
      if (std::memcmp(got, want, size) == 0) continue;
      const double a = get_double(dtype, got), b = get_double(dtype, want);
      if (is_float(dtype) && std::isnan(a) && std::isnan(b)) continue;  // which NaN is nobody's promise
      if (c_.law == Law::kValue && a == 0 && b == 0) continue;
      return fail("output " + std::to_string(o) + " element " + std::to_string(k) + " is " + text(a) + ", eager has " + text(b));
    }
  }

  Status judge_error(const GuardedTensor& t, size_t o) {
    KRN_TRY_LET(const TensorRef view, t.view(services_));
    const TensorRef referee[] = {referee_[o]}, eager[] = {eager_[o]}, candidate[] = {view};
    // The referee of f64 is no wider than eager, whose error would read as none.
    JudgeOptions options;
    if (t.type().dtype == DType::k_f64) options.error_budget = 1e-12;
    // A GPU's eager convolves f32 in TF32 (10 bits), and so may a plugin; the eager here is the host's.
    if (t.type().dtype == DType::k_f32 && c_.row == OpCode::k_conv && subject_.on_gpu()) options.error_budget = 2e-3;
    KRN_TRY_LET(const Judgement judgement, judge(referee, eager, candidate, services_, options));
    if (!judgement.right) fail("output " + std::to_string(o) + ": " + judgement.reason);
    return {};
  }

  int bad_ = -1;  // the feed that holds an index out of range
  const Case& c_;
  Subject& subject_;
  TensorServices& services_;
  std::optional<Compiled> compiled_;
  std::vector<std::vector<uint8_t>> logical_;  // by feed: elements in row-major order
  std::vector<GuardedTensor> tensors_;         // by feed
  std::vector<Lent> lent_, lent_constants_;    // by feed, by constant
  std::vector<TensorRef> inputs_, constants_, eager_, referee_;
  Outcome outcome_;
  std::vector<Outcome> outcomes_;
};

}  // namespace

std::vector<Outcome> try_case(const Case& c, Subject& subject, TensorServices& services) { return Trial(c, subject, services).run(); }

}  // namespace keirin::conformance
