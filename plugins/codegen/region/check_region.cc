// SPDX-License-Identifier: Apache-2.0
//
// One rule for each kind of row. A rule asks for what lowering would otherwise index with.
#include "plugins/codegen/region/check_region.h"

#include <algorithm>

#include "plugins/kit/error.h"

namespace keirin::codegen {
namespace {

class Checker {
 public:
  Checker(const FlatRegion& r, const TensorNode& n) : r_(r), n_(n), a_(n.attrs), out_(r.tensors[n.results[0]].sizes) {}

  // What is wrong, or empty.
  std::string check() const {
    OpKind kind = op_kind(n_.op);
    bool absent = std::find(n_.operands.begin(), n_.operands.end(), -1) != n_.operands.end();
    if (kind != OpKind::kAnchorComposite && absent) return "an absent operand";
    switch (kind) {
      case OpKind::kScalar: return scalar();
      case OpKind::kReduce: return reduce();
      case OpKind::kMove: return move();
      case OpKind::kFactory: return n_.op == kOp_iota && out_.size() != 1 ? "iota is 1-d" : "";
      default: return anchor();
    }
  }

 private:
  const Dims& in(size_t k) const { return r_.tensors[n_.operands[k]].sizes; }
  static bool axis(int64_t d, const Dims& sizes) { return d >= 0 && d < static_cast<int64_t>(sizes.size()); }
  static bool axes(const Dims& dims, const Dims& sizes) {
    std::vector<bool> seen(sizes.size(), false);
    for (int64_t d : dims) {
      if (!axis(d, sizes) || seen[d]) return false;
      seen[d] = true;
    }
    return true;
  }
  static int64_t count(const Dims& d) {
    int64_t n = 1;
    for (int64_t x : d) n *= x;
    return n;
  }
  static bool equal_but(const Dims& a, const Dims& b, int64_t dim) {
    if (a.size() != b.size()) return false;
    for (int64_t d = 0; d < static_cast<int64_t>(a.size()); ++d) {
      if (d != dim && a[d] != b[d]) return false;
    }
    return true;
  }

  std::string scalar() const {
    for (size_t k = 0; k < n_.operands.size(); ++k) {
      if (in(k) != out_) return "operands and result of different sizes";
    }
    auto kind = [&](int t) { return compute_kind(r_.tensors[t].dtype); };
    size_t first = n_.op == kOp_select ? 1 : 0;
    if (first == 1 && kind(n_.operands[0]) != Kind::kBool) return "select by a tensor that is not bool";
    for (size_t k = first + 1; k < n_.operands.size(); ++k) {
      if (kind(n_.operands[k]) != kind(n_.operands[first])) return "operands of different dtypes";
    }
    return "";
  }

  std::string reduce() const {
    if (!axes(a_.dims, in(0))) return "an axis that does not exist";
    bool index = n_.op == kOp_argmax || n_.op == kOp_argmin;
    if (index && a_.dims.size() != 1) return "argmax over several axes";
    Dims want;
    for (int64_t d = 0; d < static_cast<int64_t>(in(0).size()); ++d) {
      bool reduced = std::find(a_.dims.begin(), a_.dims.end(), d) != a_.dims.end();
      if (!reduced || a_.keepdim) want.push_back(reduced ? 1 : in(0)[d]);
    }
    return want == out_ ? "" : "a result of other sizes";
  }

  std::string move() const {
    const Dims& x = in(0);
    const char* bad = "attributes that do not fit the sizes";
    switch (n_.op) {
      case kOp_expand:
        if (x.size() != out_.size()) return bad;
        for (size_t d = 0; d < x.size(); ++d) {
          if (x[d] != out_[d] && x[d] != 1) return bad;
        }
        return "";
      case kOp_reshape: return count(x) == count(out_) ? "" : bad;
      case kOp_relayout: return x == out_ ? "" : bad;
      case kOp_permute: {
        if (!axes(a_.dims, x) || a_.dims.size() != x.size() || out_.size() != x.size()) return bad;
        for (size_t d = 0; d < x.size(); ++d) {
          if (out_[d] != x[a_.dims[d]]) return bad;
        }
        return "";
      }
      case kOp_flip: return axes(a_.dims, x) && x == out_ ? "" : bad;
      case kOp_slice:
        return axis(a_.dim, x) && slice_fits(x[a_.dim], equal_but(x, out_, a_.dim) ? out_[a_.dim] : -1) ? "" : bad;
      case kOp_slice_scatter:
        return axis(a_.dim, x) && x == out_ && slice_fits(x[a_.dim], equal_but(x, in(1), a_.dim) ? in(1)[a_.dim] : -1) ? "" : bad;
      case kOp_cat: {
        int64_t total = 0;
        for (size_t k = 0; k < n_.operands.size(); ++k) {
          if (!axis(a_.dim, in(k)) || !equal_but(in(k), out_, a_.dim)) return bad;
          total += in(k)[a_.dim];
        }
        return total == out_[a_.dim] ? "" : bad;
      }
      case kOp_pad:
        if (a_.low.size() != x.size() || a_.high.size() != x.size() || out_.size() != x.size()) return bad;
        for (size_t d = 0; d < x.size(); ++d) {
          if (a_.low[d] + x[d] + a_.high[d] != out_[d]) return bad;
        }
        return "";
      case kOp_take: {
        if (!axis(a_.dim, x) || !is_integer(r_.tensors[n_.operands[1]].dtype)) return bad;
        Dims want = x;
        want.erase(want.begin() + a_.dim);
        want.insert(want.begin() + a_.dim, in(1).begin(), in(1).end());
        return want == out_ ? "" : bad;
      }
      case kOp_gather: {
        bool fits = axis(a_.dim, x) && in(1) == out_ && x.size() == out_.size() && is_integer(r_.tensors[n_.operands[1]].dtype);
        for (size_t d = 0; fits && d < x.size(); ++d) fits = static_cast<int64_t>(d) == a_.dim || out_[d] <= x[d];
        return fits ? "" : bad;
      }
      case kOp_scatter: return axis(a_.dim, x) && x == out_ && in(1).size() == x.size() && in(2).size() == x.size() ? "" : bad;
      case kOp_index_reduce:
        return axis(a_.dim, x) && x == out_ && in(1).size() == 1 && equal_but(in(2), x, a_.dim) && in(2)[a_.dim] == in(1)[0] ? "" : bad;
      case kOp_cumsum: return x == out_ && (x.empty() || axis(a_.dim, x)) ? "" : bad;
      default: return "";
    }
  }

