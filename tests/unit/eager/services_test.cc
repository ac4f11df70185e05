// SPDX-License-Identifier: Apache-2.0
//
// The services over LibTorch: memory that is counted, copies that convert, threads that are really used.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <any>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/eager/at_tensor.h"
#include "core/eager/program/referee.h"
#include "core/eager/program/symbol_ops.h"
#include "core/eager/rows/fold_evaluator.h"
#include "core/eager/tensor_services.h"
#include "tests/support/threads.h"

namespace keirin {
namespace {

TEST(Services, CountsPeakBytes) {
  const auto services = make_tensor_services();
  services->reset_peak({});
  const int64_t before = services->peak_bytes({});
  { const TensorRef big = *services->allocate({DType::k_u8, {1 << 20}, {}, {}}); }
  const int64_t peak = services->peak_bytes({}) - before;
  EXPECT_GE(peak, 1 << 20);
  EXPECT_LT(peak, (1 << 20) + 4096);
  services->reset_peak({});
  EXPECT_EQ(services->peak_bytes({}), before);
}

TEST(Services, AnExceptionOfPythonsIsToldWithoutItsStack) {
  const auto what_of = [](const std::string& thrown) {
    try {
      throw std::runtime_error(thrown);
    } catch (...) {
      return status_of_current_exception().message().what;
    }
  };
  EXPECT_EQ(what_of("ValueError: no\n\nAt:\n  model.py(3): forward\n"), "ValueError: no");
  EXPECT_EQ(what_of("two lines\nand no stack"), "two lines\nand no stack");
}

// As core/tune/inputs.h says of near_to and off_by_roundings, which have it done where a device of its own has the numbers.
TEST(Services, NumbersAreChangedWhereTheyLie) {
  using Change = TensorServices::Change;
  const auto services = make_tensor_services();
  const at::Tensor rows = at::randn({64, 33}, at::kBFloat16).fill_diagonal_(0);
  for (const at::Tensor& x : {rows, rows.t(), rows.to(at::kFloat).t(), rows.to(at::kDouble)}) {
    const auto of = [&](Change how, double share, uint64_t seed) { return to_at(*services->change(from_at(x), how, share, seed)); };
    const at::Tensor near = of(Change::kSmaller, 0x1p-5, 3);
    EXPECT_EQ(near.scalar_type(), x.scalar_type());
    EXPECT_EQ(near.strides(), x.strides());
    EXPECT_TRUE(near.equal(of(Change::kSmaller, 0x1p-5, 3)));
    EXPECT_FALSE(near.equal(of(Change::kSmaller, 0x1p-5, 4)));
    const at::Tensor by = (1 - near.to(at::kDouble) / x.to(at::kDouble)).masked_select(x.ne(0));
    const double rounding = x.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0x1p-24;
    EXPECT_GE(by.min().item<double>(), -rounding);
    EXPECT_LE(by.max().item<double>(), 0x1p-5 + rounding);
    EXPECT_NEAR(by.mean().item<double>(), 0x1p-6, 0x1p-10);
    EXPECT_TRUE(near.masked_select(x.eq(0)).eq(0).all().item<bool>());
    const at::Tensor off = of(Change::kRounding, 0x1p-9, 3);
    EXPECT_EQ(off.scalar_type(), at::kDouble);
    EXPECT_EQ(off.strides(), x.strides());
    const at::Tensor up = (off / x.to(at::kDouble)).masked_select(x.ne(0));
    EXPECT_TRUE(((up == 1 + 0x1p-9) | (up == 1 - 0x1p-9)).all().item<bool>());
    EXPECT_NEAR(up.mean().item<double>(), 1, 0x1p-12);
  }
  const at::Tensor state = to_at(*services->change(from_at(at::zeros({100, 10})), Change::kSmaller, 0x1p-5, 1));
  EXPECT_GE(state.min().item<double>(), 0x1p-8);
  EXPECT_LE(state.max().item<double>(), 0x1p-7);
  EXPECT_EQ(services->change(from_at(rows.narrow(1, 0, 5)), Change::kSmaller, 0, 1).status().code(), Code::k_unsupported);
}

TEST(Services, ErrorsOfElements) {
  const auto services = make_tensor_services();
  const int64_t n = (1 << 22) + 1000;  // more than are summed up at once
  at::manual_seed(4);
  const at::Tensor r = at::randn({n}, at::kDouble).index_fill_(0, at::full({1}, 5, at::kLong), 0);
  const at::Tensor a = (r + 1e-6).to(at::kFloat), b = r * (1 + 1e-4);
  b[n - 3] += 1;
  const double at_one = 4 * 0x1p-23, least = 4 * 0x1p-149;
  const ElementErrors errors = *services->errors(from_at(r), from_at(a), from_at(b), {at_one, least});
  EXPECT_TRUE(errors.explained);
  EXPECT_EQ(errors.judged, n);
  EXPECT_FALSE(errors.constant);
  EXPECT_DOUBLE_EQ(errors.scale, r.abs().max().item<double>());
  EXPECT_NEAR(errors.squares, r.square().sum().item<double>(), 1e-9 * errors.squares);
  EXPECT_NEAR(errors.first.squares, (a.to(at::kDouble) - r).square().sum().item<double>(), 1e-9 * errors.first.squares);
  EXPECT_DOUBLE_EQ(errors.second.worst, (b - r).abs().max().item<double>());
  EXPECT_EQ(errors.changed, b.ne(r).sum().item<int64_t>());
  EXPECT_EQ(errors.worst_index, n - 3);
  const double x = std::abs(r[n - 3].item<double>()), off = std::abs(b[n - 3].item<double>() - r[n - 3].item<double>());
  EXPECT_DOUBLE_EQ(errors.worst_beyond, off - at_one * std::exp2(std::ilogb(x)));
  // Elements of one row are those of one place, however they lie.
  const at::Tensor m = at::randn({100, 50}, at::kDouble);
  const ElementErrors turned = *services->errors(from_at(m), from_at(m.t().contiguous().t()), from_at(m), {0, 0});
  EXPECT_EQ(turned.first.worst, 0);
  EXPECT_EQ(turned.changed, 0);
  EXPECT_TRUE(services->errors(from_at(at::full({9}, 2.0)), from_at(at::ones({9})), from_at(at::ones({9})), {0, 0})->constant);
  b[3] = NAN;
  EXPECT_FALSE(services->errors(from_at(r), from_at(a), from_at(b), {0, 0})->explained);
  a[3] = NAN;
  a[n - 1] = b[n - 1] = -INFINITY;
  const ElementErrors special = *services->errors(from_at(r), from_at(a), from_at(b), {0, 0});
  EXPECT_TRUE(special.explained);
  EXPECT_EQ(special.judged, n - 2);
  EXPECT_DOUBLE_EQ(special.second.worst, errors.second.worst);
}

TEST(Services, CountsWhatIsAllocated) {
  const auto services = make_tensor_services();
  const auto taken = [&](int extra) {
    const Allocations before = services->allocations({});
    const TensorRef one = *services->allocate({DType::k_f32, {10}, {}, {}});
    for (int i = 0; i < extra; ++i) (void)*services->allocate({DType::k_u8, {7}, {}, {}});
    (void)*services->view(one, {DType::k_f32, {5}, {}, {}}, 0);  // none
    const Allocations after = services->allocations({});
    return std::pair(after.count - before.count, after.bytes - before.bytes);
  };
  EXPECT_EQ(taken(0), (std::pair<uint64_t, uint64_t>(1, 40)));
  EXPECT_EQ(taken(0), taken(0));
  EXPECT_EQ(taken(2), (std::pair<uint64_t, uint64_t>(3, 54))) << "freed ones count too";
}

TEST(Services, CopiesConvertDtypeAndStrides) {
  const auto services = make_tensor_services();
  const TensorRef from = *services->allocate({DType::k_f32, {2, 2}, {}, {}});
  for (int i = 0; i < 4; ++i) static_cast<float*>(from->data())[i] = static_cast<float>(i) + 0.5f;
  const TensorRef to = *services->allocate({DType::k_i64, {2, 2}, {1, 2}, {}});
  ASSERT_TRUE(services->copy(to, from).ok());
  const auto* x = static_cast<const int64_t*>(to->data());
  EXPECT_EQ((std::vector<int64_t>(x, x + 4)), (std::vector<int64_t>{0, 2, 1, 3}));
  const TensorRef twin = *services->clone(to);
  EXPECT_NE(twin->data(), to->data());
  EXPECT_EQ(twin->strides()[0], 1);
}

TEST(Services, ErrorsKeepTheirCause) {
  const auto services = make_tensor_services();
  const TensorRef two = *services->allocate({DType::k_f32, {2}, {}, {}});
  const TensorRef three = *services->allocate({DType::k_f32, {3}, {}, {}});
  const Status status = services->copy(two, three);
  EXPECT_EQ(status.code(), Code::k_invalid_input);
  EXPECT_NE(status.cause(), nullptr);
}

TEST(Services, WrapKeepsTheOwnerAlive) {
  const auto services = make_tensor_services();
  auto owner = std::make_shared<std::vector<float>>(4, 2.0f);
  const std::weak_ptr<std::vector<float>> watch = owner;
  void* data = owner->data();
  TensorRef tensor = *services->wrap({DType::k_f32, {4}, {}, {}}, data, std::move(owner));
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(tensor->data(), data);
  tensor.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(Services, WhatAnotherCanReachIsShared) {
  const auto services = make_tensor_services();
  const TensorRef tensor = *services->allocate({DType::k_f32, {4}, {1}, {}});
  EXPECT_TRUE(services->unshared(tensor));
  {
    const TensorRef same = *services->cast(tensor, DType::k_f32);
    EXPECT_NE(same, tensor);
    EXPECT_FALSE(services->unshared(tensor)) << "LibTorch's tensor is in two hands";
  }
  {
    const TensorRef second = tensor;
    EXPECT_FALSE(services->unshared(tensor));
  }
  EXPECT_TRUE(services->unshared(tensor));
}

// Every way in which LibTorch lets a second hand reach the same memory: while that hand lives the memory is shared.
TEST(Services, MemoryIsSharedWhileAnythingOfItLives) {
  const auto services = make_tensor_services();
  const std::pair<const char*, std::function<std::any(const at::Tensor&)>> hands[] = {
      {"the tensor", [](const at::Tensor& t) { return std::any(t); }},
      {"detach", [](const at::Tensor& t) { return std::any(t.detach()); }},
      {"alias", [](const at::Tensor& t) { return std::any(at::alias(t)); }},
      {"view", [](const at::Tensor& t) { return std::any(t.view({-1})); }},
      {"a part", [](const at::Tensor& t) { return std::any(t.narrow(0, 1, 1)); }},
      {"one element", [](const at::Tensor& t) { return std::any(t.select(0, 0).select(0, 0)); }},
      {"expand", [](const at::Tensor& t) { return std::any(t.unsqueeze(0).expand({3, 2, 4})); }},
      {"transposed", [](const at::Tensor& t) { return std::any(t.t()); }},
      {"other dtype", [](const at::Tensor& t) { return std::any(t.view(at::kInt)); }},
      {"storage", [](const at::Tensor& t) { return std::any(t.storage()); }},
      {"set_", [](const at::Tensor& t) { return std::any(at::empty({0}, t.options()).set_(t)); }},
      {"detach of a view", [](const at::Tensor& t) { return std::any(t.view({-1}).detach().narrow(0, 2, 2)); }},
      {"in a list", [](const at::Tensor& t) { return std::any(c10::IValue(std::vector<at::Tensor>{t.detach()})); }},
      {"in a closure of memory", [](const at::Tensor& t) {
         return std::any(at::from_blob(t.data_ptr(), t.sizes(), [kept = t.detach()](void*) {}, t.options()));
       }},
  };
  for (const auto& [name, take] : hands) {
    const TensorRef tensor = *services->allocate({DType::k_f32, {2, 4}, {4, 1}, {}});
    EXPECT_TRUE(services->unshared(tensor)) << name;
    std::any hand = take(to_at(tensor));
    EXPECT_FALSE(services->unshared(tensor)) << name;
    hand.reset();
    EXPECT_TRUE(services->unshared(tensor)) << name << " has let go";
  }
  // What autograd has touched is no longer as it was made, and may be needed for a backward pass.
  const TensorRef tensor = *services->allocate({DType::k_f32, {2, 4}, {4, 1}, {}});
  to_at(tensor).requires_grad_();
  EXPECT_FALSE(services->unshared(tensor));
}

// A tensor of inference mode is not handed to a caller outside of it, who could neither write it nor differentiate through it.
TEST(Services, MemoryIsReusedInTheModeThatItWasMadeIn) {
  const auto services = make_tensor_services();
  const TensorSpec spec{DType::k_f32, {2, 4}, {4, 1}, {}};
  const TensorRef outside = *services->allocate(spec);
  TensorRef inside;
  {
    const c10::InferenceMode inference;
    inside = *services->allocate(spec);
    EXPECT_TRUE(services->unshared(inside));
    EXPECT_FALSE(services->unshared(outside));
  }
  EXPECT_FALSE(services->unshared(inside));
  EXPECT_TRUE(services->unshared(outside));
}

TEST(Services, ParallelForCoversTheRangeOnSeveralThreads) {
  const auto services = make_tensor_services();
  services->set_num_threads(2);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int64_t> sum = 0;
  services->parallel_for(1000, 10, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum += i;
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(sum, 999 * 500);
  EXPECT_EQ(threads.size(), 2u);
}

TEST(Services, AbsentDeviceIsRefused) {
  const auto services = make_tensor_services();
  auto tensor = services->allocate({DType::k_f32, {2}, {}, {Device::kCuda, 63}});
  ASSERT_FALSE(tensor.ok());
  EXPECT_EQ(tensor.status().code(), Code::k_unsupported);
}

TEST(Constants, ScalingMultipliesSlicesAndLeavesTheOriginal) {
  const auto services = make_tensor_services();
  for (const DType dtype : {DType::k_f32, DType::k_f64})
    for (const bool turned : {false, true}) {
      const at::ScalarType type = dtype == DType::k_f32 ? at::kFloat : at::kDouble;
      at::Tensor weight = at::arange(24, at::TensorOptions(type)).reshape({2, 3, 4});
      if (turned) weight = at::arange(24, at::TensorOptions(type)).reshape({4, 3, 2}).permute({2, 1, 0});
      const at::Tensor before = weight.clone();
      std::vector<TensorRef> constants = {from_at(weight)};
      FoldedConstants known;
      FoldEvaluator fold(constants, *services, {}, &known);
      const std::vector<double> factors = {2, -1, 0.5};
      const auto made = fold.scale(0, {dtype, {2, 3, 4}, weight.strides().vec()}, 1, factors);
      ASSERT_TRUE(made.ok()) << made.status().text();
      ASSERT_EQ(constants.size(), 2u);
      EXPECT_EQ(made->index, 1u);
      const at::Tensor want = before * at::tensor(factors, type).reshape({1, 3, 1});
      EXPECT_TRUE(at::equal(to_at(constants[1]), want));
      EXPECT_TRUE(at::equal(weight, before));
    }
}

TEST(Constants, FoldedOnesJoinTheTableAndAreReadInOrder) {
  const auto services = make_tensor_services();
  std::vector<TensorRef> constants = {from_at(at::arange(6, at::kFloat).reshape({2, 3}).t())};
  FoldedConstants known;
  FoldEvaluator fold(constants, *services, {}, &known);
  EXPECT_EQ(*fold.read(0), (std::vector<double>{0, 3, 1, 4, 2, 5}));
  const auto stored = fold.store({1.5, -2}, DType::k_f32, {2, 1});
  ASSERT_TRUE(stored.ok());
  EXPECT_EQ(stored->index, 1u);
  EXPECT_EQ(*fold.read(1), (std::vector<double>{1.5, -2}));
}

// Copies for the referee: in fp64, and tied where the originals are.
TEST(WideCopies, ShareWhatTheOriginalsShare) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong}) {
    const at::Tensor base = at::arange(12, at::kLong).to(type).reshape({3, 4}), row = base.select(0, 1), turned = base.t(),
                     other = at::arange(5, at::kLong).to(type), none = at::empty({0, 4}, at::TensorOptions(type));
    WideCopies copies;
    for (const at::Tensor& each : {base, row, turned, other, none}) copies.add(each);
    const at::Tensor b = copies.of(base), r = copies.of(row), t = copies.of(turned), o = copies.of(other), n = copies.of(none);
    const at::ScalarType wide_type = type == at::kLong ? at::kLong : at::kDouble;
    EXPECT_EQ(b.scalar_type(), wide_type);
    EXPECT_EQ(n.scalar_type(), wide_type);
    EXPECT_EQ(n.sizes(), none.sizes());
    EXPECT_TRUE(at::equal(b, base.to(wide_type)) && at::equal(r, row.to(wide_type)) && at::equal(t, turned.to(wide_type)) &&
                at::equal(o, other.to(wide_type)));
    EXPECT_EQ(b.storage().nbytes(), size_t{12 * 8}) << "of the originals' memory and nothing beyond";
    EXPECT_TRUE(b.is_alias_of(r) && b.is_alias_of(t));
    EXPECT_FALSE(b.is_alias_of(o));
    EXPECT_FALSE(b.is_alias_of(base));
    r.fill_(7);
    EXPECT_TRUE(at::equal(t.select(1, 1), r)) << "what one writes the others show";
  }
}

TEST(SymbolOps, PowersOfWholeNumbersAreWhole) {
  const SymbolOp power = find_symbol_op("_operator.pow");
  ASSERT_NE(power, nullptr);
  const auto of = [&](c10::IValue base, c10::IValue exponent) {
    return power(std::array<c10::IValue, 2>{std::move(base), std::move(exponent)});
  };
  for (int64_t base = -3; base <= 3; ++base)
    for (int64_t exponent = 0; exponent <= 5; ++exponent) {
      int64_t want = 1;
      for (int64_t i = 0; i < exponent; ++i) want *= base;
      EXPECT_EQ(of(base, exponent).toInt(), want) << base << " to the " << exponent;
    }
  EXPECT_EQ(of(int64_t{2}, int64_t{62}).toInt(), int64_t{1} << 62);
  EXPECT_THROW(of(int64_t{2}, int64_t{64}), c10::Error) << "it does not wrap";
  EXPECT_EQ(of(int64_t{1}, int64_t{1} << 60).toInt(), 1);
  EXPECT_EQ(of(int64_t{0}, int64_t{1} << 60).toInt(), 0);
  EXPECT_DOUBLE_EQ(of(int64_t{2}, int64_t{-1}).toDouble(), 0.5);
  EXPECT_DOUBLE_EQ(of(2.0, 0.5).toDouble(), std::sqrt(2.0));
}

// A buffer that a call wrote is compared where it wrote; one that it wrote nearly all of, as a whole.
TEST(Services, WhatAWriteChangedIsFound) {
  at::manual_seed(5);
  for (const int64_t written : {int64_t{3}, int64_t{60}}) {
    const bool most = written > 50;
    const at::Tensor before = at::randn({10, 10}), eager = before.clone(), same = before.clone(), other = before.clone();
    eager.view({-1}).slice(0, 0, written).add_(1);
    other.view({-1}).slice(0, 0, written).add_(2);
    ChangedPlaces places;
    const auto changed = changed_elements(from_at(before), {from_at(eager.to(at::kDouble)), from_at(eager)}, &places);
    ASSERT_TRUE(changed.ok()) << changed.status().text();
    for (const TensorRef& each : *changed) EXPECT_EQ(to_at(each).numel(), most ? 100 : written);
    const at::Tensor elsewhere = other.clone();
    elsewhere.view({-1})[99] = 7;
    const std::vector<ChangedPlaces> list(3, places);
    const auto within = elements_within(list, std::vector{from_at(other), from_at(elsewhere), from_at(same)});
    ASSERT_TRUE(within.ok()) << within.status().text();
    ASSERT_TRUE((*within)[0] && (*within)[2]);
    EXPECT_TRUE(at::equal(to_at((*within)[0]), most ? other : other.view({-1}).slice(0, 0, written)));
    EXPECT_TRUE(at::equal(to_at((*within)[2]), most ? same : same.view({-1}).slice(0, 0, written))) << "not written, and seen so";
    EXPECT_EQ((*within)[1] != nullptr, most) << "written where nobody else wrote";
  }
}

TEST(Services, ATensorWithoutAStorageHasNoBytes) { EXPECT_EQ(from_at(at::eye(3).to_sparse())->storage_bytes(), 0); }

// An operator that warns is run a hundred times by a decision, and by every call that eager answers.
TEST(Services, AWarningGoesToTheCallersHandlerOnce) {
  struct Heard : c10::WarningHandler {
    std::vector<std::string> texts;
    void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  } heard;
  const auto warn = [] { TORCH_WARN("said by AWarningGoesToTheCallersHandlerOnce"); };
  const c10::WarningUtils::WarningHandlerGuard guard(&heard);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(catch_torch([&] { EXPECT_TRUE(catch_torch(warn).ok()); }).ok());
  EXPECT_EQ(heard.texts.size(), 1u);
  EXPECT_EQ(c10::WarningUtils::get_warning_handler(), &heard);
  warn();
  EXPECT_EQ(heard.texts.size(), 2u) << "what is not ours goes its own way";
}

TEST(Services, AThreadThatKeepsToItselfStartsNoOthers) {
  const auto services = make_tensor_services();
  at::set_num_threads(2);  // a number that was asked for, which threads take over
  const int before = test::num_unnamed_threads();
  std::thread([&] {
    services->keep_to_this_thread();
    EXPECT_EQ(at::get_num_threads(), 1);
    // Operators of LibTorch's, its products (MKL's) and ours: each has its own memory of whether a thread has its number.
    const at::Tensor a = at::rand({512, 512});
    (void)a.mul(a).sum();
    services->parallel_for(1 << 20, 1, [](int64_t, int64_t) {});
    (void)a.matmul(a);
    services->parallel_for(1 << 20, 1, [](int64_t, int64_t) {});
    EXPECT_EQ(at::get_num_threads(), 1);
    EXPECT_EQ(test::num_unnamed_threads(), before + 1);
  }).join();
}

}  // namespace
}  // namespace keirin
