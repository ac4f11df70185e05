// SPDX-License-Identifier: Apache-2.0
//
// oneDNN anchors against plain loops in double: strides, broadcasts, groups, dilation, transposed and channels_last forms, every
// epilogue, packed and plain weights, groups of rows, LSTM and GRU. Operands sit in buffers of random floats.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "cpu/device.h"
#include "cpu/packed_weights.h"
#include "cpu/vendor.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"

namespace keirin::cpu {
namespace {

using enum kit::Op;
using enum kit::DType;
using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;
using Dims = std::vector<int64_t>;

Dims row_major(const Dims& sizes) {
  Dims strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) strides[i] = stride, stride *= sizes[i];
  return strides;
}

Dims channels_last(const Dims& sizes) {
  Dims strides(sizes.size());
  strides[1] = 1;
  int64_t stride = sizes[1];
  for (size_t i = sizes.size(); i-- > 2;) strides[i] = stride, stride *= sizes[i];
  strides[0] = stride;
  return strides;
}

// An executable's buffers, and the host's constants table over them: weight id = buffer id.
struct Bench {
  std::vector<std::vector<float>> buffers;
  std::mt19937 random{11};
  bool has_weights = true;

  TensorDesc tensor(const Dims& sizes, Dims strides = {}, bool constant = false) {
    if (strides.empty()) strides = row_major(sizes);
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
    TensorDesc t;
    t.buffer = static_cast<uint32_t>(buffers.size());
    t.dtype = kDType_f32;
    t.sizes = sizes;
    t.strides = strides;
    t.offset = 3;
    if (constant) t.weight = t.buffer;
    buffers.emplace_back(static_cast<size_t>(last + 4));
    for (float& x : buffers.back()) x = std::normal_distribution<float>(0, 1)(random);
    return t;
  }
  float& at(const TensorDesc& t, const Dims& index) {
    int64_t i = t.offset;
    for (size_t k = 0; k < index.size(); ++k) i += index[k] * t.strides[k];
    return buffers[t.buffer][static_cast<size_t>(i)];
  }

  TensorDesc whole_numbers(const std::vector<int64_t>& values, uint8_t dtype) {
    TensorDesc t;
    t.buffer = static_cast<uint32_t>(buffers.size());
    t.dtype = dtype;
    t.sizes = {static_cast<int64_t>(values.size())};
    t.strides = {1};
    t.offset = 1;
    buffers.emplace_back(2 * (values.size() + 1));
    set(t, values);
    return t;
  }
  void set(const TensorDesc& t, const std::vector<int64_t>& values) {
    char* to = reinterpret_cast<char*>(buffers[t.buffer].data());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto narrow = static_cast<int32_t>(values[i]);
      if (t.dtype == kDType_i64) std::memcpy(to + 8 * (i + 1), &values[i], 8);
      else std::memcpy(to + 4 * (i + 1), &narrow, 4);
    }
  }

  static krn_code KRN_CALL open(krn_host* host, uint64_t, uint32_t id, krn_tensor* out, krn_err*) {
    auto* self = reinterpret_cast<Bench*>(host);
    if (!self->has_weights) return KRN_STATUS_unsupported;
    out->data = self->buffers[id].data();
    out->storage_bytes = self->buffers[id].size() * sizeof(float);
    return KRN_STATUS_ok;
  }

  // Slices of [0, n) on threads of their own.
  static void KRN_CALL parallel_for(krn_host* host, int64_t n, int64_t grain, void(KRN_CALL* fn)(void*, int64_t, int64_t, int32_t),
                                    void* ctx) {
    const auto* self = reinterpret_cast<const Bench*>(host);
    const int64_t parts = std::min<int64_t>(self->num_threads, std::max<int64_t>(n / std::max<int64_t>(grain, 1), 1));
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < parts; ++i)
      threads.emplace_back([=] { fn(ctx, n * i / parts, n * (i + 1) / parts, static_cast<int32_t>(i)); });
    for (std::thread& each : threads) each.join();
  }
  static int32_t KRN_CALL count_threads(krn_host* host) { return reinterpret_cast<const Bench*>(host)->num_threads; }
  int num_threads = 1;

  krn_code run(const AnchorDesc& a, std::string* description = nullptr) {
    krn_host_consts consts{};
    consts.table.size = sizeof consts;
    consts.open = open;
    codegen::CompileContext context;
    context.consts = &consts;
    context.host = reinterpret_cast<krn_host*>(this);
    std::string why;
    EXPECT_TRUE(vendor_takes(a, false, why, num_threads)) << why;
    auto step = make_vendor_step(a, context, num_threads);
    if (description) *description = step->describe();
    std::vector<char> workspace(static_cast<size_t>(step->workspace_bytes()) + 64);
    std::vector<void*> table;
    for (auto& b : buffers) table.push_back(b.data());
    table.push_back(workspace.data());
    step->set_workspace(static_cast<uint32_t>(buffers.size()));
    codegen::RunContext run;
    run.buffers = table.data();
    krn_host_threads threads{};
    threads.parallel_for = parallel_for;
    threads.num_threads = count_threads;
    run.threads = &threads;
    run.host = context.host;
    const krn_code first = step->run(run);
    return first == KRN_STATUS_ok && a.op == kOp_grouped_matmul ? step->run(run) : first;  // again, with what the first run left
  }
};

