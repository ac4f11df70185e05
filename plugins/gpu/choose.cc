// SPDX-License-Identifier: Apache-2.0
//
// Products of a few rows, convolutions of small groups, attention, bags and the steps of recurrent layers by kernels of our own, other
// products, convolutions and attention without a mask by the vendor's libraries, a 1x1 convolution by the faster of the two, one of few
// channels and a stride regrouped where that is faster. A convolution of one pixel is a product of few rows. Everything else that an anchor
// may ask for is refused here with its reason.
#include "plugins/gpu/choose.h"

#include "plugins/codegen/region/rewrite.h"
#include "plugins/gpu/alike.h"
#include "plugins/gpu/attention.h"
#include "plugins/gpu/bags.h"
#include "plugins/gpu/conv.h"
#include "plugins/gpu/gemv.h"
#include "plugins/gpu/grouped.h"
#include "plugins/gpu/plan.h"
#include "plugins/gpu/product.h"
#include "plugins/gpu/rnn.h"
#include "plugins/gpu/stem.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

constexpr int64_t kLeastStemBytes = int64_t{1} << 20;

// Attention by a kernel of ours where a library's may be four times as fast: its multiply-adds are at most an eighth of those of the
// products around it, which are 4 for its own operands and 8 behind it, each the width squared for a token.
bool is_little(const HeadsProblem& heads) {
  const int64_t width = heads.q.sizes[1] * heads.q.sizes[3], keys = heads.k.sizes[2];
  return 2 * keys * 8 <= 12 * width;
}

// Who was fastest at a convolution where that was timed, by what all sizes of it have in common.
enum class FastestConv : uint8_t { kLibrary, kProduct, kStem };
Alike<FastestConv>& fastest_convs() {
  static auto* all = new Alike<FastestConv>;
  return *all;
}
std::string fastest_key(const ConvShares& shares, const Gpu& gpu) {
  return gpu.arch + (shares.tail ? " tail " : " ") + shares.problem.family();
}

bool is_product(const codegen::AnchorDesc& anchor) { return anchor.op == kit::kOp_matmul || anchor.op == kit::kOp_linear; }
bool is_recurrent(const codegen::AnchorDesc& anchor) { return anchor.op == kit::kOp_lstm || anchor.op == kit::kOp_gru; }

Pick pick_of(const Numerics& numerics, Effort effort) {
  if (numerics.deterministic) return Pick::kFirst;
  return effort == Effort::kTimed ? Pick::kFastest : Pick::kLikeOthers;
}

const PlanLibrary* plans_for(const Gpu& gpu, Effort effort) {
  return effort == Effort::kAtOnce && gpu.plans ? &gpu.plans->at_once() : gpu.plans;
}

}  // namespace

std::optional<TextKernel> own_kernel(const codegen::AnchorDesc& anchor, const Gpu& gpu, const Numerics& numerics, std::string& why_not) {
  const codegen::AnchorDesc* const one[] = {&anchor};
  switch (anchor.op) {
    case kit::kOp_linear:
    case kit::kOp_embedding_bag: return joined_kernel(one, gpu, why_not);
    case kit::kOp_conv:
      if (const auto linear = conv_as_linear(anchor)) {
        const codegen::AnchorDesc* const row[] = {&*linear};
        if (auto kernel = gemv_kernel(row, gpu, why_not)) return kernel;
      }
      return grouped_kernel(anchor, gpu, numerics, why_not);
    case kit::kOp_attention:
      if (numerics.strict) return why_not = "attention under strict numerics runs in eager's kernel", std::nullopt;
      return attention_kernel(anchor, gpu, why_not);
    default: return why_not = "no library call for this anchor", std::nullopt;
  }
}

bool may_join(std::span<const codegen::AnchorDesc* const> those, const codegen::AnchorDesc& next) {
  if (those[0]->op != next.op) return false;
  if (next.op == kit::kOp_embedding_bag) return those.size() < kMostTables && bags_alike(*those[0], next);
  return next.op == kit::kOp_linear && those.size() < kMostProducts && gemv_alike(*those[0], next);
}

std::optional<TextKernel> joined_kernel(std::span<const codegen::AnchorDesc* const> anchors, const Gpu& gpu, std::string& why_not) {
  return anchors[0]->op == kit::kOp_linear ? gemv_kernel(anchors, gpu, why_not) : bags_kernel(anchors, why_not);
}

