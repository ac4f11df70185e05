// SPDX-License-Identifier: Apache-2.0
//
// How a kernel is cut into units of work is decided here, once, from its sizes; how many units a thread takes is decided at each
// run by the host's pool. Results do not depend on either: a reduction never crosses a unit.
#include "plugins/processor/launch.h"

#include <algorithm>
#include <atomic>

#include "abi/planted.h"
#include "plugins/codegen/llvm/code_cache.h"
#include "plugins/codegen/llvm/spills.h"
#include "plugins/kit/error.h"

namespace keirin::processor {
namespace {

namespace native = codegen::native;
using codegen::AxisKind;
using codegen::Kernel;

double dtype_bytes(uint8_t dtype) {
  switch (dtype) {
#define KRN_DTYPE(id, name, bits, dl, cls) \
  case id: return bits / 8.0;
#include "abi/dtypes.def"
#undef KRN_DTYPE
    default: return 0;
  }
}

bool is_elementary(codegen::Prim prim) { return prim >= codegen::Prim::kExp && prim <= codegen::Prim::kPow; }

// Work is counted in bytes moved; an elementary function counts as much as 16 of them, any other node as 1.
double bytes_of_element(const Kernel& k) {
  double bytes = 0;
  for (const codegen::Access& a : k.accesses) {
    const bool moves = a.index.coeff.back() != 0 || !a.indirects.empty();
    bytes += moves ? dtype_bytes(a.dtype) : 0.25;
  }
  for (const codegen::Node& n : k.dag.nodes) bytes += is_elementary(n.prim) ? 16 : 0.25;
  return bytes;
}

constexpr double kAloneBytes = 64 << 10;   // below it, starting threads costs more than it saves: about 5 us of one thread
constexpr double kSliceBytes = 128 << 10;  // what one thread takes at least
constexpr int64_t kVectorBlock = 64;       // elements; a block is a multiple, so that only the last has a tail

class KernelStep : public codegen::Step {
 public:
  KernelStep(const Kernel& k, native::KernelFunction function, const codegen::TargetInfo& target)
      : function_(function), arguments_(codegen::size_arguments(k)), num_threads_(std::max(1, target.num_threads)) {
    for (const codegen::Buffer& b : k.buffers) buffers_.push_back(b.id);
    if (k.has_csr) row_pointers_ = k.csr.row_ptr_buffer, edge_order_ = k.csr.perm_buffer;
    for (const codegen::Access& a : k.accesses) {
      for (const auto& i : a.indirects) {
        checks_ = true;
        nothing_to_index_ |= i.limit == 0;
      }
    }
    cut(k);
    describe(k);
  }

  krn_code run(const codegen::RunContext& context) const override {
    if (units_ == 0) return KRN_STATUS_ok;
    std::atomic<int32_t> out_of_range{nothing_to_index_ ? 1 : 0};
    static_assert(sizeof out_of_range == 4);
    if (!nothing_to_index_) launch(context, &out_of_range);
    if (KRN_PLANTED(index_unseen) || !checks_ || out_of_range.load(std::memory_order_relaxed) == 0) return KRN_STATUS_ok;
    kit::set_error(context.err, KRN_STATUS_invalid_input,
                   "an index is out of range in " + description_ + "; the region's results are dropped: eager names the index");
    return KRN_STATUS_invalid_input;
  }
  std::string describe() const override { return description_; }
  int64_t workspace_bytes() const override { return scratch_bytes_ * num_threads_; }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }

 private:
  struct Call {
    const KernelStep* step;
    void* const* pointers;
    char* scratch;
  };