void for_each(const Dims& sizes, const std::function<void(const Dims&)>& body) {
  Dims index(sizes.size(), 0);
  int64_t count = 1;
  for (int64_t s : sizes) count *= s;
  for (int64_t n = 0; n < count; ++n) {
    int64_t rest = n;
    for (size_t i = sizes.size(); i-- > 0;) index[i] = rest % sizes[i], rest /= sizes[i];
    body(index);
  }
}

double epilogue(Bench& b, const PostOp& p, const Dims& index, double x) {
  auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  switch (p.op) {
    case kOp_relu: return x > 0 ? x : 0;
    case kOp_leaky_relu: return x > 0 ? x : p.alpha * x;
    case kOp_gelu: return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
    case kOp_gelu_tanh: return 0.5 * x * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case kOp_silu: return x * sigmoid(x);
    case kOp_sigmoid: return sigmoid(x);
    case kOp_tanh: return std::tanh(x);
    case kOp_clamp: return std::min(std::max(x, p.alpha), p.beta);
    case kOp_hardswish: return x * std::min(std::max(x + 3, 0.0), 6.0) / 6;
    case kOp_hardsigmoid: return std::min(std::max(x + 3, 0.0), 6.0) / 6;
    case kOp_add: return x + b.at(p.operand, index);
    case kOp_sub: return x - b.at(p.operand, index);
    default: return x * b.at(p.operand, index);
  }
}

// Runs the anchor and compares with `truth` followed by its epilogues.
void check(Bench& b, const AnchorDesc& a, const std::string& where, const std::function<double(const Dims&)>& truth) {
  const TensorDesc& out = a.results[0];
  std::map<Dims, double> want;
  for_each(out.sizes, [&](const Dims& i) {
    double x = truth(i);
    for (const PostOp& p : a.post_ops) x = epilogue(b, p, i, x);
    want[i] = x;
  });
  std::string description;
  ASSERT_EQ(b.run(a, &description), KRN_STATUS_ok) << where;
  EXPECT_EQ(description.find("ref"), std::string::npos) << where << ": " << description;
  for (const auto& [i, x] : want) ASSERT_NEAR(b.at(out, i), x, 2e-4 * (1 + std::fabs(x))) << where << " by " << description;
}

double matmul_at(Bench& b, const AnchorDesc& a, const Dims& i) {
  double sum = 0;
  const TensorDesc &x = a.operands[0], &y = a.operands[1];
  const size_t r = i.size();
  for (int64_t k = 0; k < x.sizes[r - 1]; ++k) {
    Dims left = i, right = i;
    left[r - 1] = k, right[r - 2] = k;
    sum += static_cast<double>(b.at(x, left)) * b.at(y, right);
  }
  return sum;
}

TEST(Anchors, MatmulStridedBroadcastTransposed) {
  struct Case {
    const char* name;
    Dims x, x_strides, y, y_strides;
  };
  const Case cases[] = {
      {"plain", {5, 7}, {}, {7, 9}, {}},
      {"both transposed", {5, 7}, {1, 5}, {7, 9}, {1, 7}},
      {"batched", {3, 5, 7}, {}, {3, 7, 9}, {}},
      {"batch broadcast by stride", {3, 5, 7}, {}, {3, 7, 9}, {0, 9, 1}},
      {"two batch axes, heads interleaved", {2, 3, 5, 8}, {120, 8, 24, 1}, {2, 3, 8, 5}, {120, 8, 1, 24}},
      {"batch axes of one element in front", {1, 2, 3, 5, 8}, {}, {1, 2, 3, 8, 5}, {}},
      {"batch axes of one element between", {2, 1, 3, 5, 8}, {}, {2, 1, 3, 8, 5}, {}},
      {"batch axes of one element behind", {2, 3, 1, 5, 8}, {}, {2, 3, 1, 8, 5}, {}},
      {"one element in front, heads interleaved", {1, 2, 3, 5, 8}, {240, 120, 8, 24, 1}, {1, 2, 3, 8, 5}, {240, 120, 8, 1, 24}},
      {"one row", {1, 64}, {}, {64, 33}, {}},
      {"padded rows", {6, 16}, {20, 1}, {16, 8}, {11, 1}},
  };
  for (const Case& c : cases) {
    Bench b;
    AnchorDesc a;
    a.op = kOp_matmul;
    a.operands = {b.tensor(c.x, c.x_strides), b.tensor(c.y, c.y_strides)};
    Dims out = c.x;
    out.back() = c.y.back();
    a.results = {b.tensor(out)};
    check(b, a, c.name, [&](const Dims& i) { return matmul_at(b, a, i); });
  }
}

AnchorDesc grouped(Bench& b, int64_t rows, int64_t depth, int64_t columns, const std::vector<int64_t>& ends, bool constant, bool transposed,
                   uint8_t dtype) {
  const auto groups = static_cast<int64_t>(ends.size());
  AnchorDesc a;
  a.op = kOp_grouped_matmul;
  const Dims strides = transposed ? Dims{depth * columns, 1, depth} : Dims{};
  a.operands = {b.tensor({rows, depth}), b.tensor({groups, depth, columns}, strides, constant), b.whole_numbers(ends, dtype)};
  a.results = {b.tensor({rows, columns})};
  return a;
}

