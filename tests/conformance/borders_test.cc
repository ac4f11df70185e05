// SPDX-License-Identifier: Apache-2.0
//
// What a plugin must do where an address is far or wrong: an index outside its axis ends the run with an error and touches no
// foreign memory, and strides past 2^31 bytes are walked in 64 bits. The sheet's operands are small and their indices good.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>

#include "core/eager/tensor_services.h"
#include "core/host/call/tensor_view.h"
#include "core/ops/builder.h"
#include "tests/conformance/subject.h"

namespace keirin::conformance {
namespace {

TensorServices& services() {
  static const std::unique_ptr<TensorServices> all = make_tensor_services();
  return *all;
}

class Borders : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Subject>> opened = Subject::open(GetParam(), KEIRIN_WORKER, services());
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    subject_ = std::move(opened).value();
  }

  // Runs the case with row-major numbers in its inputs; the outcome of the run.
  Status run(Case& c, const std::vector<std::vector<int64_t>>& numbers) {
    std::vector<GuardedTensor> tensors, outputs;
    std::vector<Lent> lent;
    std::vector<Subject::Fed> inputs(c.graph.values.size());
    for (size_t i = 0; i < c.graph.inputs.size(); ++i) {
      const Type& type = c.graph.type(c.graph.inputs[i]);
      tensors.emplace_back(type, false);
      for (int64_t k = 0; k < tensors.back().num_elements(); ++k) {
        const int64_t v = numbers[i][static_cast<size_t>(k) % numbers[i].size()];
        const auto f = static_cast<float>(v);
        tensors.back().set(k, type.dtype == DType::k_f32 ? static_cast<const void*>(&f) : &v);
      }
      tensors.back().seal();
      KRN_TRY_LET(lent.emplace_back(), subject_->lend(tensors.back()));
    }
    for (size_t i = 0; i < tensors.size(); ++i) inputs[c.graph.inputs[i]] = {&tensors[i], &lent[i]};
    for (const Output& o : c.graph.outputs) outputs.emplace_back(c.graph.type(o.value), false);
    KRN_TRY_LET(const Compiled compiled, subject_->compile(c, {}));
    if (!compiled.claimed) return Status(Code::k_unsupported, compiled.why);
    KRN_TRY_LET(const std::string damage, subject_->run(compiled, inputs, outputs));
    EXPECT_EQ(damage, "");
    return {};
  }

  static Type row_major(DType dtype, Dims sizes) {
    Dims strides = contiguous_strides(sizes);
    return {dtype, std::move(sizes), std::move(strides)};
  }

  std::unique_ptr<Subject> subject_;
};

struct Picker {
  const char* name;
  OpCode row;
  Dims index;
  Attrs attrs;
  bool has_source;
};

TEST_P(Borders, AnIndexOutsideItsAxisIsAnError) {
  using K = AttrKey;
  const Picker pickers[] = {{"take", OpCode::k_take, {19}, {{K::k_dim, int64_t{0}}}, false},
                            {"take_inner", OpCode::k_take, {19}, {{K::k_dim, int64_t{1}}}, false},
                            {"gather", OpCode::k_gather, {3, 5}, {{K::k_dim, int64_t{0}}}, false},
                            {"index_reduce",
                             OpCode::k_index_reduce,
                             {3},
                             {{K::k_dim, int64_t{0}}, {K::k_reduce, std::string("sum")}, {K::k_include_self, true}},
                             true}};
  int refused = 0;
  for (const Picker& p : pickers)
    for (const DType dtype : {DType::k_i64, DType::k_i32})
      for (const int64_t bad : {int64_t{-1}, int64_t{5}, int64_t{1} << 32, INT64_MIN}) {
        if (dtype == DType::k_i32 && bad != static_cast<int32_t>(bad)) continue;
        Case c;
        Builder builder(c.graph);
        ValueIds operands{c.graph.add_input(row_major(DType::k_f32, {5, 5}), 0),
                                      c.graph.add_input(row_major(dtype, p.index), 1)};
        std::vector<std::vector<int64_t>> numbers{{1, 2, 3}, {0, 4, bad}};
        if (p.has_source) operands.push_back(c.graph.add_input(row_major(DType::k_f32, {3, 5}), 2)), numbers.push_back({7});
        Result<ValueId> made = builder.emit1(p.row, operands, p.attrs);
        ASSERT_TRUE(made.ok()) << p.name << ": " << made.status().text();
        c.graph.outputs.push_back({made.value(), kNone, kNone});
        const Status status = run(c, numbers);
        if (status.code() == Code::k_unsupported) continue;  // not claimed
        EXPECT_FALSE(status.ok()) << p.name << " took the index " << bad;
        ++refused;
        numbers[1] = {0, 4, 1};
        const Status good = run(c, numbers);
        EXPECT_TRUE(good.ok()) << p.name << ": " << good.text();
      }
  EXPECT_GT(refused, 10);
}