  void cut(const Kernel& k) {
    const int64_t inner = k.axes.back().size;
    int64_t points = 1, serial = 1;
    for (const codegen::Axis& a : k.axes) {
      if (a.kind == AxisKind::kOuter) points *= a.size;
      if (a.kind == AxisKind::kSerial) serial *= a.size;
      if (a.kind == AxisKind::kSegment && k.csr.num_rows > 0) serial *= std::max<int64_t>(1, k.csr.num_edges / k.csr.num_rows);
    }
    const double element = bytes_of_element(k) * static_cast<double>(std::max<int64_t>(serial, 1));  // sums over nothing cost something
    int64_t block = inner;
    if (native::splits_rows(k) && inner > 0) {
      const int64_t wanted_blocks = points >= 4 * num_threads_ ? 1 : (4 * num_threads_ + points - 1) / std::max<int64_t>(points, 1);
      const auto least = static_cast<int64_t>(kSliceBytes / 2 / element);
      block = std::max({(inner + wanted_blocks - 1) / wanted_blocks, least, kVectorBlock});
      block = std::min(inner, (block + kVectorBlock - 1) / kVectorBlock * kVectorBlock);
      if (native::walks_down(k)) block = std::min(inner, native::kWalkBlock);
    }
    const int64_t num_blocks = block > 0 && native::splits_rows(k) ? (inner + (KRN_PLANTED(last_block) ? 0 : block - 1)) / block
                               : native::splits_rows(k)            ? 0
                                                                   : 1;
    arguments_.push_back(block);
    arguments_.push_back(num_blocks);
    units_ = points * num_blocks;
    const double unit_bytes = std::max(1.0, element * static_cast<double>(block));
    alone_ = unit_bytes * static_cast<double>(units_) < kAloneBytes;
    grain_ = std::max<int64_t>(1, static_cast<int64_t>(kSliceBytes / unit_bytes));
    scratch_bytes_ = native::scratch_bytes(k, block);
  }

  void describe(const Kernel& k) {
    description_ = "kernel " + k.name + (k.column ? " column [" : " row [");
    for (size_t a = 0; a < k.axes.size(); ++a) description_ += (a ? " x " : "") + std::to_string(k.axes[a].size);
    description_ += ']';
  }

  void launch(const codegen::RunContext& context, std::atomic<int32_t>* out_of_range) const {
    constexpr size_t kMaxPointers = 128;
    void* few[kMaxPointers];
    std::vector<void*> many;
    const size_t count = buffers_.size() + native::kNumExtraPointers;
    void** pointers = few;
    if (count > kMaxPointers) {
      many.resize(count);
      pointers = many.data();
    }
    for (size_t i = 0; i < buffers_.size(); ++i) pointers[i] = context.buffers[buffers_[i]];
    pointers[buffers_.size() + native::kRowPointers] = row_pointers_ == kNone ? nullptr : context.buffers[row_pointers_];
    pointers[buffers_.size() + native::kEdgeOrder] = edge_order_ == kNone ? nullptr : context.buffers[edge_order_];
    pointers[buffers_.size() + native::kErrorFlag] = out_of_range;
    char* scratch = workspace_ == kNone ? nullptr : static_cast<char*>(context.buffers[workspace_]);
    const bool threads = context.threads && context.threads->parallel_for && !alone_ && units_ > grain_;
    if (!threads || (scratch_bytes_ > 0 && context.threads->num_threads(context.host) > num_threads_)) {
      function_(pointers, arguments_.data(), 0, units_, scratch);
      return;
    }
    Call call{this, pointers, scratch};
    context.threads->parallel_for(
        context.host, units_, grain_,
        [](void* ctx, int64_t begin, int64_t end, int32_t thread) {
          const auto* c = static_cast<const Call*>(ctx);
          c->step->function_(c->pointers, c->step->arguments_.data(), begin, end, c->scratch + c->step->scratch_bytes_ * thread);
        },
        &call);
  }

  static constexpr uint32_t kNone = 0xffffffffu;
  native::KernelFunction function_;
  std::vector<int64_t> arguments_;
  std::vector<uint32_t> buffers_;
  uint32_t row_pointers_ = kNone, edge_order_ = kNone, workspace_ = kNone;
  int num_threads_;
  int64_t units_ = 0, grain_ = 1, scratch_bytes_ = 0;
  bool alone_ = false, checks_ = false, nothing_to_index_ = false;
  std::string description_;
};

}  // namespace

std::unique_ptr<codegen::Step> make_kernel_step(const Kernel& kernel, native::KernelFunction function,
                                                const codegen::TargetInfo& target) {
  return std::make_unique<KernelStep>(kernel, function, target);
}

}  // namespace keirin::processor
