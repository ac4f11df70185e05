// SPDX-License-Identifier: Apache-2.0
//
// The columns are cut into as many blocks as there are threads, so that each thread multiplies every group with its own part of the
// weights; where there are more threads than that, they share the rows as well. A primitive runs on the one thread that calls it.
#include "cpu/vendor_grouped.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "cpu/packed_weights.h"
#include "plugins/codegen/kernel/rows.h"
#include "plugins/kit/error.h"
#include "plugins/kit/pool.h"
#include "plugins/kit/tables.h"

namespace keirin::cpu {
namespace {

using enum kit::DType;
using codegen::AnchorDesc;
using codegen::TensorDesc;
using dnnl::memory;

// Numbers of rows that there are primitives for. Between two of them the larger one runs, on rows of other groups too, whose results are
// dropped.
constexpr int64_t kRows[] = {1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64};
constexpr int64_t kLeastColumns = 128;  // of a block: fewer would pack the rows too often
constexpr double kSliceFlops = 1e6;     // what one thread takes at least: some 10 us
constexpr int64_t kAlign = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// What the anchor says, in oneDNN's words.
struct Shape {
  int64_t rows, depth, columns, groups, blocks, block;  // `blocks` of `block` columns
  memory::data_type type;
  int64_t bytes;  // of an element
  memory::dims x_strides, weight_strides, result_strides;

  Shape(const AnchorDesc& a, int num_threads)
      : rows(a.operands[0].sizes[0]),
        depth(a.operands[0].sizes[1]),
        columns(a.operands[1].sizes[2]),
        groups(a.operands[1].sizes[0]),
        blocks(1),
        type(a.operands[0].dtype == kDType_bf16 ? memory::data_type::bf16 : memory::data_type::f32),
        bytes(codegen::dtype_bytes(a.operands[0].dtype)),
        x_strides(a.operands[0].strides.begin(), a.operands[0].strides.end()),
        weight_strides(a.operands[1].strides.begin() + 1, a.operands[1].strides.end()),
        result_strides(a.results[0].strides.begin(), a.results[0].strides.end()) {
    for (int64_t n = 2; n <= num_threads; ++n)
      if (columns % n == 0 && columns / n >= kLeastColumns && columns / n % 16 == 0) blocks = n;
    block = columns / blocks;
    // Axes of size 1 have any stride; oneDNN wants a sensible one.
    if (depth == 1) x_strides[1] = 1, weight_strides[0] = weight_strides[1] == 1 ? block : 1;
    if (rows == 1) x_strides[0] = depth, result_strides[0] = columns;
    if (columns == 1) result_strides[1] = 1, weight_strides[1] = weight_strides[0] == 1 ? depth : 1;
  }

  memory::desc plain_weights() const { return {{depth, block}, type, weight_strides}; }
  memory::desc any_weights() const { return {{depth, block}, type, memory::format_tag::any}; }
  memory::desc x(int64_t count) const { return {{count, depth}, type, x_strides}; }
  memory::desc result(int64_t count) const { return {{count, block}, type, result_strides}; }
  // The largest number of rows that is multiplied at once.
  int64_t most_rows() const {
    int64_t most = 1;
    for (int64_t count : kRows) most = count <= rows ? count : most;
    return most;
  }
};

struct Product {
  int64_t rows;
  dnnl::matmul::primitive_desc description;
};

dnnl::matmul::primitive_desc describe(const Shape& s, int64_t rows, const memory::desc& weights) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return {vendor_engine(), s.x(rows), weights, memory::desc(), s.result(rows), attributes};
}

bool is_fast(const dnnl::matmul::primitive_desc& description) {
  return std::string_view(description.impl_info_str()).substr(0, 3) != "ref";
}

// One for each number of rows that oneDNN is fast for with such weights. Empty where single rows are not among them.
std::vector<Product> products_of(const Shape& s, const memory::desc& weights) {
  std::vector<Product> out;
  for (int64_t rows : kRows) {
    if (rows > s.rows) break;
    dnnl::matmul::primitive_desc description = describe(s, rows, weights);
    if (is_fast(description)) out.push_back({rows, std::move(description)});
    if (out.empty()) return out;
  }
  return out;
}

// Arguments of all products, for one thread at a time.
struct Arguments {
  struct OfProduct {
    memory x, result, scratch;
    dnnl_exec_arg_t list[4];
  };
  memory weights;
  std::vector<OfProduct> products;
  dnnl::stream stream;
};

class GroupedStep : public codegen::Step {
 public:
  GroupedStep(const AnchorDesc& a, const Shape& shape, std::vector<Product> products, memory::desc weights, int num_threads)
      : s_(shape), x_(a.operands[0]), w_(a.operands[1]), ends_(a.operands[2]), result_(a.results[0]), weights_(std::move(weights)),
        num_threads_(std::max(1, num_threads)) {
    for (const Product& each : products) {
      rows_.push_back(each.rows);
      made_.emplace_back(each.description);
      scratchpads_.push_back(each.description.scratchpad_desc());
      scratch_bytes_ = std::max(scratch_bytes_, aligned(static_cast<int64_t>(scratchpads_.back().get_size())));
    }
    spare_bytes_ = aligned(((rows_.back() - 1) * s_.result_strides[0] + s_.block) * s_.bytes);
    grain_ = std::max<int64_t>(1, static_cast<int64_t>(kSliceFlops / (2.0 * static_cast<double>(s_.depth * s_.block))));
    description_ = std::string("onednn ") + products.back().description.impl_info_str() + " [" + std::to_string(s_.rows) + "x" +
                   std::to_string(s_.depth) + "] * " + std::to_string(s_.groups) + " x [" + std::to_string(s_.depth) + "x" +
                   std::to_string(s_.columns) + "]";
  }

