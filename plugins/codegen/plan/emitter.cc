// SPDX-License-Identifier: Apache-2.0
//
// The walk behind emit_kernel. Splitting an axis for a reshape, or giving up, is an exception inside this file only.
#include "plugins/codegen/plan/emitter.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "abi/planted.h"
#include "plugins/codegen/kernel/number.h"

namespace keirin::codegen {
namespace {

struct SplitAxis {
  int axis;
  int64_t inner;
};

struct Dynamic {  // a coordinate's part that is known only at run time: coeff * value of a node that lies in [0, limit)
  int32_t node;
  int64_t coeff;
  int64_t limit;
};

struct Coord {
  Form form;
  std::vector<Dynamic> dynamic;
};

struct Place {
  std::vector<Coord> dims;
  std::vector<FormGuard> guards;
};

// The iteration space before splitting: dims of the tensor whose elements are visited.
struct Space {
  Dims sizes;
  std::vector<bool> reduced;
  int segment_dim = -1;    // this dim walks the edges of a CSR row ...
  int pinned_dim = -1;     // ... of the row that this dim counts
  int csr_index = -1;
  int64_t rows = 1, columns = 1;
  bool operator==(const Space&) const = default;
};

struct Atom {
  int dim;
  int64_t size;
  int64_t step;  // what one step of the atom adds to the dim's coordinate
};

int64_t product(const Dims& d) {
  int64_t n = 1;
  for (int64_t x : d) n *= x;
  return n;
}

bool is_reduction(uint32_t op) { return op_kind(op) == OpKind::kReduce || op == kOpSegmentReduce; }

class Emitter {
 public:
  Emitter(const FlatRegion& region, const Layout& layout, std::span<const int> results, const Space& space,
          const std::vector<Atom>& atoms)
      : r_(region), layout_(layout), results_(results), space_(space), atoms_(atoms) {}

  Draft emit() {
    set_axes();
    for (int t : results_) store(t);
    return std::move(draft_);
  }

 private:
  // ---- coordinates ----

  void set_axes() {
    std::vector<Form> dims(space_.sizes.size());
    for (size_t a = 0; a < atoms_.size(); ++a) {
      int d = atoms_[a].dim;
      DraftAxis axis{atoms_[a].size, space_.reduced[d], d == space_.segment_dim, d == space_.pinned_dim};
      axis.pinned |= axis.segment;
      draft_.axes.push_back(axis);
      if (axis.size != 1) dims[d].coeff[a] = atoms_[a].step;
    }
    full_ = linear(dims, [](size_t) { return true; });
    row_ = linear(dims, [&](size_t d) { return !space_.reduced[d]; });
    column_ = linear(dims, [&](size_t d) { return space_.reduced[d]; });
    dims_ = dims;
    draft_.has_csr = space_.segment_dim >= 0;
    draft_.csr_index = space_.csr_index;
  }

  template <class P>
  Form linear(const std::vector<Form>& dims, P in) const {
    Form out;
    int64_t step = 1;
    for (size_t d = dims.size(); d-- > 0;) {
      if (!in(d)) continue;
      add(out, dims[d], step);
      step *= space_.sizes[d];
    }
    return out;
  }

  static void add(Form& to, const Form& x, int64_t factor) {
    to.offset += x.offset * factor;
    for (int a = 0; a < kMaxAxes; ++a) to.coeff[a] += x.coeff[a] * factor;
  }
  static void add(Coord& to, const Coord& x, int64_t factor) {
    add(to.form, x.form, factor);
    for (Dynamic d : x.dynamic) {
      d.coeff *= factor;
      to.dynamic.push_back(d);  // with a factor of 0, too: an index that leads nowhere is checked all the same
    }
  }

  std::pair<int64_t, int64_t> range(const Form& f) const {
    int64_t low = f.offset, high = f.offset;
    for (size_t a = 0; a < draft_.axes.size(); ++a) {
      int64_t reach = f.coeff[a] * (draft_.axes[a].size - 1);
      (reach > 0 ? high : low) += reach;
    }
    return {low, high};
  }