double grouped_at(Bench& b, const AnchorDesc& a, const std::vector<int64_t>& ends, const Dims& i) {
  const int64_t group = std::upper_bound(ends.begin(), ends.end(), i[0]) - ends.begin();
  double sum = 0;
  for (int64_t k = 0; k < a.operands[0].sizes[1] && group < static_cast<int64_t>(ends.size()); ++k)
    sum += static_cast<double>(b.at(a.operands[0], {i[0], k})) * b.at(a.operands[1], {group, k, i[1]});
  return sum;
}

// Groups of every number of rows, without any and with all, in one thread and in several, that share columns, rows or both.
TEST(Anchors, ProductsOfGroups) {
  std::mt19937 random(7);
  const auto drawn = [&](int64_t rows, int64_t groups, bool all) {
    std::vector<int64_t> ends;
    for (int64_t i = 0; i < groups; ++i) ends.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(rows + 1)));
    std::sort(ends.begin(), ends.end());
    if (all) ends.back() = rows;
    return ends;
  };
  for (int64_t rows : {1, 2, 5, 9, 33, 65, 150})
    for (const auto& [depth, columns] : {std::pair<int64_t, int64_t>{24, 16}, {7, 5}, {32, 256}, {1, 3}, {16, 1}})
      for (int form = 0; form < 8; ++form) {
        const bool constant = form & 1, transposed = form & 2;
        const int64_t groups = form & 4 ? 7 : 2;
        Bench b;
        b.num_threads = 1 + form % 3;
        const std::vector<int64_t> ends = drawn(rows, groups, form % 3 != 0);
        AnchorDesc a = grouped(b, rows, depth, columns, ends, constant, transposed, form % 2 ? kDType_i64 : kDType_i32);
        check(b, a, "rows " + std::to_string(rows) + ", form " + std::to_string(form),
              [&](const Dims& i) { return grouped_at(b, a, ends, i); });
        if (HasFatalFailure()) return;
      }
  // Each number of rows alone in the middle, and all rows in one group.
  for (int64_t count = 0; count <= 70; ++count)
    for (bool alone : {false, true}) {
      Bench b;
      b.num_threads = 2;
      const std::vector<int64_t> ends = alone ? std::vector<int64_t>{0, count, count} : std::vector<int64_t>{3, 3 + count, 75};
      AnchorDesc a = grouped(b, alone ? std::max<int64_t>(count, 1) : 75, 16, 48, ends, true, true, kDType_i32);
      check(b, a, "a group of " + std::to_string(count), [&](const Dims& i) { return grouped_at(b, a, ends, i); });
      if (HasFatalFailure()) return;
    }
}

TEST(Anchors, ProductsOfGroupsWhoseOperandsLieApart) {
  const std::vector<int64_t> ends{2, 2, 20, 31};
  Bench b;
  b.num_threads = 2;
  AnchorDesc a = grouped(b, 33, 24, 32, ends, false, false, kDType_i32);
  a.operands[0] = b.tensor({33, 24}, {40, 1});                // part of wider rows
  a.operands[1] = b.tensor({4, 24, 32}, {0, 32, 1});          // one weight for all
  a.results[0] = b.tensor({33, 32}, {50, 1});
  check(b, a, "apart", [&](const Dims& i) { return grouped_at(b, a, ends, i); });
  a.operands[0] = b.tensor({33, 24}, {1, 33});
  check(b, a, "columns of x", [&](const Dims& i) { return grouped_at(b, a, ends, i); });
  std::string why;
  AnchorDesc refused = a;
  refused.results[0] = b.tensor({33, 32}, {1, 33});
  EXPECT_FALSE(vendor_takes(refused, false, why));
  refused = a;
  refused.operands[0].strides = {0, 1};
  EXPECT_FALSE(vendor_takes(refused, false, why));
  refused = a;
  refused.operands[2].dtype = kDType_i8;
  EXPECT_FALSE(vendor_takes(refused, false, why));
  EXPECT_NE(why.find("narrow"), std::string::npos) << why;
  // Bytes that say anything.
  const auto expect_misfit = [&](const std::function<void(AnchorDesc&)>& damage) {
    AnchorDesc damaged = a;
    damage(damaged);
    EXPECT_FALSE(vendor_takes(damaged, false, why));
    EXPECT_NE(why.find("do not fit"), std::string::npos) << why;
  };
  expect_misfit([](AnchorDesc& d) { d.operands.pop_back(); });
  expect_misfit([](AnchorDesc& d) { d.operands[1] = TensorDesc(); });
  expect_misfit([](AnchorDesc& d) { d.operands[0].sizes = {33}, d.operands[0].strides = {1}; });
  expect_misfit([](AnchorDesc& d) { d.operands[1].sizes[1] = 23; });
  expect_misfit([](AnchorDesc& d) { d.operands[2].sizes[0] = 5; });
  expect_misfit([](AnchorDesc& d) { d.results[0].sizes = {33, 33}; });
  expect_misfit([](AnchorDesc& d) { d.operands[1].dtype = kDType_bf16; });
}