// An attention that is the library's.
static std::optional<HeadsProblem> library_heads(const codegen::AnchorDesc& anchor, const Gpu& gpu, const Numerics& numerics,
                                                 bool has_device) {
  if (anchor.op != kit::kOp_attention || numerics.strict || !has_device || !gpu.plans) return std::nullopt;
  std::string ignored;
  auto problem = heads_problem(anchor, ignored);
  return problem && gpu.plans->supports(*problem, ignored) ? std::move(problem) : std::nullopt;
}

std::optional<Choice> choose(const codegen::AnchorDesc& anchor, const Gpu& gpu, const Numerics& numerics, bool has_device,
                             std::string& why_not, Effort effort) {
  const auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  if (effort == Effort::kTimed) {
    if (auto heads = library_heads(anchor, gpu, numerics, has_device)) {
      Choice out(Choice::kHeads);
      out.heads = std::move(heads);
      return out;
    }
  }
  if (effort == Effort::kAtOnce && !numerics.strict && gpu.plans && anchor.op == kit::kOp_attention) {
    const auto heads = heads_problem(anchor, why_not);
    if (heads && !is_little(*heads)) return no("a library would have to plan it");
  }
  if (!numerics.strict && codegen::is_pixel_product(anchor)) return no("a convolution of one pixel is a sum for each channel");
  if (!is_recurrent(anchor)) {
    if (auto kernel = own_kernel(anchor, gpu, numerics, why_not)) {
      Choice out(Choice::kOwnKernel);
      out.kernel = std::move(kernel);
      return out;
    }
  }
  if (effort == Effort::kAtOnce && is_recurrent(anchor)) return no("a library would have to plan it");
  if (anchor.op == kit::kOp_conv || anchor.op == kit::kOp_conv_grad_weight) {
    // Without a device too: what is claimed here is compiled here.
    if (!gpu.plans) return no("no library of convolutions");
    Choice out(Choice::kConvolutions);
    out.shares = conv_shares(anchor, numerics, has_device ? plans_for(gpu, effort) : nullptr, why_not);
    return out.shares ? std::optional(std::move(out)) : std::nullopt;
  }
  if (!is_recurrent(anchor) && !is_product(anchor)) return std::nullopt;
  if (!gpu.products) return no("no library of products");
  if (has_device && !gpu.products->usable(why_not)) return std::nullopt;
  if (is_recurrent(anchor)) return rnn_taken(anchor, gpu, numerics, why_not) ? std::optional<Choice>(Choice::kRecurrent) : std::nullopt;
  const bool taken = product_taken(anchor, why_not) && (!has_device || (gpu.products->takes(anchor.operands[0].dtype, why_not) &&
                                                                       product_tail_taken(anchor, *gpu.products, why_not)));
  return taken ? std::optional<Choice>(Choice::kProducts) : std::nullopt;
}

bool post_op_taken(const codegen::AnchorDesc& anchor, const codegen::PostOp& post, const Gpu& gpu, const Numerics& numerics,
                   bool has_device, Effort effort) {
  std::string ignored;
  const bool own = (anchor.op == kit::kOp_conv || is_product(anchor)) && own_kernel(anchor, gpu, numerics, ignored);
  codegen::AnchorDesc longer = anchor;
  longer.post_ops.push_back(post);
  if (own) {  // it stays with the kernel it has
    return own_kernel(longer, gpu, numerics, ignored).has_value();
  }
  if (anchor.op == kit::kOp_conv)
    return conv_takes_post_op(anchor, post, numerics, has_device ? plans_for(gpu, effort) : nullptr, gpu.info.cache_bytes);
  return is_product(anchor) && product_takes_post_op(anchor, post) &&
         (!has_device || !gpu.products || product_tail_taken(longer, *gpu.products, ignored));
}

// One whose image is large enough for another launch to pay.
static std::optional<Stem> worthy_stem(const codegen::AnchorDesc& conv, const Numerics& numerics) {
  auto stem = stem_of(conv, numerics);
  return stem && stem->filter_at >= kLeastStemBytes ? std::move(stem) : std::nullopt;
}

void prepare_plans(std::span<const codegen::ChosenAnchor> anchors, const Gpu& gpu, const Numerics& numerics) {
  std::vector<ConvProblem> convs;
  std::vector<HeadsProblem> heads;
  for (const codegen::ChosenAnchor& anchor : anchors) {
    const auto& choice = static_cast<const Choice&>(*anchor.choice);
    if (choice.heads) heads.push_back(*choice.heads);
    if (!choice.shares) continue;
    convs.push_back(choice.shares->problem);
    if (auto stem = worthy_stem(*anchor.desc, numerics)) convs.push_back(std::move(stem->conv));
  }
  if (gpu.plans) gpu.plans->prepare(convs, heads);
}