  // For each group its blocks of columns, one after the other.
  void set_packs(std::vector<std::shared_ptr<const PackedWeight>> packs) { packs_ = std::move(packs); }

  krn_code run(const codegen::RunContext& context) const override {
    int64_t last = 0;
    for (int64_t group = 0; group < s_.groups; ++group) {
      const int64_t end = end_of(context, group);
      if (end < last || end > s_.rows) {
        kit::set_error(context.err, KRN_STATUS_invalid_input,
                       "the ends of groups of rows do not ascend, or lie behind the last row; the region's results are dropped: eager "
                       "answers");
        return KRN_STATUS_invalid_input;
      }
      last = end;
    }
    Call call{this, &context, {KRN_STATUS_ok}};
    const int64_t units = s_.blocks * s_.rows;
    const bool threads = context.threads && context.threads->parallel_for && units > grain_ &&
                         context.threads->num_threads(context.host) <= num_threads_;
    if (!threads) {
      multiply(&call, 0, units, 0);
    } else {
      context.threads->parallel_for(context.host, units, grain_, [](void* ctx, int64_t begin, int64_t end, int32_t thread) {
        auto* c = static_cast<Call*>(ctx);
        c->step->multiply(c, begin, end, thread);
      }, &call);
    }
    const krn_code code = call.code.load(std::memory_order_relaxed);
    if (code != KRN_STATUS_ok) kit::set_error(context.err, code, description_ + " failed");
    return code;
  }
  std::string describe() const override { return description_; }
  int64_t workspace_bytes() const override { return (scratch_bytes_ + spare_bytes_) * num_threads_; }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }
  int64_t constant_bytes() const override {
    int64_t bytes = 0;
    for (const auto& pack : packs_) bytes += static_cast<int64_t>(pack->layout().get_size());
    return bytes;
  }

 private:
  struct Call {
    const GroupedStep* step;
    const codegen::RunContext* context;
    std::atomic<krn_code> code;
  };
  struct Thread {
    const codegen::RunContext& context;
    Arguments& arguments;
    char *scratch, *spare;
  };

  int64_t end_of(const codegen::RunContext& context, int64_t group) const {
    const void* base = context.buffers[ends_.buffer];
    const int64_t at = ends_.offset + group * ends_.strides[0];
    return ends_.dtype == kDType_i64 ? static_cast<const int64_t*>(base)[at] : static_cast<const int32_t*>(base)[at];
  }

  // Units are rows of one block of columns, block after block.
  void multiply(Call* call, int64_t begin, int64_t end, int32_t thread) const try {
    const codegen::RunContext& context = *call->context;
    std::unique_ptr<Arguments> arguments = take();
    char* workspace = static_cast<char*>(context.buffers[workspace_]) + (scratch_bytes_ + spare_bytes_) * thread;
    const Thread t{context, *arguments, workspace, workspace + scratch_bytes_};
    for (int64_t unit = begin; unit < end;) {
      const int64_t block = unit / s_.rows, first = unit % s_.rows, rows = std::min(s_.rows - first, end - unit);
      if (const krn_code code = multiply_block(t, block, first, first + rows); code != KRN_STATUS_ok) call->code = code;
      unit += rows;
    }
    pool_.give_back(std::move(arguments));
  } catch (const std::bad_alloc&) {
    call->code = KRN_STATUS_exhausted;
  } catch (const std::exception&) {
    call->code = KRN_STATUS_internal;
  }