// Eager answers where the ends are none.
TEST(Anchors, EndsThatDoNotAscendEndTheRun) {
  for (uint8_t dtype : {kDType_i32, kDType_i64}) {
    Bench b;
    const AnchorDesc a = grouped(b, 9, 8, 16, {3, 5, 9}, true, true, dtype);
    EXPECT_EQ(b.run(a), KRN_STATUS_ok);
    for (const std::vector<int64_t>& ends : {std::vector<int64_t>{3, 2, 9}, {3, 5, 10}, {-1, 5, 9}, {3, 5, 4}}) {
      b.set(a.operands[2], ends);
      EXPECT_EQ(b.run(a), KRN_STATUS_invalid_input) << ends[0] << ' ' << ends[1] << ' ' << ends[2];
    }
  }
}

AnchorDesc linear(Bench& b, const Dims& x, int64_t n, bool bias, bool constant) {
  AnchorDesc a;
  a.op = kOp_linear;
  a.operands = {b.tensor(x), b.tensor({n, x.back()}, {}, constant), TensorDesc()};
  if (bias) a.operands[2] = b.tensor({n}, {}, constant);
  Dims out = x;
  out.back() = n;
  a.results = {b.tensor(out)};
  return a;
}

double linear_at(Bench& b, const AnchorDesc& a, const Dims& i) {
  double sum = a.operands[2].present() ? b.at(a.operands[2], {i.back()}) : 0;
  for (int64_t k = 0; k < a.operands[0].sizes.back(); ++k) {
    Dims x = i;
    x.back() = k;
    sum += static_cast<double>(b.at(a.operands[0], x)) * b.at(a.operands[1], {i.back(), k});
  }
  return sum;
}

TEST(Anchors, LinearWithEveryEpiloguePackedAndPlain) {
  for (bool constant : {false, true}) {
    for (const Dims& x : {Dims{1, 48}, Dims{13, 48}, Dims{2, 3, 48}}) {
      for (uint32_t op : {kOp_relu, kOp_leaky_relu, kOp_gelu, kOp_gelu_tanh, kOp_silu, kOp_sigmoid, kOp_tanh, kOp_clamp, kOp_hardswish,
                          kOp_hardsigmoid, kOp_add, kOp_sub, kOp_mul}) {
        Bench b;
        AnchorDesc a = linear(b, x, 40, op != kOp_tanh, constant);
        PostOp p;
        p.op = op;
        p.alpha = op == kOp_clamp ? -1 : 0.1, p.beta = 2;
        if (op == kOp_add || op == kOp_sub) p.operand = b.tensor(a.results[0].sizes);
        if (op == kOp_mul) p.operand = b.tensor(a.results[0].sizes, Dims(x.size() - 1, 0).size() == 1 ? Dims{0, 1} : Dims{0, 0, 1});
        ASSERT_TRUE(vendor_takes_post_op(a, p)) << op;
        a.post_ops = {p};
        PostOp relu;
        relu.op = kOp_relu;
        if (op == kOp_add) a.post_ops.push_back(relu);
        check(b, a, "linear, epilogue " + std::to_string(op), [&](const Dims& i) { return linear_at(b, a, i); });
      }
    }
  }
}

// Sequence-first tokens, as torch's attention reads them: the longest axis of rows is the matrix's, wherever it stands.
TEST(Anchors, RowsOfALinearInAnyOrder) {
  struct {
    Dims sizes, strides;
    const char* matrix;
  } const cases[] = {{{7, 2, 48}, {48, 7 * 48, 1}, "[2x7x48]"},
                     {{2, 9, 3, 48}, {27 * 48, 48, 9 * 48, 1}, "[2x3x9x48]"},
                     {{2, 7, 48}, {48, 2 * 48, 1}, "[2x7x48]"}};
  for (const auto& c : cases) {
    for (bool constant : {false, true}) {
      Bench b;
      AnchorDesc a = linear(b, c.sizes, 40, true, constant);
      a.operands[0] = b.tensor(c.sizes, c.strides);
      a.post_ops = {{kOp_add, b.tensor(a.results[0].sizes)}};
      std::string description;
      ASSERT_EQ(b.run(a, &description), KRN_STATUS_ok);
      EXPECT_NE(description.find(c.matrix), std::string::npos) << description;
      check(b, a, c.matrix, [&](const Dims& i) { return linear_at(b, a, i); });
    }
  }
}

// One row of each text, of texts of several lengths: the same code, told the distance with each run.
TEST(Anchors, RowsThatLieApartAtAnyDistance) {
  for (const int64_t length : {3, 7, 7, 20})
    for (const bool constant : {false, true}) {
      Bench b;
      AnchorDesc a = linear(b, {4, 48}, 40, true, constant);
      a.operands[0] = b.tensor({4, 48}, {length * 48, 1});
      a.post_ops = {{kOp_tanh, {}}};
      check(b, a, "rows " + std::to_string(length) + " apart", [&](const Dims& i) { return linear_at(b, a, i); });
    }
}