// A 1x1 convolution as a product, if that took less time. It was timed with cold caches and the convolution with warm ones: where
// it wins all the same, it is faster.
static std::unique_ptr<codegen::Step> faster_product(const codegen::AnchorDesc& conv, const Gpu& gpu, const CodeTarget& target, bool tf32,
                                                     double conv_seconds) {
  const auto linear = conv_as_linear(conv);
  if (!linear) return nullptr;
  try {
    double seconds = 0;
    auto product = make_product(*linear, gpu, target, true, tf32, Pick::kFastest, &seconds);
    return seconds > 0 && seconds < conv_seconds ? std::move(product) : nullptr;
  } catch (const kit::Error&) {  // the library has none
    return nullptr;
  }
}

static std::unique_ptr<codegen::Step> faster_stem(const codegen::AnchorDesc& conv, const Numerics& numerics, const Gpu& gpu,
                                                  const CodeTarget& target, double conv_seconds) {
  const auto stem = worthy_stem(conv, numerics);
  if (!stem) return nullptr;
  try {
    const double seconds = gpu.plans->plan(stem->conv)->seconds();
    const bool faster = seconds > 0 && seconds + regroup_seconds(*stem, conv, gpu.info) < conv_seconds;
    return faster ? make_stem(*stem, conv, target, *gpu.plans, true) : nullptr;
  } catch (const kit::Error&) {  // the library has none
    return nullptr;
  }
}

// As where it was timed. What the library would have to compile is a product, where it may be one.
static std::unique_ptr<codegen::Step> conv_at_once(const codegen::AnchorDesc& conv, const ConvShares& shares, const Gpu& gpu,
                                                   const CodeTarget& target, const Numerics& numerics) {
  const PlanLibrary& library = gpu.plans->at_once();
  const auto fastest = fastest_convs().nearest(fastest_key(shares, gpu), shares.problem.volume());
  const auto linear = numerics.deterministic ? std::nullopt : conv_as_linear(conv);
  const auto product = [&] { return make_product(*linear, gpu, target, true, numerics.tf32_convolutions, Pick::kLikeOthers); };
  if (fastest == FastestConv::kProduct && linear) return product();
  if (const auto stem = fastest == FastestConv::kStem ? worthy_stem(conv, numerics) : std::nullopt)
    return make_stem(*stem, conv, target, library, true);
  try {
    return make_conv(conv, shares, library, target, true);
  } catch (const kit::Error&) {
    if (!linear) throw;
    return product();
  }
}

static std::unique_ptr<codegen::Step> fastest_conv(const codegen::AnchorDesc& conv, const ConvShares& shares, const Gpu& gpu,
                                                   const CodeTarget& target, const Numerics& numerics, bool load) {
  double conv_seconds = 0;
  auto step = make_conv(conv, shares, *gpu.plans, target, load, &conv_seconds);
  if (numerics.deterministic || !load) return step;
  FastestConv fastest = FastestConv::kLibrary;
  if (auto product = faster_product(conv, gpu, target, numerics.tf32_convolutions, conv_seconds)) {
    fastest = FastestConv::kProduct;
    step = std::move(product);
  } else if (auto stem = faster_stem(conv, numerics, gpu, target, conv_seconds)) {
    fastest = FastestConv::kStem;
    step = std::move(stem);
  }
  fastest_convs().remember(fastest_key(shares, gpu), shares.problem.volume(), fastest);
  return step;
}

std::unique_ptr<codegen::Step> make_anchor_step(const codegen::AnchorDesc& anchor, const Choice& choice, const Gpu& gpu,
                                                const CodeTarget& target, const Numerics& numerics, bool load, Effort effort) {
  switch (choice.runner) {
    case Choice::kOwnKernel: return make_text_step(*choice.kernel, target, load);
    case Choice::kConvolutions:
      if (effort == Effort::kAtOnce && load) return conv_at_once(anchor, *choice.shares, gpu, target, numerics);
      return fastest_conv(anchor, *choice.shares, gpu, target, numerics, load);
    case Choice::kHeads: {
      // For other sizes, which are not planned while a call waits.
      std::string ignored;
      if (const auto own = own_kernel(anchor, gpu, numerics, ignored)) (void)make_text_step(*own, target, false);
      return make_heads(anchor, *choice.heads, *gpu.plans);
    }
    case Choice::kProducts:
      return make_product(anchor, gpu, target, load, numerics.tf32_products, pick_of(numerics, effort));
    case Choice::kRecurrent: return make_rnn(anchor, gpu, target, numerics, load);
  }
  throw kit::Error(KRN_STATUS_internal, "an anchor that nobody runs");
}

}  // namespace keirin::gpu
