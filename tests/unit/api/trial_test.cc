// SPDX-License-Identifier: Apache-2.0
//
// The forms of eager's outputs besides their numbers: which are views of what, and answers that are brought into the same forms.
#include "core/api/trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/unit/host/heap_services.h"

namespace keirin {
namespace {

using Tensors = std::vector<TensorRef>;
using Of = OutputView::Of;

struct Forms : testing::Test {
  test::HeapServices services;
  TensorRef base = test::tensor_of<float>(DType::k_f32, {2, 3}, {0, 1, 2, 3, 4, 5});

  // A view of `from`, `offset` elements behind its start.
  TensorRef view(const TensorRef& from, std::vector<int64_t> sizes, std::vector<int64_t> strides, int64_t offset = 0) {
    return *services.wrap({from->dtype(), std::move(sizes), std::move(strides), {}}, static_cast<float*>(from->data()) + offset, from);
  }
  static std::vector<std::array<size_t, 3>> rows(const std::vector<OutputView>& views) {
    std::vector<std::array<size_t, 3>> out;
    for (const OutputView& v : views) out.push_back({v.output, static_cast<size_t>(v.of), v.source});
    return out;
  }
};

TEST_F(Forms, OutputsOfTheirOwnMemoryAreNoViews) {
  const TensorRef other = *services.clone(base), third = *services.clone(base);
  EXPECT_TRUE(views_among({base, other}, {third}, {}).empty());
  EXPECT_TRUE(views_among({base, nullptr, other}, {}, {}).empty());
}

TEST_F(Forms, AViewIsOfTheInputElseOfTheLargestOutput) {
  const TensorRef turned = view(base, {3, 2}, {1, 3}), row = view(base, {3}, {1}, 3), alone = *services.clone(base);
  EXPECT_EQ(rows(views_among({turned, alone}, {base}, {})), (std::vector<std::array<size_t, 3>>{{0, static_cast<size_t>(Of::kInput), 0}}));
  // The row of an output is a view of it, wherever it stands; of two that hold each other the later one is.
  EXPECT_EQ(rows(views_among({alone, row, base}, {}, {})), (std::vector<std::array<size_t, 3>>{{1, static_cast<size_t>(Of::kOutput), 2}}));
  EXPECT_EQ(rows(views_among({base, alone, turned}, {}, {})),
            (std::vector<std::array<size_t, 3>>{{2, static_cast<size_t>(Of::kOutput), 0}}));
  const std::vector<OutputView> made = views_among({alone, row, base}, {}, {});
  EXPECT_EQ(made[0].byte_offset, 12);
}

TEST_F(Forms, AnswersAreBroughtIntoEagersForms) {
  const TensorRef turned = view(base, {3, 2}, {1, 3}), row = view(base, {3}, {1}, 3), across = view(*services.clone(base), {2, 3}, {1, 2});
  const OutputForms forms = forms_of({across, base, turned, row, nullptr}, {}, {});
  // Right numbers, each row-major and in memory of its own.
  const auto own = [&](const TensorRef& t, bool empty = false) -> TensorRef {
    if (empty) return nullptr;
    const TensorRef to = *services.allocate({t->dtype(), {t->sizes(), t->sizes() + t->rank()}, {}, {}});
    EXPECT_TRUE(services.copy(to, t).ok());
    return to;
  };
  const CallFn plain = [&](const Tensors&) -> Result<Tensors> { return Tensors{own(across), own(base), own(turned), own(row), nullptr}; };
  const WeightTable weights;
  const Result<Tensors> got = with_forms(plain, forms, true, services, weights)({});
  ASSERT_TRUE(got.ok()) << got.status().text();
  ASSERT_EQ(got->size(), 5u);
  EXPECT_EQ(got->at(4), nullptr);
  const Tensors wanted = {across, base, turned, row};
  for (size_t k = 0; k < wanted.size(); ++k) {
    EXPECT_EQ(spec_text(spec_of(*got->at(k))), spec_text(spec_of(*wanted[k]))) << k;
    const TensorRef a = own(got->at(k)), b = own(wanted[k]);
    EXPECT_EQ(std::memcmp(a->data(), b->data(), static_cast<size_t>(a->storage_bytes())), 0) << k;
    EXPECT_TRUE(std::equal(got->at(k)->strides(), got->at(k)->strides() + got->at(k)->rank(), wanted[k]->strides()))
        << "output " << k << " lies as eager's does";
  }
  EXPECT_EQ(sharing_of(*got, {}, {}), sharing_of(wanted, {}, {}));
  // Where nothing is a view and strides cannot differ, nothing stands between.
  const Result<Tensors> same = with_forms(plain, forms_of({across, base}, {}, {}), false, services, weights)({});
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->size(), 5u);
}

}  // namespace
}  // namespace keirin