// What oneDNN makes is for so many threads, each with memory of its own in the workspace.
TEST(Anchors, ThreadsThatAreSetLaterAreFollowed) {
  const auto set_threads = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  const auto max_threads = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  ASSERT_TRUE(set_threads && max_threads);
  const int before = max_threads();
  Bench b;
  const AnchorDesc a = linear(b, {512, 768}, 768, false, false);
  std::vector<int64_t> bytes;
  for (const int threads : {1, 4, 1, 4}) {
    set_threads(threads);
    bytes.push_back(make_vendor_step(a, {}, threads)->workspace_bytes());
  }
  set_threads(before);
  EXPECT_GT(bytes[1], bytes[0]);
  EXPECT_EQ(bytes[2], bytes[0]);
  EXPECT_EQ(bytes[3], bytes[1]);
}

TEST(Anchors, AddendInTheResultsOwnMemory) {
  Bench b;
  AnchorDesc a = linear(b, {4, 32}, 16, true, true);
  PostOp p;
  p.op = kOp_add;
  p.operand = a.results[0];
  a.post_ops = {p};
  check(b, a, "sum in place", [&](const Dims& i) { return linear_at(b, a, i); });
}

TEST(Anchors, PacksAreSharedCountedAndFreed) {
  Bench b;
  AnchorDesc a = linear(b, {4, 64}, 64, false, true);
  const int64_t before = packed_weight_bytes();
  krn_host_consts consts{};
  consts.open = Bench::open;
  codegen::CompileContext context;
  context.consts = &consts;
  context.host = reinterpret_cast<krn_host*>(&b);
  auto one = make_vendor_step(a, context);
  const int64_t held = packed_weight_bytes() - before;
  auto two = make_vendor_step(a, context);
  EXPECT_EQ(packed_weight_bytes() - before, held);
  one.reset(), two.reset();
  EXPECT_EQ(packed_weight_bytes(), before);
  printf("a 64 x 64 weight is packed into %lld bytes\n", static_cast<long long>(held));
  b.has_weights = false;  // a child: the anchor compiles all the same
  EXPECT_NE(make_vendor_step(a, context), nullptr);
}

// Strides that reach behind a constant: bytes of a region may say anything.
TEST(Anchors, NothingIsReadBehindAConstant) {
  Bench b;
  krn_host_consts consts{};
  consts.open = Bench::open;
  codegen::CompileContext context;
  context.consts = &consts;
  context.host = reinterpret_cast<krn_host*>(&b);
  AnchorDesc a = linear(b, {4, 64}, 64, false, true);
  EXPECT_NE(make_vendor_step(a, context), nullptr);
  for (const bool shifted : {false, true}) {
    AnchorDesc damaged = a;
    if (shifted) damaged.operands[1].offset += 64;
    else damaged.operands[1].strides[0] = 1 << 20;
    EXPECT_THROW(make_vendor_step(damaged, context), kit::Error) << shifted;
  }
}

// y = x w' and y = x w of one square weight: both packs have the same address, size and layout, and other numbers.
TEST(Anchors, ASquareWeightAndItsTransposeArePackedApart) {
  Bench b;
  const AnchorDesc straight = linear(b, {4, 64}, 64, false, true);
  AnchorDesc turned = straight;
  turned.operands[1].strides = {1, 64};
  krn_host_consts consts{};
  consts.open = Bench::open;
  codegen::CompileContext context;
  context.consts = &consts;
  context.host = reinterpret_cast<krn_host*>(&b);
  for (const auto& [first, second] : {std::pair{straight, turned}, std::pair{turned, straight}}) {
    const auto packed = make_vendor_step(first, context);  // alive, so that its pack may be taken
    check(b, second, "after the other", [&](const Dims& i) { return linear_at(b, second, i); });
  }
}

double conv_at(Bench& b, const AnchorDesc& a, const Dims& i) {
  const TensorDesc &x = a.operands[0], &w = a.operands[1];
  const size_t spatial = x.sizes.size() - 2;
  double sum = a.operands[2].present() ? b.at(a.operands[2], {i[1]}) : 0;
  const int64_t out_per = a.results[0].sizes[1] / a.groups, in_per = x.sizes[1] / a.groups, group = i[1] / out_per;
  for_each(Dims(w.sizes.begin() + 2, w.sizes.end()), [&](const Dims& k) {
    Dims at{i[0], 0};
    for (size_t s = 0; s < spatial; ++s) {
      int64_t p =
          a.transposed ? i[2 + s] + a.padding[s] - k[s] * a.dilation[s] : i[2 + s] * a.stride[s] - a.padding[s] + k[s] * a.dilation[s];
      if (a.transposed) {
        if (p < 0 || p % a.stride[s]) return;
        p /= a.stride[s];
      }
      if (p < 0 || p >= x.sizes[2 + s]) return;
      at.push_back(p);
    }
    for (int64_t c = 0; c < in_per; ++c) {
      at[1] = group * in_per + c;
      Dims v = a.transposed ? Dims{at[1], i[1] % out_per} : Dims{i[1], c};
      v.insert(v.end(), k.begin(), k.end());
      sum += static_cast<double>(b.at(x, at)) * b.at(w, v);
    }
  });
  return sum;
}