  // f = quotient * d + rest with 0 <= rest < d, both affine; splits an axis if that would make it so.
  bool divide(const Form& f, int64_t d, Form& quotient, Form& rest) const {
    quotient = rest = Form{};
    quotient.offset = f.offset >= 0 ? f.offset / d : -((-f.offset + d - 1) / d);
    rest.offset = f.offset - quotient.offset * d;
    for (int a = 0; a < kMaxAxes; ++a) {
      if (f.coeff[a] % d == 0) {
        quotient.coeff[a] = f.coeff[a] / d;
      } else {
        rest.coeff[a] = f.coeff[a];
      }
    }
    auto [low, high] = range(rest);
    if (low >= 0 && high < d) return true;
    for (size_t a = 0; a < draft_.axes.size(); ++a) {
      int64_t c = std::abs(rest.coeff[a]);
      if (c == 0 || c >= d || d % c != 0 || draft_.axes[a].pinned) continue;
      int64_t inner = d / c, size = draft_.axes[a].size;
      if (size > inner && size % inner == 0) throw SplitAxis{static_cast<int>(a), inner};
    }
    return false;
  }

  // Coordinates in dims of these sizes of the element with row-major number `f`.
  bool delinearise(Form f, const int64_t* sizes, int count, Coord* out) const {
    for (int d = count; d-- > 0;) {
      if (sizes[d] == 1) continue;
      bool last = std::all_of(sizes, sizes + d, [](int64_t s) { return s == 1; });
      if (last) {
        out[d].form = f;
        return true;
      }
      Form quotient, rest;
      if (!divide(f, sizes[d], quotient, rest)) return false;
      out[d].form = rest;
      f = quotient;
    }
    return true;
  }

  int intern(Place place) {
    std::vector<int64_t> key;
    for (const Coord& c : place.dims) {
      key.push_back(c.form.offset);
      key.insert(key.end(), c.form.coeff.begin(), c.form.coeff.begin() + draft_.axes.size());
      key.push_back(static_cast<int64_t>(c.dynamic.size()));
      for (const Dynamic& d : c.dynamic) key.insert(key.end(), {d.node, d.coeff, d.limit});
    }
    key.push_back(-1);
    for (const FormGuard& g : place.guards) {
      key.push_back(g.form.offset);
      key.insert(key.end(), g.form.coeff.begin(), g.form.coeff.begin() + draft_.axes.size());
      key.push_back(g.limit);
    }
    auto [it, fresh] = place_ids_.try_emplace(std::move(key), static_cast<int>(places_.size()));
    if (fresh) places_.push_back(std::move(place));
    return it->second;
  }

  // ---- results ----

  void store(int t) {
    const Tensor& tensor = r_.tensors[t];
    const Storage& s = layout_.at(t);
    int64_t n = tensor.numel();
    const bool full = space_.segment_dim < 0 && n == space_.rows * space_.columns;
    if (!full && n != space_.rows) throw Refusal{"results of different sizes", -1};
    const Form& number = full ? full_ : row_;
    DraftAccess access;
    access.tensor = t, access.buffer = s.buffer, access.dtype = tensor.dtype, access.store = true;
    int source = t;
    while (contiguous(t) && is_reshape(source) && (source == t || !layout_.stored(source))) source = r_.producer(source)->operands[0];
    Place place = at_number(source, number, full);
    int32_t node = value(source, intern(place));
    if (contiguous(t)) {
      add(access.index, number, 1);
      access.index.offset += s.offset;
    } else {
      access.index.offset = s.offset;
      for (int d = 0; d < tensor.rank(); ++d) {
        if (s.row_index < 0 || d != s.row_axis) {
          add(access.index, place.dims[d].form, s.strides[d]);
          continue;
        }
        Place at{{place.dims[d]}, {}};
        access.indirects.push_back({value(s.row_index, intern(std::move(at))), s.strides[d], s.num_rows});
      }
    }
    draft_.stores.push_back({node, add_access(access), !full});
  }

  bool is_reshape(int t) const {
    const TensorNode* p = r_.producer(t);
    return p && p->op == kOp_reshape;
  }
  bool contiguous(int t) const {
    if (layout_.at(t).row_index >= 0) return false;
    const Tensor& tensor = r_.tensors[t];
    Dims want = row_major(tensor.sizes);
    for (int d = 0; d < tensor.rank(); ++d) {
      if (tensor.sizes[d] != 1 && layout_.at(t).strides[d] != want[d]) return false;
    }
    return true;
  }

  // Where element number `number` (row-major) of a tensor lies.
  Place at_number(int t, const Form& number, bool full) {
    const Dims& sizes = r_.tensors[t].sizes;
    Place place;
    place.dims.resize(sizes.size());
    if (full && sizes == space_.sizes) {
      for (size_t d = 0; d < sizes.size(); ++d) place.dims[d].form = dims_[d];
    } else if (!delinearise(number, sizes.data(), static_cast<int>(sizes.size()), place.dims.data())) {
      throw Refusal{"the result's shape does not follow the kernel's axes", -1};
    }
    return place;
  }

