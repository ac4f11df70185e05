// SPDX-License-Identifier: Apache-2.0
//
// What a plugin gives the code generator (a Backend), and what it gets back to run (Steps). An executable is a flat list of
// steps over numbered buffers; the code generator plans it, the backend turns kernels and anchors into launchable things.
//
// Failure inside a plugin is kit::Error (plugins/kit/error.h), converted at the ABI by the kit's barrier. `run` of a step is
// the exception: it returns a code and throws nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "abi/plugin.h"
#include "plugins/codegen/kernel/loops.h"
#include "plugins/kit/error.h"

namespace keirin::codegen {

// Facts every threshold reads from; a plugin fills it from its target row and from measuring.
struct TargetInfo {
  int vector_bytes = 32;           // widest register, or 0 where a thread is scalar (GPU)
  int short_inner = 0;             // axes of fewer elements are not vectorised where a longer one can be, since what is left of vectors
                                   // goes element by element; 0: vectors have masks, any axis may be
  int num_threads = 1;
  double bytes_per_s = 20e9;       // memory
  int sector_bytes = 0;            // what memory moves at least, where less side by side costs as much; 0: not asked
  double flops_per_s = 100e9;      // f32
  double special_per_s = 2e9;      // exp, tanh, ... per second
  double launch_ns = 1000;         // starting one kernel
  int64_t cache_bytes = 1 << 20;   // what a row and its intermediates may fill
  int64_t max_row_elements = 32768; // longest row of the row class
  double max_score_bytes = 0;      // attention whose scores take no more is two products around a softmax; 0: none is
  double max_grouped_products = 1 << 16;  // multiply-adds of all rows with all groups' weights that may stand for each group's own
  bool updates_rows = false;       // generated stores may go to rows that an index names
  bool joins_deviations = false;   // kernels may have Monoid::kDeviations
  bool wide_products = false;      // products of 16-bit operands, without a bias, may have results in f32
  int max_kernel_buffers = 32;
  int max_kernel_nodes = 128;
};

struct RunContext {
  void** buffers = nullptr;            // by buffer id: base addresses, this run's own table
  std::vector<std::shared_ptr<const void>>* keep = nullptr;  // alive until the run's steps are done
  const krn_run* run = nullptr;        // stream, run id
  const krn_host_threads* threads = nullptr;
  krn_host* host = nullptr;
  krn_err* err = nullptr;
};

class Step {
 public:
  virtual ~Step() = default;
  // Enqueues (or, on a CPU, does) the work. Concurrent runs of one executable use different RunContexts and may overlap.
  virtual krn_code run(const RunContext& context) const = 0;
  virtual std::string describe() const = 0;  // "kernel k3 row [4x128, 768]", "onednn brgemm matmul"
  virtual int64_t workspace_bytes() const { return 0; }  // extra scratch the planner must give; see set_workspace
  virtual void set_workspace(uint32_t /*buffer*/) {}
  virtual int64_t constant_bytes() const { return 0; }  // memory it holds between runs: packed weights
  // Of a device: whether it may begin before the step before it has ended, because it waits itself; then that one is told.
  virtual bool begins_early() const { return false; }
  virtual void let_next_begin() {}
};

// A tensor operand of an anchor: a buffer with a shape.
struct TensorDesc {
  uint32_t buffer = KRN_NONE_BUFFER;
  uint8_t dtype = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;             // elements from the buffer's base to the first element
  uint32_t weight = 0xffffffffu;  // id for krn.host.consts, or none
  static constexpr uint32_t KRN_NONE_BUFFER = 0xffffffffu;
  bool present() const { return buffer != KRN_NONE_BUFFER; }
  bool operator==(const TensorDesc&) const = default;
};

// An elementwise op applied to an anchor's result before it is stored.
struct PostOp {
  uint32_t op;                  // ops.def: relu gelu gelu_tanh silu sigmoid tanh add mul clamp hardswish ...
  TensorDesc operand;           // add, mul: the other operand (same sizes as the result, or broadcast)
  double alpha = 0, beta = 0;   // clamp bounds, leaky_relu slope
  bool operator==(const PostOp&) const = default;
};

struct AnchorDesc {
  uint32_t op = 0;                   // matmul linear conv lstm gru attention max_pool ...
  std::vector<TensorDesc> operands;  // as in ops.def; absent ones have present() == false
  std::vector<TensorDesc> results;
  std::vector<PostOp> post_ops;
  // Attributes of the node, in the forms of attrs.def.
  std::vector<int64_t> stride, padding, dilation, output_padding, kernel, sizes;
  int64_t groups = 1, layers = 1, divisor = 0;
  bool transposed = false, causal = false, gqa = false, bidirectional = false, batch_first = false, has_biases = false,
       ceil_mode = false, count_include_pad = true, align_corners = false, include_last_offset = false, ieee = false;
  double scale = 0;
  std::string mode;
  bool packed = true;                // candidate: keep constant weights in the library's own layout
  bool operator==(const AnchorDesc&) const = default;
};

// Who runs an anchor and what that needs, in its backend's own words.
struct AnchorChoice {
  virtual ~AnchorChoice() = default;
};

// An anchor whose storage is final, and who runs it; null where the backend has one way for all.
struct ChosenAnchor {
  const AnchorDesc* desc = nullptr;
  std::shared_ptr<const AnchorChoice> choice;
};

struct CompileContext {
  const krn_host_core* core = nullptr;
  const krn_host_consts* consts = nullptr;
  const krn_host_memory* memory = nullptr;
  const krn_host_threads* threads = nullptr;
  krn_host* host = nullptr;
  uint64_t weights = 0;              // handle for krn.host.consts
  const krn_policy* policy = nullptr;
  const krn_options* options = nullptr;
};

// Kernels of one step, in the order of the plan. More than one: of equal together_key, and none needs what another writes.
using Together = std::vector<const Kernel*>;
std::vector<const Kernel*> all_of(std::span<const Together> steps);

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const TargetInfo& target() const = 0;
  // From now on a call waits for what is asked for: no code is generated, nothing is timed, no library makes plans. What needs one of these
  // throws kit::Error(unsupported). Default: as ever.
  virtual void take_what_is_there() {}
  // Whether products may compute all rows of their class (plugins/codegen/plan/row_class.h): where code is made for each number of them.
  virtual bool computes_row_classes() const { return false; }