double weight_gradient_at(Bench& b, const AnchorDesc& a, const Dims& i) {
  const TensorDesc &x = a.operands[0], &grad = a.operands[1];
  const int64_t in_per = x.sizes[1] / a.groups, out_per = grad.sizes[1] / a.groups;
  double sum = 0;
  for_each(Dims(grad.sizes.begin() + 2, grad.sizes.end()), [&](const Dims& o) {
    Dims at{0, i[0] / out_per * in_per + i[1]}, from{0, i[0]};
    for (size_t s = 0; s < o.size(); ++s) {
      at.push_back(o[s] * a.stride[s] - a.padding[s] + i[2 + s] * a.dilation[s]);
      if (at.back() < 0 || at.back() >= x.sizes[2 + s]) return;
      from.push_back(o[s]);
    }
    for (int64_t n = 0; n < x.sizes[0]; ++n) at[0] = from[0] = n, sum += static_cast<double>(b.at(x, at)) * b.at(grad, from);
  });
  return sum;
}

TEST(Anchors, GradientsOfWeights) {
  struct Case {
    const char* name;
    Dims x;
    int64_t out_channels;
    Dims kernel, stride, padding, dilation;
    int64_t groups;
    bool last, weight_last;
  };
  const Case cases[] = {
      {"1d", {2, 8, 20}, 16, {3}, {1}, {1}, {1}, 1, false, false},
      {"nchw", {2, 16, 9, 10}, 24, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, false, false},
      {"channels_last", {2, 16, 9, 10}, 32, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, true, false},
      {"channels_last, weight too", {2, 16, 9, 10}, 32, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, true, true},
      {"stem", {1, 3, 16, 16}, 16, {7, 7}, {2, 2}, {3, 3}, {1, 1}, 1, true, false},
      {"1x1 strided", {1, 16, 8, 8}, 32, {1, 1}, {2, 2}, {0, 0}, {1, 1}, 1, true, false},
      {"dilated", {1, 16, 12, 12}, 16, {3, 3}, {1, 1}, {2, 2}, {2, 2}, 1, true, false},
      {"unreached", {1, 16, 6, 8}, 16, {3, 3}, {3, 4}, {0, 0}, {1, 1}, 1, false, false},
      {"depthwise", {1, 16, 8, 8}, 16, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 16, true, false},
  };
  for (const Case& c : cases) {
    Bench b;
    AnchorDesc a;
    a.op = kOp_conv_grad_weight;
    a.stride = c.stride, a.padding = c.padding, a.dilation = c.dilation, a.sizes = c.kernel, a.groups = c.groups;
    Dims w{c.out_channels, c.x[1] / c.groups}, grad{c.x[0], c.out_channels};
    for (size_t s = 0; s < c.kernel.size(); ++s) {
      w.push_back(c.kernel[s]);
      grad.push_back((c.x[2 + s] + 2 * c.padding[s] - c.dilation[s] * (c.kernel[s] - 1) - 1) / c.stride[s] + 1);
    }
    a.operands = {b.tensor(c.x, c.last ? channels_last(c.x) : Dims{}), b.tensor(grad, c.last ? channels_last(grad) : Dims{})};
    a.results = {b.tensor(w, c.weight_last ? channels_last(w) : Dims{})};
    check(b, a, std::string("weight gradient, ") + c.name, [&](const Dims& i) { return weight_gradient_at(b, a, i); });
  }
}

// As in training: not laid out once, but for each run where the library would take no good one of its implementations otherwise.
TEST(Anchors, AWeightThatIsNoConstantIsLaidOutForEachRun) {
  for (const bool transposed : {false, true}) {
    Bench b;
    AnchorDesc a;
    a.op = kOp_conv;
    a.stride = {1, 1}, a.padding = {1, 1}, a.dilation = {1, 1}, a.output_padding = {0, 0}, a.transposed = transposed;
    const Dims x{2, 32, 9, 10}, out{2, 48, 9, 10};
    a.operands = {b.tensor(x, channels_last(x)), b.tensor(transposed ? Dims{32, 48, 3, 3} : Dims{48, 32, 3, 3}), TensorDesc{}};
    a.results = {b.tensor(out, channels_last(out))};
    check(b, a, "a weight of the moment", [&](const Dims& i) { return conv_at(b, a, i); });
    for (float& w : b.buffers[a.operands[1].buffer]) w *= -2;
    check(b, a, "another weight", [&](const Dims& i) { return conv_at(b, a, i); });
    std::string description;
    ASSERT_EQ(b.run(a, &description), KRN_STATUS_ok);
    EXPECT_EQ(description.find("gemm"), std::string::npos) << description;
  }
}