  uint32_t add_access(DraftAccess access) {
    for (size_t i = 0; i < draft_.accesses.size(); ++i) {
      const DraftAccess& b = draft_.accesses[i];
      auto same = [](const Access::Indirect& x, const Access::Indirect& y) {
        return x.node == y.node && x.stride == y.stride && x.limit == y.limit;
      };
      if (b.tensor == access.tensor && b.store == access.store && b.index == access.index && b.guards == access.guards &&
          b.fill == access.fill &&
          std::equal(b.indirects.begin(), b.indirects.end(), access.indirects.begin(), access.indirects.end(), same)) {
        return static_cast<uint32_t>(i);
      }
    }
    draft_.accesses.push_back(std::move(access));
    return static_cast<uint32_t>(draft_.accesses.size()) - 1;
  }

  // ---- values ----

  int32_t value(int t, int place) {
    auto [it, fresh] = memo_.try_emplace({t, place}, -1);
    if (!fresh) return it->second;
    if (++depth_ > 2000) throw Refusal{"the chain of operators is too long for one kernel", -1};
    int32_t node = compute(t, place);
    --depth_;
    memo_[{t, place}] = node;
    return node;
  }

  bool is_result(int t) const { return std::find(results_.begin(), results_.end(), t) != results_.end(); }

  int32_t compute(int t, int place) {
    const Tensor& tensor = r_.tensors[t];
    if (layout_.stored(t) && !is_result(t)) return load(t, place, 0);
    const TensorNode* node = r_.producer(t);
    if (!node) return load(t, place, 0);
    if (tensor.numel() == 0) return build_literal(draft_.dag, compute_kind(tensor.dtype), 0, 0);
    if (is_reduction(node->op)) return reduction(t, *node, place);
    if (op_kind(node->op) == OpKind::kScalar) return scalar(tensor, *node, place);
    return move(t, *node, place);
  }

  int32_t scalar(const Tensor& tensor, const TensorNode& node, int place) {
    std::vector<int32_t> x;
    for (int o : node.operands) x.push_back(value(o, place));
    if (node.op == kOp_div && is_sum(node.operands[0])) x[1] = build_count(draft_.dag, x[1]);
    int32_t out = node.op == kOp_cast ? build_cast(draft_.dag, x[0], r_.tensors[node.operands[0]].dtype, tensor.dtype)
                                      : build_scalar(draft_.dag, node.op, x);
    return settle(tensor, out);
  }

  bool is_sum(int t) const {
    const TensorNode* node = r_.producer(t);
    while (node && (node->op == kOp_cast || op_kind(node->op) == OpKind::kMove) && node->operands.size() == 1)
      node = r_.producer(node->operands[0]);
    return node && node->op == kOp_sum;
  }

  // What readers may see: rounded where the graph says so, wrapped where integers are narrow.
  int32_t settle(const Tensor& tensor, int32_t node) {
    if ((is_integer(tensor.dtype) && !KRN_PLANTED(unwrapped_integer)) || (tensor.observed && is_float(tensor.dtype))) {
      return build_storage_round(draft_.dag, node, tensor.dtype);
    }
    return node;
  }

  // A tensor read from memory: strides times coordinates, through any reshapes above that need no division.
  int32_t load(int t, int place_id, double fill) {
    const Place place = places_[place_id];
    const Storage& s = layout_.at(t);
    const Tensor& tensor = r_.tensors[t];
    if (tensor.numel() == 0) return build_literal(draft_.dag, compute_kind(tensor.dtype), 0, 0);
    Coord index;
    index.form.offset = s.offset;
    for (int d = 0; d < tensor.rank(); ++d) add(index, place.dims[d], s.strides[d]);
    return load_at(t, index, place.guards, fill);
  }

  int32_t load_at(int t, const Coord& index, const std::vector<FormGuard>& guards, double fill) {
    DraftAccess a;
    a.tensor = t, a.buffer = layout_.at(t).buffer, a.dtype = r_.tensors[t].dtype;
    a.index = index.form, a.guards = guards, a.fill = fill;
    for (const Dynamic& d : index.dynamic) a.indirects.push_back({d.node, d.coeff, d.limit});
    Kind kind = compute_kind(a.dtype);
    return draft_.dag.add(Node{Prim::kLoad, kind, -1, -1, -1, add_access(std::move(a))});
  }