  // Whether the node (op id, dtype of its first operand) can be claimed at all. Default: every dtype that code computes in.
  virtual bool supports(uint32_t op, uint8_t dtype, std::string& why_not) const;
  // Whether the library takes this anchor itself, and whether `post` may be appended to those it has. An anchor it does not
  // take is generated (pools, upsampling, small matmul) or not claimed.
  virtual bool takes_anchor(const AnchorDesc& anchor, std::string& why_not) const = 0;
  virtual bool takes_post_op(const AnchorDesc& anchor, const PostOp& post) const = 0;

  // Kernels of equal keys may be one step, however many. Default: empty, each is a step of its own.
  virtual std::string together_key(const Kernel& /*kernel*/) const { return {}; }
  // Compiles kernels (structures known already come from the backend's cache) and returns the steps, in order.
  // `generated` receives the number of kernels for which code was really generated.
  virtual std::vector<std::unique_ptr<Step>> lower_kernels(std::span<const Together> steps, const CompileContext& context,
                                                           uint32_t& generated) = 0;
  // Who runs an anchor that was taken, decided once, when its storage is final; prepare_anchors and lower_anchor are told. Throws
  // kit::Error where nobody does. Default: null.
  virtual std::shared_ptr<const AnchorChoice> choose_anchor(const AnchorDesc& /*anchor*/) const { return nullptr; }
  // All that lower_anchor will be asked for one by one: what may be done for many at once is done here.
  virtual void prepare_anchors(std::span<const ChosenAnchor> /*anchors*/) {}
  virtual std::unique_ptr<Step> lower_anchor(const ChosenAnchor& anchor, const CompileContext& context) = 0;
  // Whether `next`, which needs nothing of `those`, may be one step with them; then lower_joined makes it.
  virtual bool joins(std::span<const AnchorDesc* const> /*those*/, const AnchorDesc& /*next*/) const { return false; }
  virtual std::unique_ptr<Step> lower_joined(std::span<const AnchorDesc* const> anchors, const CompileContext& context) {
    return lower_anchor({anchors[0], choose_anchor(*anchors[0])}, context);
  }
  // The step that sets row_ptr and perm of `csr` in the run's table. nullptr: the code generator's own, which reads the index
  // in host memory (plugins/codegen/region/csr.h).
  virtual std::unique_ptr<Step> lower_csr(const Csr& /*csr*/, const CompileContext& /*context*/) { return nullptr; }
  // Appends generated code for krn.artifact, and takes it back before lower_kernels asks for it: warm start without compiling.
  virtual void save_code(std::span<const Together> steps, std::vector<uint8_t>& out) const = 0;
  virtual void load_code(std::span<const uint8_t> bytes) = 0;
  // What artifacts are checked against: target, compiler, options, versions of libraries.
  virtual std::string token() const { return {}; }
  virtual uint64_t code_bytes() const { return 0; }  // of the process's generated code
};

// What Backend::take_what_is_there says of a kernel whose structure was not compiled before.
kit::Error not_compiled(const std::string& kernel);

// Where generated text goes if somebody asked for it: each piece with a first line that names it, "; name.ll". Else empty.
using TextSink = std::function<void(const std::string& name, const std::string& text)>;
TextSink text_sink(const CompileContext& context, std::string_view comment, std::string_view ending);

}  // namespace keirin::codegen