TEST(Anchors, ConvolutionsOfAllShapes) {
  struct Case {
    const char* name;
    Dims x;
    int64_t out_channels;
    Dims kernel, stride, padding, dilation, output_padding;
    int64_t groups;
    bool transposed, last;
  };
  const Case cases[] = {
      {"1d", {2, 8, 20}, 16, {3}, {1}, {1}, {1}, {0}, 1, false, false},
      {"2d nchw", {2, 16, 9, 10}, 24, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, 1, false, false},
      {"2d channels_last", {2, 16, 9, 10}, 24, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {0, 0}, 1, false, true},
      {"2d stem", {1, 3, 16, 16}, 16, {7, 7}, {2, 2}, {3, 3}, {1, 1}, {0, 0}, 1, false, true},
      {"2d 1x1 strided", {1, 16, 8, 8}, 32, {1, 1}, {2, 2}, {0, 0}, {1, 1}, {0, 0}, 1, false, true},
      {"2d dilated", {1, 8, 12, 12}, 8, {3, 3}, {1, 1}, {2, 2}, {2, 2}, {0, 0}, 1, false, true},
      {"2d grouped", {1, 16, 8, 8}, 32, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, 4, false, true},
      {"2d depthwise", {1, 16, 8, 8}, 16, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, 16, false, true},
      {"3d", {1, 8, 5, 6, 7}, 8, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, 1, false, true},
      {"2d transposed", {1, 16, 6, 7}, 8, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, 1, true, true},
      {"2d transposed grouped", {1, 16, 6, 7}, 8, {4, 4}, {2, 2}, {1, 1}, {1, 1}, {0, 0}, 2, true, true},
  };
  for (const Case& c : cases) {
    for (int epilogues = 0; epilogues < 2; ++epilogues) {
      Bench b;
      AnchorDesc a;
      a.op = kOp_conv;
      a.stride = c.stride, a.padding = c.padding, a.dilation = c.dilation, a.output_padding = c.output_padding;
      a.groups = c.groups, a.transposed = c.transposed;
      Dims w = c.transposed ? Dims{c.x[1], c.out_channels / c.groups} : Dims{c.out_channels, c.x[1] / c.groups};
      Dims out{c.x[0], c.out_channels};
      for (size_t s = 0; s < c.kernel.size(); ++s) {
        w.push_back(c.kernel[s]);
        const int64_t reach = c.dilation[s] * (c.kernel[s] - 1) + 1;
        out.push_back(c.transposed ? (c.x[2 + s] - 1) * c.stride[s] - 2 * c.padding[s] + reach + c.output_padding[s]
                                   : (c.x[2 + s] + 2 * c.padding[s] - reach) / c.stride[s] + 1);
      }
      a.operands = {b.tensor(c.x, c.last ? channels_last(c.x) : Dims{}), b.tensor(w, {}, true), b.tensor({c.out_channels}, {}, true)};
      a.results = {b.tensor(out, c.last ? channels_last(out) : Dims{})};
      if (epilogues) {
        PostOp add, relu;
        add.op = kOp_add;
        add.operand = b.tensor(out, a.results[0].strides);
        relu.op = kOp_relu;
        // Over plain NCHW, and for groups where there is no AVX-512, an addend leaves only the reference implementation: refused, and
        // then it is not fused.
        EXPECT_TRUE(vendor_takes_post_op(a, add) || !c.last || c.groups > 1) << c.name;
        if (vendor_takes_post_op(a, add)) a.post_ops.push_back(add);
        if (vendor_takes_post_op(a, relu)) a.post_ops.push_back(relu);
      }
      check(b, a, std::string("conv ") + c.name, [&](const Dims& i) { return conv_at(b, a, i); });
    }
  }
}

// One direction of one layer, step by step in double.
struct Cell {
  Bench& b;
  const AnchorDesc& a;
  size_t first;
  int64_t hidden;
  double gate(int64_t row, const std::vector<double>& v, size_t matrix, size_t bias) {
    double sum = a.has_biases ? b.at(a.operands[first + bias], {row}) : 0;
    for (size_t k = 0; k < v.size(); ++k) sum += v[k] * b.at(a.operands[first + matrix], {row, static_cast<int64_t>(k)});
    return sum;
  }
  void step(const std::vector<double>& x, std::vector<double>& h, std::vector<double>& c) {
    auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    std::vector<double> next(h.size());
    for (int64_t j = 0; j < hidden; ++j) {
      auto in = [&](int64_t g) { return gate(g * hidden + j, x, 0, 2); };
      auto re = [&](int64_t g) { return gate(g * hidden + j, h, 1, 3); };
      if (a.op == kOp_lstm) {
        c[j] = sigmoid(in(1) + re(1)) * c[j] + sigmoid(in(0) + re(0)) * std::tanh(in(2) + re(2));
        next[j] = sigmoid(in(3) + re(3)) * std::tanh(c[j]);
      } else {
        const double z = sigmoid(in(1) + re(1)), n = std::tanh(in(2) + sigmoid(in(0) + re(0)) * re(2));
        next[j] = (1 - z) * n + z * h[j];
      }
    }
    h = next;
  }
};