// Zero pages that nobody touched cost nothing, so 6 GiB of them are cheap.
class FarMemory {
 public:
  explicit FarMemory(size_t bytes)
      : bytes_(bytes), data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~FarMemory() {
    if (data_ != MAP_FAILED) ::munmap(data_, bytes_);
  }
  uint8_t* data() const { return data_ == MAP_FAILED ? nullptr : static_cast<uint8_t*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

TEST_P(Borders, StridesPastTwoToThe31AreWalked) {
  constexpr int64_t kFar = (int64_t{1} << 31) + 64;
  const FarMemory memory(static_cast<size_t>(2 * kFar + 4096));
  if (memory.data() == nullptr) GTEST_SKIP() << "no address space for 4 GiB that nothing is written to";
  for (const bool along_rows : {false, true}) {
    const Type far{DType::k_u8, along_rows ? Dims{37, 3} : Dims{3, 37}, along_rows ? Dims{1, kFar} : Dims{kFar, 1}};
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t k = 0; k < 37; ++k) memory.data()[i * kFar + k] = static_cast<uint8_t>(10 * i + k);
    Case c;
    Builder builder(c.graph);
    const ValueId x = c.graph.add_input(far, 0);
    Result<ValueId> twice = builder.emit1(OpCode::k_add, {x, x});
    ASSERT_TRUE(twice.ok()) << twice.status().text();
    c.graph.values[twice.value()].type.strides = contiguous_strides(far.sizes);
    c.graph.outputs.push_back({twice.value(), kNone, kNone});
    const Result<Compiled> compiled = subject_->compile(c, {});
    ASSERT_TRUE(compiled.ok()) << compiled.status().text();
    if (!compiled->claimed) continue;
    const GuardedTensor output(c.graph.type(twice.value()), false);
    const auto owner = std::make_shared<int>();
    const TensorRef in = *services().wrap({far.dtype, far.sizes.vec(), far.strides.vec(), {}}, memory.data(), owner);
    const TensorRef out = *output.view(services());
    const krn_tensor inputs[] = {view_of(*in)}, outputs[] = {view_of(*out)};
    const GuardedBlock workspace(compiled->executable->workspace_bytes());
    const Lent scratch = *workspace.lend(services(), {});
    ASSERT_TRUE(compiled->executable->run(inputs, 1, outputs, 1, scratch.data, 0).ok());
    EXPECT_EQ(output.damage(), "");
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t k = 0; k < 37; ++k) {
        uint8_t got = 0;
        output.get(along_rows ? k * 3 + i : i * 37 + k, &got);
        ASSERT_EQ(got, static_cast<uint8_t>(2 * (10 * i + k))) << "element " << i << ", " << k;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, Borders, ::testing::Values(KEIRIN_CPU_FOLDER, KEIRIN_REFERENCE_FOLDER),
                         [](const auto& info) { return info.index == 0 ? "cpu" : "reference"; });

}  // namespace
}  // namespace keirin::conformance