  int32_t reduction(int t, const TensorNode& node, int place_id) {
    const Place place = places_[place_id];
    const Tensor& operand = r_.tensors[node.operands[0]];
    bool segment = node.op == kOpSegmentReduce;
    if (segment != (space_.segment_dim >= 0) || (segment && node.operands[1] != space_.csr_index)) {
      throw Refusal{"reductions over different sets", t};
    }
    // Kept dims of the operand, with the result's coordinates; the others are reduced.
    std::vector<bool> reduced(operand.rank(), false);
    for (int64_t d : segment ? Dims{node.attrs.dim} : node.attrs.dims) reduced[d] = true;
    Place inner;
    inner.dims.resize(operand.rank());
    Dims reduced_sizes;
    Coord number;
    int64_t step = 1, columns = 1;
    bool keep = segment || node.attrs.keepdim;
    int at = static_cast<int>(place.dims.size());
    for (int d = operand.rank(); d-- > 0;) {
      if (reduced[d]) columns *= operand.sizes[d], reduced_sizes.insert(reduced_sizes.begin(), operand.sizes[d]);
      if (reduced[d] && !keep) continue;
      --at;
      if (reduced[d] && !segment) continue;
      inner.dims[d] = place.dims[at];
      add(number, place.dims[at], step);
      step *= r_.tensors[t].sizes[at];
    }
    if (!number.dynamic.empty() || !(number.form == row_) || step != space_.rows || columns != space_.columns) {
      throw Refusal{"a reduction is needed at other places than its row", t};
    }
    std::vector<Coord> columns_at(reduced_sizes.size());
    if (!delinearise(column_, reduced_sizes.data(), static_cast<int>(reduced_sizes.size()), columns_at.data())) {
      throw Refusal{"a reduction's shape does not follow the kernel's axes", t};
    }
    int next = 0;
    for (int d = 0; d < operand.rank(); ++d) {
      if (reduced[d]) inner.dims[d] = columns_at[next++];
    }
    int32_t x = value(node.operands[0], intern(std::move(inner)));
    Monoid monoid = segment ? node.attrs.monoid : monoid_of(node.op);
    Kind kind = draft_.dag.nodes[x].kind;
    bool index = monoid == Monoid::kArgMax || monoid == Monoid::kArgMin;
    size_t stage = 0;
    while (stage < draft_.reduces.size() && !(draft_.reduces[stage].value == x && draft_.reduces[stage].monoid == monoid)) ++stage;
    if (stage == draft_.reduces.size()) draft_.reduces.push_back({x, monoid, kind});
    return settle(r_.tensors[t], draft_.dag.add(Node{Prim::kScalar, index ? Kind::kI64 : kind, -1, -1, -1, stage}));
  }

  // ---- moves ----

  int32_t move(int t, const TensorNode& node, int place_id) {
    Place place = places_[place_id];
    const Dims& sizes = r_.tensors[t].sizes;
    const Attrs& a = node.attrs;
    int x = node.operands.empty() ? -1 : node.operands[0];
    const Dims& from = x >= 0 ? r_.tensors[x].sizes : sizes;
    switch (node.op) {
      case kOp_relayout:
        return value(x, place_id);
      case kOp_expand:
        for (size_t d = 0; d < sizes.size(); ++d) {
          if (from[d] != 1) continue;
          Coord first;
          add(first, place.dims[d], 0);
          place.dims[d] = std::move(first);
        }
        return value(x, intern(std::move(place)));
      case kOp_permute: {
        Place in{std::vector<Coord>(sizes.size()), place.guards};
        for (size_t d = 0; d < sizes.size(); ++d) in.dims[a.dims[d]] = place.dims[d];
        return value(x, intern(std::move(in)));
      }
      case kOp_slice: {
        Coord c;
        add(c, place.dims[a.dim], a.step);
        c.form.offset += a.start;
        place.dims[a.dim] = c;
        return value(x, intern(std::move(place)));
      }
      case kOp_flip:
        for (int64_t d : a.dims) {
          Coord c;
          add(c, place.dims[d], -1);
          c.form.offset += sizes[d] - 1;
          place.dims[d] = c;
        }
        return value(x, intern(std::move(place)));
      case kOp_reshape:
        return reshape(t, x, place);
      case kOp_pad:
        return pad(t, x, a, place);
      case kOpWindow:
        return window(t, x, a, place);
      case kOp_cat:
        return cat(t, node, place);
      case kOp_slice_scatter:
        return slice_scatter(t, node, place);
      case kOp_take:
        return take(node, place);
      case kOp_gather: {
        int32_t index = value(node.operands[1], place_id);
        place.dims[a.dim] = Coord{{}, {{index, 1, from[a.dim]}}};
        return value(x, intern(std::move(place)));
      }
      case kOp_full:
        refuse_unchecked(t, place);
        return build_literal(draft_.dag, compute_kind(r_.tensors[t].dtype), full_value(r_.tensors[t], a), full_integer(r_.tensors[t], a));
      case kOp_iota: {
        refuse_unchecked(t, place);
        int32_t i = coordinate(place.dims[0], a.step, a.start);
        return build_cast(draft_.dag, i, kDType_i64, r_.tensors[t].dtype);
      }
      default:
        throw Refusal{std::string("no index map for ") + std::string(op_name(node.op)), t};
    }
  }