  krn_code multiply_block(const Thread& t, int64_t block, int64_t first, int64_t last) const {
    int64_t row = first;
    for (int64_t group = 0; group < s_.groups && row < last; ++group) {
      const int64_t end = std::min(end_of(t.context, group), last);
      if (end <= row) continue;
      set_handle(t.arguments.weights, weights_of(t.context, group, block));
      while (row < end)
        if (const krn_code code = multiply_rows(t, block, row, end); code != KRN_STATUS_ok) return code;
    }
    for (; row < last; ++row) clear_row(t.context, block, row);
    return KRN_STATUS_ok;
  }

  // Some rows from `row` on, which then lies behind them.
  krn_code multiply_rows(const Thread& t, int64_t block, int64_t& row, int64_t end) const {
    const int64_t wanted = std::min(end - row, rows_.back());
    const size_t p = static_cast<size_t>(std::lower_bound(rows_.begin(), rows_.end(), wanted) - rows_.begin());
    const bool exact = rows_[p] == wanted;
    const int64_t from = std::min(row, s_.rows - rows_[p]);
    Arguments::OfProduct& product = t.arguments.products[p];
    char* to = result_at(t.context, block, row);
    set_handle(product.x, at(t.context, x_, from * x_.strides[0]));
    set_handle(product.result, exact ? to : t.spare);
    set_handle(product.scratch, t.scratch);
    const dnnl_status_t status = dnnl_primitive_execute(made_[p].get(), t.arguments.stream.get(), 4, product.list);
    if (status != dnnl_success) return KRN_STATUS_internal;
    if (!exact) {
      const int64_t step = s_.result_strides[0] * s_.bytes;
      for (int64_t i = 0; i < wanted; ++i)
        std::memcpy(to + i * step, t.spare + (row - from + i) * step, static_cast<size_t>(s_.block * s_.bytes));
    }
    row += wanted;
    return KRN_STATUS_ok;
  }

  void clear_row(const codegen::RunContext& context, int64_t block, int64_t row) const {
    std::memset(result_at(context, block, row), 0, static_cast<size_t>(s_.block * s_.bytes));
  }

  char* at(const codegen::RunContext& context, const TensorDesc& tensor, int64_t element) const {
    return static_cast<char*>(context.buffers[tensor.buffer]) + (tensor.offset + element) * s_.bytes;
  }
  char* result_at(const codegen::RunContext& context, int64_t block, int64_t row) const {
    return at(context, result_, row * result_.strides[0] + block * s_.block * result_.strides[1]);
  }
  void* weights_of(const codegen::RunContext& context, int64_t group, int64_t block) const {
    if (!packs_.empty()) return packs_[static_cast<size_t>(group * s_.blocks + block)]->data();
    return at(context, w_, group * w_.strides[0] + block * s_.block * w_.strides[2]);
  }

  static void set_handle(const memory& of, void* data) { dnnl_memory_set_data_handle(of.get(), data); }

  std::unique_ptr<Arguments> take() const {
    if (auto one = pool_.take()) return one;
    auto one = std::make_unique<Arguments>();
    one->weights = memory(weights_, vendor_engine(), nullptr);
    one->stream = dnnl::stream(vendor_engine());
    for (size_t p = 0; p < rows_.size(); ++p) {
      Arguments::OfProduct each{memory(s_.x(rows_[p]), vendor_engine(), nullptr), memory(s_.result(rows_[p]), vendor_engine(), nullptr),
                                memory(scratchpads_[p], vendor_engine(), nullptr), {}};
      each.list[0] = {DNNL_ARG_SRC, each.x.get()};
      each.list[1] = {DNNL_ARG_WEIGHTS, one->weights.get()};
      each.list[2] = {DNNL_ARG_DST, each.result.get()};
      each.list[3] = {DNNL_ARG_SCRATCHPAD, each.scratch.get()};
      one->products.push_back(std::move(each));
    }
    return one;
  }