void check_cells(int64_t time, int64_t batch, int64_t input, int64_t hidden, std::vector<int> forms, double near = 2e-5) {
  for (uint32_t op : {kOp_lstm, kOp_gru}) {
    for (int form : forms) {
      Bench b;
      AnchorDesc a;
      a.op = op;
      a.layers = form & 1 ? 3 : 1, a.bidirectional = form & 2, a.batch_first = form & 4, a.has_biases = form & 8;
      const int64_t dirs = a.bidirectional ? 2 : 1, gates = op == kOp_lstm ? 4 : 3;
      a.operands = {b.tensor(a.batch_first ? Dims{batch, time, input} : Dims{time, batch, input}),
                    b.tensor({a.layers * dirs, batch, hidden})};
      if (op == kOp_lstm) a.operands.push_back(b.tensor({a.layers * dirs, batch, hidden}));
      const size_t first = a.operands.size(), each = a.has_biases ? 4 : 2;
      for (int64_t l = 0; l < a.layers; ++l) {
        for (int64_t d = 0; d < dirs; ++d) {
          a.operands.push_back(b.tensor({gates * hidden, l ? dirs * hidden : input}, {}, true));
          a.operands.push_back(b.tensor({gates * hidden, hidden}, {}, true));
          for (int k = 0; k < (a.has_biases ? 2 : 0); ++k) a.operands.push_back(b.tensor({gates * hidden}, {}, true));
        }
      }
      a.results = {b.tensor(a.batch_first ? Dims{batch, time, dirs * hidden} : Dims{time, batch, dirs * hidden}),
                   b.tensor({a.layers * dirs, batch, hidden})};
      if (op == kOp_lstm) a.results.push_back(b.tensor({a.layers * dirs, batch, hidden}));
      std::vector<std::vector<std::vector<double>>> x(time, std::vector<std::vector<double>>(batch));
      auto place = [&](int64_t t, int64_t n, int64_t k) { return a.batch_first ? Dims{n, t, k} : Dims{t, n, k}; };
      for (int64_t t = 0; t < time; ++t)
        for (int64_t n = 0; n < batch; ++n)
          for (int64_t k = 0; k < input; ++k) x[t][n].push_back(b.at(a.operands[0], place(t, n, k)));
      std::vector<double> want_state;
      for (int64_t l = 0; l < a.layers; ++l) {
        auto y = std::vector(time, std::vector(batch, std::vector<double>(dirs * hidden)));
        for (int64_t d = 0; d < dirs; ++d) {
          Cell cell{b, a, first + static_cast<size_t>(l * dirs + d) * each, hidden};
          for (int64_t n = 0; n < batch; ++n) {
            std::vector<double> h(hidden), c(hidden);
            for (int64_t j = 0; j < hidden; ++j) {
              h[j] = b.at(a.operands[1], {l * dirs + d, n, j});
              if (op == kOp_lstm) c[j] = b.at(a.operands[2], {l * dirs + d, n, j});
            }
            for (int64_t s = 0; s < time; ++s) {
              const int64_t t = d ? time - 1 - s : s;
              cell.step(x[t][n], h, c);
              for (int64_t j = 0; j < hidden; ++j) y[t][n][d * hidden + j] = h[j];
            }
            want_state.insert(want_state.end(), h.begin(), h.end());
          }
        }
        x = y;
      }
      std::string description;
      ASSERT_EQ(b.run(a, &description), KRN_STATUS_ok);
      if (form == 0) printf("%s\n", description.c_str());
      for (int64_t t = 0; t < time; ++t)
        for (int64_t n = 0; n < batch; ++n)
          for (int64_t k = 0; k < dirs * hidden; ++k)
            ASSERT_NEAR(b.at(a.results[0], place(t, n, k)), x[t][n][k], near) << "form " << form << " " << description;
      size_t i = 0;
      for_each(a.results[1].sizes,
               [&](const Dims& at) { ASSERT_NEAR(b.at(a.results[1], at), want_state[i++], near) << "final state, form " << form; });
    }
  }
}

TEST(Anchors, RecurrentCells) {
  std::vector<int> all(16);
  std::iota(all.begin(), all.end(), 0);
  check_cells(5, 3, 7, 6, all);
}

// What goes from layer to layer is many times what memory is rounded to.
TEST(Anchors, LongRecurrentLayers) { check_cells(30, 8, 16, 20, {1, 9}, 2e-3); }

// What the library would compute one element at a time is left to generated code.
TEST(Anchors, WhatFollowsAProductOfPatchesIsNotItsOwn) {
  Bench b;
  AnchorDesc a;
  a.op = kOp_conv;
  a.stride = {2}, a.padding = {0}, a.dilation = {1}, a.output_padding = {0};
  a.operands = {b.tensor({1, 64, 99}), b.tensor({64, 64, 3}, {}, true), b.tensor({64}, {}, true)};
  a.results = {b.tensor({1, 64, 49})};
  std::string description;
  ASSERT_EQ(b.run(a, &description), KRN_STATUS_ok);
  if (description.find("gemm") == std::string::npos) GTEST_SKIP() << "computed in another way here: " << description;
  PostOp gelu;
  gelu.op = kOp_gelu;
  EXPECT_FALSE(vendor_takes_post_op(a, gelu)) << description;
}

TEST(Anchors, RefusesWithAReason) {
  Bench b;
  AnchorDesc a = linear(b, {4, 8}, 8, false, false);
  std::string why;
  a.operands[0].dtype = a.operands[1].dtype = a.results[0].dtype = kDType_f64;
  EXPECT_FALSE(vendor_takes(a, true, why));
  EXPECT_NE(why.find("f32"), std::string::npos) << why;
  a.op = kOp_attention;
  EXPECT_FALSE(vendor_takes(a, true, why));
}

}  // namespace
}  // namespace keirin::cpu