  // An index is checked where it leads to memory: numbers that are made where they are read have to lie there.
  static void refuse_unchecked(int t, const Place& place) {
    if (std::any_of(place.dims.begin(), place.dims.end(), [](const Coord& c) { return !c.dynamic.empty(); }))
      throw Refusal{"an index of numbers that are not in memory", t};
  }

  static double full_value(const Tensor& t, const Attrs& a) {
    return t.dtype == kDType_f64 ? a.value_d : static_cast<double>(static_cast<float>(a.value_d));
  }

  // As the dtype stores it.
  static int64_t full_integer(const Tensor& t, const Attrs& a) {
    switch (t.dtype) {
      case kDType_u8: return static_cast<uint8_t>(a.value_i);
      case kDType_i8: return static_cast<int8_t>(a.value_i);
      case kDType_i16: return static_cast<int16_t>(a.value_i);
      case kDType_i32: return static_cast<int32_t>(a.value_i);
      default: return a.value_i;
    }
  }

  // start + step * coordinate, as an i64 node.
  int32_t coordinate(const Coord& c, int64_t step, int64_t start) {
    Dag& dag = draft_.dag;
    auto literal = [&](int64_t v) { return build_literal(dag, Kind::kI64, 0, v); };
    auto plus = [&](int32_t a, int32_t b) { return a < 0 ? b : dag.add(Node{Prim::kAdd, Kind::kI64, a, b}); };
    auto times = [&](int32_t a, int64_t f) { return f == 1 ? a : dag.add(Node{Prim::kMul, Kind::kI64, a, literal(f)}); };
    int32_t sum = -1;
    for (size_t axis = 0; axis < draft_.axes.size(); ++axis) {
      if (c.form.coeff[axis] == 0) continue;
      int32_t i = dag.add(Node{Prim::kCoord, Kind::kI64, -1, -1, -1, axis});
      sum = plus(sum, times(i, c.form.coeff[axis] * step));
    }
    for (const Dynamic& d : c.dynamic) sum = plus(sum, times(d.node, d.coeff * step));
    int64_t offset = start + c.form.offset * step;
    return sum < 0 ? literal(offset) : offset == 0 ? sum : plus(sum, literal(offset));
  }

  // -1: always outside, 1: always inside, 0: depends.
  int inside(const Form& f, int64_t limit) const {
    auto [low, high] = range(f);
    if (low >= 0 && high < limit + (KRN_PLANTED(pad_guard) ? 1 : 0)) return 1;
    return high < 0 || low >= limit ? -1 : 0;
  }

  int32_t inside_test(const Form& f, int64_t limit) {
    Dag& dag = draft_.dag;
    int32_t i = coordinate(Coord{f, {}}, 1, 0);
    auto [low, high] = range(f);
    int32_t test = -1;
    if (low < 0) test = dag.add(Node{Prim::kGe, Kind::kBool, i, build_literal(dag, Kind::kI64, 0, 0)});
    if (high >= limit) {
      int32_t below = dag.add(Node{Prim::kLt, Kind::kBool, i, build_literal(dag, Kind::kI64, 0, limit)});
      test = test < 0 ? below : dag.add(Node{Prim::kAnd, Kind::kBool, test, below});
    }
    return test;
  }