  bool slice_fits(int64_t size, int64_t result) const {
    if (a_.start < 0 || a_.step < 1 || result < 0) return false;
    return result == 0 ? a_.start <= size : a_.start < size && (result - 1) <= (size - 1 - a_.start) / a_.step;
  }

  std::string anchor() const {
    if (n_.operands.empty() || n_.operands[0] < 0) return "an anchor without its first operand";
    const Dims& x = in(0);
    auto spatial = [&](const Dims& d) { return !d.empty() && d.size() < x.size(); };
    switch (n_.op) {
      case kOp_matmul:
      case kOp_linear:
      case kOp_conv:
        if (n_.operands[1] < 0 || x.empty() || in(1).size() < 2 || out_.empty()) return "operands of too few axes";
        return "";
      case kOp_conv_grad_weight: {
        const size_t n = x.size() < 3 ? 0 : x.size() - 2;
        const bool axes = a_.sizes.size() == n && a_.stride.size() == n && a_.padding.size() == n && a_.dilation.size() == n;
        const bool ranks = n_.operands.size() > 1 && n_.operands[1] >= 0 && in(1).size() == x.size() && out_.size() == x.size();
        return n > 0 && axes && ranks && a_.groups > 0 ? "" : "operands, windows or a result of other rank";
      }
      case kOp_grouped_matmul: {
        const bool whole = n_.operands.size() == 3 && n_.operands[1] >= 0 && n_.operands[2] >= 0 && x.size() == 2 && in(1).size() == 3;
        const bool fits = whole && in(1)[1] == x[1] && in(2) == Dims{in(1)[0]} && out_ == Dims{x[0], in(1)[2]};
        return fits && is_integer(r_.tensors[n_.operands[2]].dtype) ? "" : "operands that do not fit";
      }
      case kOp_max_pool:
      case kOp_avg_pool:
        if (!spatial(a_.kernel) || a_.stride.size() != a_.kernel.size() || a_.padding.size() != a_.kernel.size())
          return "a window of other rank";
        return (a_.dilation.empty() || a_.dilation.size() == a_.kernel.size()) && equal_lead(x, a_.kernel.size())
                   ? ""
                   : "a window of other rank";
      case kOp_adaptive_avg_pool: return spatial(a_.sizes) && equal_lead(x, a_.sizes.size()) ? "" : "a window of other rank";
      case kOp_upsample_nearest:
      case kOp_upsample_bilinear: return x.size() > 2 && equal_lead(x, x.size() - 2) ? "" : "sizes of other rank";
      case kOp_attention: {
        const bool whole = n_.operands.size() > 2 && n_.operands[1] >= 0 && n_.operands[2] >= 0;
        return whole && x.size() > 2 && in(1).size() == x.size() && in(2).size() == x.size() ? "" : "operands of other rank";
      }
      case kOp_embedding_bag: {
        if (n_.operands.size() < 2 || n_.operands[1] < 0 || x.size() != 2 || out_.size() != 2) return "a table or bags of other rank";
        const bool offsets = n_.operands.size() > 2 && n_.operands[2] >= 0;
        return in(1).size() == (offsets ? 1u : 2u) && (!offsets || in(2).size() == 1) ? "" : "indices of other rank";
      }
      default: return "";
    }
  }
  bool equal_lead(const Dims& x, size_t trailing) const {
    return x.size() == out_.size() && std::equal(x.begin(), x.end() - static_cast<long>(trailing), out_.begin());
  }

  const FlatRegion& r_;
  const TensorNode& n_;
  const Attrs& a_;
  const Dims& out_;
};

}  // namespace

std::string misfit_of(const FlatRegion& region) {
  for (const TensorNode& n : region.nodes) {
    const std::string wrong = n.results.empty() ? "no result" : Checker(region, n).check();
    if (!wrong.empty()) return "node " + std::to_string(n.claim_node) + " (" + std::string(op_name(n.op)) + ") has " + wrong;
  }
  return "";
}

void check_region(const FlatRegion& region) {
  if (const std::string misfit = misfit_of(region); !misfit.empty()) throw kit::Error(KRN_STATUS_corrupt, misfit);
}

}  // namespace keirin::codegen