  const Shape s_;
  const TensorDesc x_, w_, ends_, result_;
  const memory::desc weights_;
  const int num_threads_;
  std::vector<int64_t> rows_;  // of each product, ascending
  std::vector<dnnl::matmul> made_;
  std::vector<memory::desc> scratchpads_;
  std::vector<std::shared_ptr<const PackedWeight>> packs_;
  int64_t scratch_bytes_ = 0, spare_bytes_ = 0, grain_ = 1;
  uint32_t workspace_ = TensorDesc::KRN_NONE_BUFFER;
  std::string description_;
  mutable kit::Pool<Arguments> pool_;
};

// What the rest indexes with. Claims are asked about bytes that nobody has checked.
bool fits(const AnchorDesc& a) {
  if (a.operands.size() != 3 || a.results.size() != 1) return false;
  const TensorDesc &x = a.operands[0], &w = a.operands[1], &ends = a.operands[2], &result = a.results[0];
  for (const TensorDesc* each : {&x, &w, &ends, &result})
    if (!each->present()) return false;
  return x.sizes.size() == 2 && w.sizes.size() == 3 && w.sizes[1] == x.sizes[1] && ends.sizes == std::vector<int64_t>{w.sizes[0]} &&
         result.sizes == std::vector<int64_t>{x.sizes[0], w.sizes[2]} && w.dtype == x.dtype && result.dtype == x.dtype;
}

// All groups' weights in `layout`; empty where the host does not have their values.
std::vector<std::shared_ptr<const PackedWeight>> pack_groups(const Shape& s, const TensorDesc& weights, const memory::desc& layout,
                                                             const codegen::CompileContext& context) {
  std::vector<std::shared_ptr<const PackedWeight>> packs;
  for (int64_t group = 0; group < s.groups; ++group)
    for (int64_t block = 0; block < s.blocks; ++block) {
      TensorDesc part = weights;
      part.offset += group * weights.strides[0] + block * s.block * weights.strides[2];
      auto pack = pack_weight(part, s.plain_weights(), layout, context);
      if (!pack) return {};
      packs.push_back(std::move(pack));
    }
  return packs;
}

}  // namespace

bool grouped_takes(const AnchorDesc& a, int num_threads, std::string& why_not) {
  if (!fits(a)) return why_not = "operands that do not fit", false;
  const TensorDesc &x = a.operands[0], &w = a.operands[1], &ends = a.operands[2];
  if (ends.dtype != kDType_i64 && ends.dtype != kDType_i32) return why_not = "ends of groups in narrow integers", false;
  const auto repeats = [](const TensorDesc& t, size_t axis) { return t.strides[axis] == 0 && t.sizes[axis] != 1; };
  if (repeats(x, 0) || repeats(x, 1) || repeats(w, 1) || repeats(w, 2)) return why_not = "a matrix with a broadcast row or column", false;
  if (a.results[0].strides[1] != 1 && a.results[0].sizes[1] != 1) return why_not = "results whose rows do not lie together", false;
  const Shape s(a, num_threads);
  for (int64_t rows : {int64_t{1}, s.most_rows()})
    if (!is_fast(describe(s, rows, s.plain_weights()))) return why_not = "oneDNN has only its reference for this shape", false;
  return true;
}

std::unique_ptr<codegen::Step> make_grouped(const AnchorDesc& a, int num_threads, const codegen::CompileContext& context) {
  const Shape s(a, num_threads);
  // Only layouts in blocks are worth a copy: without them oneDNN packs at each run, as it does with the weights as they lie.
  const memory::desc liked = describe(s, s.most_rows(), s.any_weights()).weights_desc();
  const bool packs = a.packed && a.operands[1].weight != KRN_NONE_WEIGHT && liked.get_inner_nblks() > 0;
  if (std::vector<Product> products = packs ? products_of(s, liked) : std::vector<Product>(); !products.empty()) {
    auto packed = pack_groups(s, a.operands[1], liked, context);
    if (!packed.empty()) {
      auto step = std::make_unique<GroupedStep>(a, s, std::move(products), liked, num_threads);
      step->set_packs(std::move(packed));
      return step;
    }
  }
  return std::make_unique<GroupedStep>(a, s, products_of(s, s.plain_weights()), s.plain_weights(), num_threads);
}

}  // namespace keirin::cpu