  // x at `in` where all of `tests` hold, else `fill`. A bare load does the choosing itself.
  int32_t guarded(int t, int x, Place in, const std::vector<FormGuard>& tests, double fill_d, int64_t fill_i) {
    Dag& dag = draft_.dag;
    Kind kind = compute_kind(r_.tensors[t].dtype);
    if (r_.tensors[x].numel() == 0) return build_literal(dag, kind, fill_d, fill_i);
    std::vector<FormGuard> live;
    for (const FormGuard& g : tests) {
      int known = inside(g.form, g.limit);
      if (known < 0) return build_literal(dag, kind, fill_d, fill_i);
      if (known == 0) live.push_back(g);
    }
    bool outermost = in.guards.empty();
    for (const FormGuard& g : live) in.guards.push_back(g);
    double fill = kind == Kind::kF32 || kind == Kind::kF64 ? fill_d : static_cast<double>(fill_i);
    // A load's fill is a double: a number that none holds is chosen beside the load.
    const bool holds = kind == Kind::kF32 || kind == Kind::kF64 || KRN_PLANTED(fill_rounded) ||
                       fill_i == std::numeric_limits<int64_t>::min() || (fill_i <= int64_t{1} << 53 && fill_i >= -(int64_t{1} << 53));
    if (outermost && holds && !live.empty() && layout_.stored(x) && !is_result(x)) {
      return load(x, intern(std::move(in)), fill);
    }
    int32_t node = value(x, intern(std::move(in)));
    if (live.empty()) return node;
    int32_t test = -1;
    for (const FormGuard& g : live) {
      int32_t one = inside_test(g.form, g.limit);
      test = test < 0 ? one : dag.add(Node{Prim::kAnd, Kind::kBool, test, one});
    }
    return dag.add(Node{Prim::kSelect, kind, test, node, build_literal(dag, kind, fill_d, fill_i)});
  }

  void static_only(int t, const Coord& c) const {
    if (!c.dynamic.empty()) throw Refusal{"a choice by position under a gather", t};
  }

  int32_t pad(int t, int x, const Attrs& a, Place place) {
    std::vector<FormGuard> tests;
    for (size_t d = 0; d < place.dims.size(); ++d) {
      if (a.low[d] == 0 && a.high[d] == 0) continue;
      static_only(t, place.dims[d]);
      place.dims[d].form.offset -= a.low[d];
      tests.push_back({place.dims[d].form, r_.tensors[x].sizes[d]});
    }
    return guarded(t, x, std::move(place), tests, a.value_d, a.value_i);
  }

  int32_t window(int t, int x, const Attrs& a, Place place) {
    const Dims& from = r_.tensors[x].sizes;
    size_t k = a.kernel.size(), lead = from.size() - k;
    Place in{{place.dims.begin(), place.dims.begin() + from.size()}, place.guards};
    std::vector<FormGuard> tests;
    for (size_t i = 0; i < k; ++i) {
      static_only(t, place.dims[lead + i]);
      Coord c;
      add(c, place.dims[lead + i], a.stride[i]);
      add(c, place.dims[from.size() + i], a.dilation[i]);
      c.form.offset -= a.padding[i];
      in.dims[lead + i] = c;
      tests.push_back({c.form, from[lead + i]});
    }
    return guarded(t, x, std::move(in), tests, a.value_d, a.value_i);
  }

  int32_t cat(int t, const TensorNode& node, const Place& place) {
    int64_t dim = node.attrs.dim, begin = 0;
    static_only(t, place.dims[dim]);
    Dag& dag = draft_.dag;
    std::vector<std::pair<FormGuard, int>> pieces;
    for (int x : node.operands) {
      FormGuard g{place.dims[dim].form, r_.tensors[x].sizes[dim]};
      g.form.offset -= begin;
      begin += g.limit;
      if (g.limit > 0 && inside(g.form, g.limit) >= 0) pieces.push_back({g, x});
    }
    int32_t out = -1;
    for (size_t i = pieces.size(); i-- > 0;) {
      const auto& [g, x] = pieces[i];
      Place in = place;
      in.dims[dim].form = g.form;
      bool whole = inside(g.form, g.limit) == 1;
      if (!whole) in.guards.push_back(g);
      int32_t node_x = value(x, intern(std::move(in)));
      if (out < 0) {
        out = node_x;
        continue;
      }
      int32_t i64 = coordinate(Coord{g.form, {}}, 1, 0);
      int32_t below = dag.add(Node{Prim::kLt, Kind::kBool, i64, build_literal(dag, Kind::kI64, 0, g.limit)});
      out = dag.add(Node{Prim::kSelect, dag.nodes[out].kind, below, node_x, out});
    }
    return out;
  }

  int32_t slice_scatter(int t, const TensorNode& node, const Place& place) {
    const Attrs& a = node.attrs;
    const Coord& c = place.dims[a.dim];
    static_only(t, c);
    if (a.step != 1) throw Refusal{"slice_scatter with a step", t};
    FormGuard g{c.form, r_.tensors[node.operands[1]].sizes[a.dim]};
    g.form.offset -= a.start;
    int known = inside(g.form, g.limit);
    if (known < 0 || g.limit == 0) return value(node.operands[0], intern(place));
    Place in = place;
    in.dims[a.dim].form = g.form;
    if (known == 0) in.guards.push_back(g);
    int32_t source = value(node.operands[1], intern(std::move(in)));
    if (known > 0) return source;
    int32_t self = value(node.operands[0], intern(place));
    Kind kind = draft_.dag.nodes[self].kind;
    return draft_.dag.add(Node{Prim::kSelect, kind, inside_test(g.form, g.limit), source, self});
  }

  int32_t take(const TensorNode& node, const Place& place) {
    int x = node.operands[0], index = node.operands[1];
    int64_t dim = node.attrs.dim;
    int rank = r_.tensors[index].rank();
    Place at{{place.dims.begin() + dim, place.dims.begin() + dim + rank}, place.guards};
    int32_t i = value(index, intern(std::move(at)));
    Place in{{place.dims.begin(), place.dims.begin() + dim}, place.guards};
    in.dims.push_back(Coord{{}, {{i, 1, r_.tensors[x].sizes[dim]}}});
    in.dims.insert(in.dims.end(), place.dims.begin() + dim + rank, place.dims.end());
    return value(x, intern(std::move(in)));
  }

  int32_t reshape(int t, int x, const Place& place) {
    const Dims& to = r_.tensors[t].sizes;
    const Dims& from = r_.tensors[x].sizes;
    Place in{std::vector<Coord>(from.size()), place.guards};
    std::vector<ReshapeGroup> groups = reshape_groups(to, from);
    std::vector<Coord> numbers;
    bool divided = true;
    for (const ReshapeGroup& g : groups) {
      Coord number;
      int64_t step = 1;
      for (int d = g.a1; d-- > g.a0;) add(number, place.dims[d], step), step *= to[d];
      numbers.push_back(number);
      int real = -1, count = 0;
      for (int d = g.b0; d < g.b1; ++d) {
        if (from[d] != 1) real = d, ++count;
      }
      if (count <= 1) {
        if (real >= 0) in.dims[real] = number;
        continue;
      }
      divided = divided && number.dynamic.empty();
    }
    if (layout_.stored(x) && !is_result(x)) {
      Coord index;
      index.form.offset = layout_.at(x).offset;
      if (flat_index(x, groups, numbers, index)) return load_at(x, index, place.guards, 0);
    }
    for (size_t i = 0; divided && i < groups.size(); ++i) {
      const ReshapeGroup& g = groups[i];
      int count = static_cast<int>(std::count_if(from.begin() + g.b0, from.begin() + g.b1, [](int64_t s) { return s != 1; }));
      if (count > 1) divided = delinearise(numbers[i].form, from.data() + g.b0, g.b1 - g.b0, in.dims.data() + g.b0);
    }
    // A stored operand in an order that cannot be walked: the reshape itself must be stored; else its operand.
    if (!divided) throw Refusal{"a reshape that no axis follows", layout_.stored(x) && !is_result(x) ? t : x};
    return value(x, intern(std::move(in)));
  }

  // The address without division, where the operand's dims of each group follow each other in memory.
  bool flat_index(int x, const std::vector<ReshapeGroup>& groups, const std::vector<Coord>& numbers, Coord& index) const {
    const Dims& from = r_.tensors[x].sizes;
    const Dims& strides = layout_.at(x).strides;
    for (size_t i = 0; i < groups.size(); ++i) {
      int64_t step = 0, run = 1;
      for (int d = groups[i].b1; d-- > groups[i].b0;) {
        if (from[d] == 1) continue;
        if (run == 1) {
          step = strides[d];
        } else if (strides[d] != step * run) {
          return false;
        }
        run *= from[d];
      }
      add(index, numbers[i], step);
    }
    return true;
  }

  const FlatRegion& r_;
  const Layout& layout_;
  std::span<const int> results_;
  const Space& space_;
  const std::vector<Atom>& atoms_;
  Draft draft_;
  std::vector<Form> dims_;
  Form full_, row_, column_;
  std::vector<Place> places_;
  std::map<std::vector<int64_t>, int> place_ids_;
  std::map<std::pair<int, int>, int32_t> memo_;
  int depth_ = 0;
};

// What a kernel reaches through tensors that are not stored.
struct Cone {
  std::vector<int> reductions;
  bool hides = false;  // some op on the way may take none of an operand's elements: then not every reduction is needed
  std::set<int> seen;
};

void find_cone(const FlatRegion& r, const Layout& layout, std::span<const int> results, int t, Cone& out) {
  if (!out.seen.insert(t).second) return;
  bool result = std::find(results.begin(), results.end(), t) != results.end();
  if (layout.stored(t) && !result) return;
  const TensorNode* node = r.producer(t);
  if (!node) return;
  if (is_reduction(node->op)) out.reductions.push_back(t);
  out.hides |= node->op == kOp_pad || node->op == kOp_cat || node->op == kOp_slice_scatter || node->op == kOpWindow;
  for (int x : node->operands) {
    if (x >= 0) find_cone(r, layout, results, x, out);
  }
}

Space plain_space(const FlatRegion& r, const Layout& layout, std::span<const int> results) {
  int t = results[0];
  for (const TensorNode* p; (p = r.producer(t)) && p->op == kOp_reshape;) {
    if (t != results[0] && layout.stored(t)) break;
    t = p->operands[0];
  }
  Space space;
  space.sizes = r.tensors[t].sizes;
  space.reduced.assign(space.sizes.size(), false);
  space.rows = product(space.sizes);
  return space;
}

Space space_of(const FlatRegion& r, int leader) {
  Space space;
  const TensorNode& node = *r.producer(leader);
  const Tensor& operand = r.tensors[node.operands[0]];
  space.sizes = operand.sizes;
  space.reduced.assign(space.sizes.size(), false);
  if (node.op == kOpSegmentReduce) {
    space.sizes = r.tensors[leader].sizes;
    space.pinned_dim = static_cast<int>(node.attrs.dim);
    space.segment_dim = static_cast<int>(space.sizes.size());
    space.csr_index = node.operands[1];
    space.sizes.push_back(operand.sizes[node.attrs.dim]);
    space.reduced.push_back(true);
    space.reduced[space.pinned_dim] = false;
  } else {
    for (int64_t d : node.attrs.dims) space.reduced[d] = true;
  }
  for (size_t d = 0; d < space.sizes.size(); ++d) (space.reduced[d] ? space.columns : space.rows) *= space.sizes[d];
  return space;
}

}  // namespace

static std::variant<Draft, Refusal> emit_in(const Space& space, const FlatRegion& region, const Layout& layout,
                                            std::span<const int> results) {
  std::vector<Atom> atoms;
  for (int d = 0; d < static_cast<int>(space.sizes.size()); ++d) {
    if (space.sizes[d] != 1 || d == space.pinned_dim || d == space.segment_dim) atoms.push_back({d, space.sizes[d], 1});
  }
  for (;;) {
    if (atoms.size() > kMaxAxes) return Refusal{"more than 12 axes", -1};
    try {
      return Emitter(region, layout, results, space, atoms).emit();
    } catch (const SplitAxis& split) {
      Atom outer = atoms[split.axis];
      Atom inner{outer.dim, split.inner, outer.step};
      outer.size /= split.inner;
      outer.step *= split.inner;
      atoms[split.axis] = outer;
      atoms.insert(atoms.begin() + split.axis + 1, inner);
    } catch (const Refusal& refusal) {
      return refusal;
    }
  }
}

// The widest reduction sets the axes. Where some may not be needed the others are tried too, and a kernel without any: whether one can
// be built must not depend on what is stored of that which no element needs.
std::variant<Draft, Refusal> emit_kernel(const FlatRegion& region, const Layout& layout, std::span<const int> results) {
  Cone cone;
  for (int t : results) find_cone(region, layout, results, t, cone);
  std::stable_sort(cone.reductions.begin(), cone.reductions.end(), [&](int a, int b) {
    return region.tensors[region.producer(a)->operands[0]].numel() > region.tensors[region.producer(b)->operands[0]].numel();
  });
  std::optional<Refusal> refusal;
  std::vector<Space> tried;
  for (int leader : cone.reductions) {
    Space space = space_of(region, leader);
    if (std::find(tried.begin(), tried.end(), space) != tried.end()) continue;
    auto built = emit_in(space, region, layout, results);
    if (const Draft* draft = std::get_if<Draft>(&built)) {
      if (draft->reduces.empty()) break;
      return built;
    }
    if (!refusal) refusal = std::get<Refusal>(built);
    if (!cone.hides) return *refusal;
    tried.push_back(std::move(space));
  }
  auto plain = emit_in(plain_space(region, layout, results), region, layout, results);
  if (refusal && std::holds_alternative<Refusal>(plain)) return *refusal;
  return plain;
}

}  // namespace keirin::codegen
