// SPDX-License-Identifier: Apache-2.0
//
// The CUDA plugin's parts on a real GPU: every printed kernel against the interpreter, rows of a scatter, products by cuBLASLt,
// and what share of a measured copy the memory-bound kernels reach. Skips, with the reason, where there is no GPU.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>

#include "cuda/cublaslt.h"
#include "cuda/cudnn.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "plugins/codegen/text/c_printer.h"
#include "plugins/gpu/attention.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/gpu/launch.h"
#include "plugins/gpu/product.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "tests/device/machine.h"
#include "tests/unit/cuda/anchor_cases.h"
#include "tests/unit/cuda/case_runner.h"

namespace keirin::cuda {
namespace {

using namespace gpu;

using namespace codegen;
using test::KernelCase;
using test::KernelMaker;

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!machine().context) GTEST_SKIP() << "no GPU to run on: " << machine().why_not;
    machine().gpu->driver->make_current(machine().context->handle());
  }
};

constexpr size_t kZone = 256;  // red zone of test::Storage

std::string run_case(const KernelCase& original, const Schedule& s, const CodeTarget& target) {
  KernelCase c = original;
  test::CaseBuffers data(c);
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  std::vector<void*> buffers;
  auto add = [&](const void* from, size_t bytes) -> DeviceMemory& {
    memory.push_back(std::make_unique<DeviceMemory>(bytes));
    if (from) memory.back()->put(from, bytes);
    return *memory.back();
  };
  for (size_t i = 0; i < data.got.size(); ++i) {
    const size_t bytes = 2 * kZone + static_cast<size_t>(data.got[i].elements() * test::element_bytes(data.got[i].dtype()));
    buffers.push_back(static_cast<char*>(add(static_cast<char*>(data.got[i].data()) - kZone, bytes).data()) + kZone);
    c.kernel.buffers[i].id = static_cast<uint32_t>(i);
  }
  if (c.kernel.has_csr) {
    c.kernel.csr.row_ptr_buffer = static_cast<uint32_t>(buffers.size());
    buffers.push_back(add(c.rows.data(), c.rows.size() * 4).data());
    c.kernel.csr.perm_buffer = static_cast<uint32_t>(buffers.size());
    buffers.push_back(add(c.order.data(), c.order.size() * 4).data());
  }
  const CodeStore::Wanted wanted{&c.kernel, s, CodeNames(c.kernel, target).of(s)};
  auto step = make_kernel_step(*machine().gpu->driver, c.kernel, s, code_store().load(*machine().gpu->driver, wanted));
  step->set_workspace(static_cast<uint32_t>(buffers.size()));
  buffers.push_back(add(nullptr, static_cast<size_t>(step->workspace_bytes())).data());
  if (krn_code code = run_step(*step, buffers); code != KRN_STATUS_ok) return "run gave code " + std::to_string(code);
  check(machine().driver->cuStreamSynchronize(machine().stream), "kernel");
  for (size_t i = 0; i < data.got.size(); ++i) {
    const size_t bytes = 2 * kZone + static_cast<size_t>(data.got[i].elements() * test::element_bytes(data.got[i].dtype()));
    memory[i]->get(static_cast<char*>(data.got[i].data()) - kZone, bytes);
  }
  return data.difference(c);
}

TEST_F(CudaDevice, PrintedKernelsAgreeWithTheInterpreter) {
  const CodeTarget target = code_target(*machine().gpu, nullptr);
  int count = 0;
  for (int64_t n : {5, 70, 515, 4100}) {
    std::vector<KernelCase> cases = test::kernel_cases(n);
    std::vector<CodeStore::Wanted> wanted;
    for (KernelCase& c : cases) {
      c.loosen = std::max(c.loosen, 4.0);
      for (const Schedule& s : test::schedules_for(c.kernel, machine().gpu->facts.max_cluster > 1))
        wanted.push_back({&c.kernel, s, CodeNames(c.kernel, target).of(s)});
    }
    code_store().compile(wanted, target, {});
    for (const KernelCase& c : cases)
      for (const Schedule& s : test::schedules_for(c.kernel, machine().gpu->facts.max_cluster > 1)) {
        std::string wrong;
        try {
          wrong = run_case(c, s, target);
        } catch (const kit::Error& error) {
          wrong = error.what();
        }
        EXPECT_EQ(wrong, "") << c.name << ": " << describe_schedule(c.kernel, s);
        if (machine().context->health() != KRN_STATUS_ok) FAIL() << "the device was lost in " << c.name;
        ++count;
      }
  }
  std::printf("%d kernels run\n", count);
}

TEST_F(CudaDevice, RowsOfAScatterAreStable) {
  std::mt19937 random(3);
  for (auto [rows, edges, hot] :
       {std::tuple{1, 1, 0}, std::tuple{100, 900, 0}, std::tuple{3000, 70000, 5000}, std::tuple{70000, 400000, 100000}}) {
    std::vector<int64_t> index(edges);
    for (int64_t& i : index) i = static_cast<int64_t>(random() % static_cast<uint32_t>(rows));
    for (int h = 0; h < hot; ++h) index[random() % static_cast<uint32_t>(edges)] = rows / 2;  // one long row
    if (edges > 10) index[3] = -1, index[7] = rows;                                            // left out
    std::vector<int32_t> row_ptr(rows + 1, 0), perm;
    for (int64_t i : index)
      if (i >= 0 && i < rows) ++row_ptr[i + 1];
    for (int r = 0; r < rows; ++r) row_ptr[r + 1] += row_ptr[r];
    perm.resize(row_ptr[rows]);
    std::vector<int32_t> next(row_ptr.begin(), row_ptr.end() - 1);
    for (int e = 0; e < edges; ++e)
      if (index[e] >= 0 && index[e] < rows) perm[next[index[e]]++] = e;
    Csr csr;
    csr.num_rows = rows, csr.num_edges = edges, csr.index_dtype = kit::kDType_i64;
    csr.index_buffer = 0, csr.row_ptr_buffer = 1, csr.perm_buffer = 2;
    auto step = make_csr_step(csr, *machine().gpu, code_target(*machine().gpu, nullptr), true);
    // Other rows first, then these twice: a new content at the same address is sorted, a known one is kept.
    std::vector<int64_t> before(index.rbegin(), index.rend());
    DeviceMemory in(index.size() * 8);
    in.put(before.data(), index.size() * 8);
    std::vector<void*> buffers{in.data(), nullptr, nullptr};
    ASSERT_EQ(run_step(*step, buffers), KRN_STATUS_ok);
    check(machine().driver->cuStreamSynchronize(machine().stream), "csr");
    in.put(index.data(), index.size() * 8);
    for (int repeat = 0; repeat < 2; ++repeat) {
      ASSERT_EQ(run_step(*step, buffers), KRN_STATUS_ok);
      check(machine().driver->cuStreamSynchronize(machine().stream), "csr");
      std::vector<int32_t> got_ptr(row_ptr.size()), got(perm.size());
      DeviceMemory::read(buffers[1], got_ptr.data(), got_ptr.size() * 4);
      DeviceMemory::read(buffers[2], got.data(), got.size() * 4);
      EXPECT_EQ(got_ptr, row_ptr) << rows << " rows";
      EXPECT_EQ(got, perm) << rows << " rows";
    }
  }
}

TensorDesc tensor(uint32_t buffer, uint8_t dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides = {}) {
  TensorDesc t;
  t.buffer = buffer, t.dtype = dtype, t.sizes = sizes, t.strides = strides;
  if (strides.empty()) {
    t.strides.assign(sizes.size(), 1);
    for (size_t d = sizes.size(); d-- > 1;) t.strides[d - 1] = t.strides[d] * sizes[d];
  }
  return t;
}

struct Product {
  std::string name;
  bool is_linear, bias, residual;
  uint32_t activation;  // 0: none
  int64_t batch, m, k, n;
  bool turned;          // matmul: the right operand is [.., N, K] seen as [.., K, N]
};

void check_product(const Product& p, uint8_t dtype) {
  std::mt19937 random(11);
  const int64_t bytes = test::element_bytes(dtype);
  auto fill = [&](int64_t n) {
    std::vector<char> out(static_cast<size_t>(n * bytes));
    for (int64_t i = 0; i < n; ++i) test::write_element(out.data(), i, dtype, std::normal_distribution<double>(0, 1)(random), 0);
    return out;
  };
  const std::vector<char> x = fill(p.batch * p.m * p.k), w = fill(p.batch * p.k * p.n), b = fill(p.n), r = fill(p.batch * p.m * p.n);
  DeviceMemory dx(x.size()), dw(w.size()), db(b.size()), dr(r.size()), dy(r.size());
  dx.put(x.data(), x.size()), dw.put(w.data(), w.size()), db.put(b.data(), b.size()), dr.put(r.data(), r.size());
  AnchorDesc anchor;
  anchor.op = p.is_linear ? kit::kOp_linear : kit::kOp_matmul;
  const bool w_is_nk = p.is_linear || p.turned;
  if (p.is_linear) {
    anchor.operands = {tensor(0, dtype, {p.m, p.k}), tensor(1, dtype, {p.n, p.k}), p.bias ? tensor(2, dtype, {p.n}) : TensorDesc{}};
    anchor.results = {tensor(4, dtype, {p.m, p.n})};
  } else {
    std::vector<int64_t> turned = p.turned ? std::vector<int64_t>{p.n * p.k, 1, p.k} : std::vector<int64_t>{};
    anchor.operands = {tensor(0, dtype, {p.batch, p.m, p.k}), tensor(1, dtype, {p.batch, p.k, p.n}, turned)};
    anchor.results = {tensor(4, dtype, {p.batch, p.m, p.n})};
  }
  auto post = [&](uint32_t op) {
    PostOp out{op, {}, 0, 0};
    if (op == kit::kOp_add) out.operand = tensor(3, dtype, anchor.results[0].sizes);
    ASSERT_TRUE(product_takes_post_op(anchor, out)) << p.name;
    anchor.post_ops.push_back(out);
  };
  if (p.residual) post(kit::kOp_add);
  if (p.activation) post(p.activation);
  std::string why_not;
  ASSERT_TRUE(product_taken(anchor, why_not)) << why_not;
  auto step = make_product(anchor, *machine().gpu, code_target(*machine().gpu, nullptr), true, false, Pick::kFastest);
  DeviceMemory scratch(static_cast<size_t>(step->workspace_bytes()));
  std::vector<void*> buffers{dx.data(), dw.data(), db.data(), dr.data(), dy.data(), scratch.data()};
  if (step->workspace_bytes() > 0) step->set_workspace(5);
  ASSERT_EQ(run_step(*step, buffers), KRN_STATUS_ok) << p.name;
  std::vector<char> y(r.size());
  dy.get(y.data(), y.size());
  auto at = [&](const std::vector<char>& t, int64_t i) { return test::read_element(t.data(), i, dtype).real; };
  const double relative = dtype == test::kBf16 ? 1.0 / 100 : dtype == test::kF16 ? 1.0 / 500 : dtype == test::kF64 ? 1e-10 : 2e-5;
  for (int64_t i = 0; i < p.batch * p.m * p.n; ++i) {
    const int64_t batch = i / (p.m * p.n), row = i / p.n % p.m, col = i % p.n;
    double sum = 0;
    for (int64_t k = 0; k < p.k; ++k)
      sum += at(x, (batch * p.m + row) * p.k + k) * at(w, batch * p.k * p.n + (w_is_nk ? col * p.k + k : k * p.n + col));
    if (p.bias) sum += at(b, col);
    if (p.residual) sum += at(r, i);
    if (p.activation == kit::kOp_relu) sum = std::max(sum, 0.0);
    if (p.activation == kit::kOp_gelu_tanh) sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
    ASSERT_NEAR(at(y, i), sum, relative * (std::fabs(sum) + std::sqrt(static_cast<double>(p.k))))
        << p.name << " dtype " << int{dtype} << " element " << i;
  }
}

TEST_F(CudaDevice, ProductsAgree) {
  std::string why_not;
  if (!cublas_products().usable(why_not)) GTEST_SKIP() << why_not;
  const Product products[] = {{"linear", true, false, false, 0, 1, 33, 64, 40, false},
                              {"linear + bias", true, true, false, 0, 1, 64, 128, 96, false},
                              {"linear + bias + relu", true, true, false, kit::kOp_relu, 1, 64, 128, 96, false},
                              {"linear + bias + gelu_tanh", true, true, false, kit::kOp_gelu_tanh, 1, 64, 128, 96, false},
                              {"linear + bias + residual + relu", true, true, true, kit::kOp_relu, 1, 64, 128, 96, false},
                              {"one row", true, true, false, 0, 1, 1, 256, 64, false},
                              {"matmul", false, false, false, 0, 1, 48, 64, 80, false},
                              {"batched", false, false, false, 0, 6, 32, 64, 48, false},
                              {"batched, right turned", false, false, false, 0, 6, 32, 64, 48, true},
                              {"batched + residual", false, false, true, 0, 3, 32, 64, 48, false}};
  for (const Product& p : products)
    for (uint8_t dtype : {test::kF32, test::kBf16, test::kF16, test::kF64}) {
      if (dtype == test::kF64 && p.activation) continue;  // the library has no such epilogue in f64
      try {
        check_product(p, dtype);
      } catch (const kit::Error& error) {
        ADD_FAILURE() << p.name << " dtype " << int{dtype} << ": " << error.what();
      }
    }
}

void check_anchor(test::AnchorCase c, Step* step) {
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  std::vector<void*> buffers;
  auto zoned = [](const test::Storage& s) { return 2 * kZone + static_cast<size_t>(s.elements() * test::element_bytes(s.dtype())); };
  for (test::Storage& s : c.buffers) {
    memory.push_back(std::make_unique<DeviceMemory>(zoned(s)));
    memory.back()->put(static_cast<char*>(s.data()) - kZone, zoned(s));
    buffers.push_back(static_cast<char*>(memory.back()->data()) + kZone);
  }
  DeviceMemory scratch(static_cast<size_t>(step->workspace_bytes()));
  step->set_workspace(static_cast<uint32_t>(buffers.size()));
  buffers.push_back(scratch.data());
  ASSERT_EQ(run_step(*step, buffers), KRN_STATUS_ok) << c.name;
  check(machine().driver->cuStreamSynchronize(machine().stream), c.name.c_str());
  test::Storage& result = c.buffers[c.result];
  memory[c.result]->get(static_cast<char*>(result.data()) - kZone, zoned(result));
  EXPECT_EQ(c.difference(result), "") << c.name << ": " << step->describe();
}

TEST_F(CudaDevice, HandWrittenKernelsAgree) {
  for (const test::AnchorCase& c : test::anchor_cases()) {
    std::string why_not;
    const auto kernel = own_kernel(c.anchor, *machine().gpu, KRN_NUMERICS_DEFAULT, why_not);
    EXPECT_TRUE(kernel || c.matrix_units) << c.name << ": " << why_not;
    if (kernel) check_anchor(c, make_text_step(*kernel, code_target(*machine().gpu, nullptr), true).get());
  }
}

TEST_F(CudaDevice, AttentionByCudnnAgrees) {
  if (!cudnn_missing().empty()) GTEST_SKIP() << cudnn_missing();
  int count = 0;
  for (const test::AnchorCase& c : test::anchor_cases()) {
    std::string why_not;
    const auto problem = c.anchor.op == kit::kOp_attention ? heads_problem(c.anchor, why_not) : std::nullopt;
    if (!problem) continue;
    ASSERT_TRUE(cudnn().supports(*problem, why_not)) << c.name << ": " << why_not;
    check_anchor(c, make_heads(c.anchor, *problem, cudnn()).get());
    ++count;
  }
  EXPECT_GE(count, 2);
}

// ---- speed

double seconds_of(const std::function<void()>& work) {
  const DriverApi& d = *machine().driver;
  CUevent start, stop;
  check(d.cuEventCreate(&start, CU_EVENT_DEFAULT), "cuEventCreate");
  check(d.cuEventCreate(&stop, CU_EVENT_DEFAULT), "cuEventCreate");
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    d.cuEventRecord(start, machine().stream);
    for (int r = 0; r < 4; ++r) work();
    d.cuEventRecord(stop, machine().stream);
    check(d.cuEventSynchronize(stop), "timing");
    float ms = 0;
    d.cuEventElapsedTime(&ms, start, stop);
    if (i > 0) best = std::min(best, ms * 1e-3 / 4);
  }
  d.cuEventDestroy(start), d.cuEventDestroy(stop);
  return best;
}

void time_kernel(const std::string& name, Kernel k, double bytes, double copy_rate, int64_t index_below = 0) {
  const CodeTarget target = code_target(*machine().gpu, nullptr);
  const Schedule s = choose_schedule(k, machine().gpu->facts);
  const CodeStore::Wanted wanted{&k, s, CodeNames(k, target).of(s)};
  code_store().compile({&wanted, 1}, target, {});
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  std::vector<void*> buffers;
  const std::vector<int64_t> elements = test::extents(k, 1);
  for (size_t i = 0; i < k.buffers.size(); ++i) {
    k.buffers[i].id = static_cast<uint32_t>(i);
    const size_t size = static_cast<size_t>(elements[i] * test::element_bytes(k.buffers[i].dtype));
    memory.push_back(std::make_unique<DeviceMemory>(size));
    if (index_below > 0 && k.buffers[i].dtype == kit::kDType_i64) {
      std::mt19937_64 random(5);
      std::vector<int64_t> index(static_cast<size_t>(elements[i]));
      for (int64_t& v : index) v = static_cast<int64_t>(random() % static_cast<uint64_t>(index_below));
      memory.back()->put(index.data(), size);
      check(machine().driver->cuStreamSynchronize(machine().stream), "index");
    } else {
      check(machine().driver->cuMemsetD8Async(memory.back()->ptr(), 0x3c, size, machine().stream), "fill");
    }
    buffers.push_back(memory.back()->data());
  }
  auto step = make_kernel_step(*machine().gpu->driver, k, s, code_store().load(*machine().gpu->driver, wanted));
  memory.push_back(std::make_unique<DeviceMemory>(static_cast<size_t>(step->workspace_bytes())));
  step->set_workspace(static_cast<uint32_t>(buffers.size()));
  buffers.push_back(memory.back()->data());
  ASSERT_EQ(run_step(*step, buffers), KRN_STATUS_ok) << name;
  const double seconds = seconds_of([&] { run_step(*step, buffers); });
  std::printf("%-34s %8.1f us %7.0f GB/s %5.1f %% of copy   %s\n", name.c_str(), seconds * 1e6, bytes / seconds / 1e9,
              100 * bytes / seconds / copy_rate, describe_schedule(k, s).c_str());
}

TEST_F(CudaDevice, ShareOfACopy) {
  const int64_t n = int64_t{1} << 28;  // 512 MB of bf16
  double copy_rate = 0;
  {
    DeviceMemory from(2 * n), to(2 * n);
    check(machine().driver->cuMemsetD8Async(from.ptr(), 1, 2 * n, machine().stream), "fill");
    const double seconds = seconds_of([&] { machine().driver->cuMemcpyDtoDAsync(to.ptr(), from.ptr(), 2 * n, machine().stream); });
    copy_rate = 4.0 * static_cast<double>(n) / seconds;
    std::printf("copy of 512 MB: %.0f GB/s read and written\n", copy_rate / 1e9);
  }
  for (uint8_t dtype : {test::kBf16, test::kF32}) {
    const double bytes = static_cast<double>(test::element_bytes(dtype));
    const int64_t count = dtype == test::kBf16 ? n : n / 2;
    const std::string tag = dtype == test::kBf16 ? " bf16" : " f32";
    {
      KernelMaker m;
      m.inner(count);
      m.store(m.op(Prim::kTanh, m.load(dtype, {1})), dtype, {1});
      time_kernel("tanh" + tag, m.k, 2 * bytes * static_cast<double>(count), copy_rate);
    }
    {
      KernelMaker m;
      m.inner(count);
      m.store(m.op(Prim::kAdd, m.load(dtype, {1}), m.load(dtype, {1})), dtype, {1});
      time_kernel("add" + tag, m.k, 3 * bytes * static_cast<double>(count), copy_rate);
    }
    for (int64_t row : {128, 1024, 4096, 16384, 65536}) {
      KernelMaker m;
      m.outer(count / row).inner(row);
      const int32_t x = m.load(dtype, {row, 1});
      const int32_t e = m.op(Prim::kExp, m.op(Prim::kSub, x, m.reduce(Monoid::kMax, x)));
      m.store(m.op(Prim::kDiv, e, m.reduce(Monoid::kSum, e)), dtype, {row, 1});
      time_kernel("softmax " + std::to_string(row) + tag, m.k, 2 * bytes * static_cast<double>(count), copy_rate);
    }
    for (int64_t row : {768, 4096}) {
      const int64_t rows = count / row;
      KernelMaker m;
      m.outer(rows).inner(row);
      const int32_t x = m.op(Prim::kAdd, m.load(dtype, {row, 1}), m.load(dtype, {row, 1}));
      const int32_t inverse = m.real(1.0 / static_cast<double>(row));
      const int32_t mean = m.op(Prim::kMul, m.reduce(Monoid::kSum, x), inverse);
      const int32_t centred = m.op(Prim::kSub, x, mean);
      const int32_t variance = m.op(Prim::kMul, m.reduce(Monoid::kSum, m.op(Prim::kMul, centred, centred)), inverse);
      const int32_t scale = m.op(Prim::kRsqrt, m.op(Prim::kAdd, variance, m.real(1e-5)));
      m.store(m.op(Prim::kAdd, m.op(Prim::kMul, m.op(Prim::kMul, centred, scale), m.load(dtype, {0, 1})), m.load(dtype, {0, 1})), dtype,
              {row, 1});
      time_kernel("residual + layer norm " + std::to_string(row) + tag, m.k, 3 * bytes * static_cast<double>(rows * row), copy_rate);
    }
    for (int64_t columns : {64, 4096}) {
      const int64_t rows = count / columns;
      KernelMaker m;
      m.outer(1).serial(rows).inner(columns);
      m.k.column = true;
      m.store(m.reduce(Monoid::kSum, m.load(dtype, {0, columns, 1})), dtype, {0, 0, 1});
      time_kernel("column sum of " + std::to_string(columns) + tag, m.k, bytes * static_cast<double>(count), copy_rate);
    }
    {
      KernelMaker m;
      m.outer(1).inner(count);
      m.store(m.reduce(Monoid::kSum, m.load(dtype, {0, 1})), dtype, {0, 0}, true);
      time_kernel("sum of all" + tag, m.k, bytes * static_cast<double>(count), copy_rate);
    }
    {
      const int64_t side = 8192, batch = count / side / side;
      KernelMaker m;
      m.outer(batch).outer(side).inner(side);
      m.store(m.load(dtype, {side * side, 1, side}), dtype, {side * side, side, 1});
      time_kernel("transpose" + tag, m.k, 2 * bytes * static_cast<double>(batch * side * side), copy_rate);
    }
    {
      const int64_t width = 1024, rows = count / width, entries = 100000;
      KernelMaker m;
      m.outer(rows).inner(width);
      const int32_t index = m.load(test::kI64, {1, 0});
      const uint32_t table = m.access(m.buffer(dtype), {0, 1});
      m.k.accesses[table].indirects.push_back({index, width, entries});
      m.store(m.load_access(table), dtype, {width, 1});
      time_kernel("gather rows of 1024" + tag, m.k, 2 * bytes * static_cast<double>(rows * width), copy_rate, entries);
    }
  }
}

// What the step takes, with its bytes as a share of a copy and its operations a second.
void time_anchor(const std::string& name, AnchorDesc anchor, double bytes, double operations, double copy_rate) {
  std::string why_not;
  const auto kernel = own_kernel(anchor, *machine().gpu, KRN_NUMERICS_DEFAULT, why_not);
  if (!kernel) {
    std::printf("%-34s %s\n", name.c_str(), why_not.c_str());
    return;
  }
  auto step = make_text_step(*kernel, code_target(*machine().gpu, nullptr), true);
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  std::vector<void*> buffers;
  for (const TensorDesc& t : kernel->pointers) {
    if (!t.present()) continue;
    int64_t last = 0;
    for (size_t d = 0; d < t.sizes.size(); ++d) last += (t.sizes[d] - 1) * t.strides[d];
    const size_t size = static_cast<size_t>((last + 1) * test::element_bytes(t.dtype));
    buffers.resize(std::max<size_t>(buffers.size(), t.buffer + 1));
    memory.push_back(std::make_unique<DeviceMemory>(size));
    std::mt19937 random(5);
    std::vector<char> data(size);
    for (size_t e = 0; e < size / static_cast<size_t>(test::element_bytes(t.dtype)); ++e)
      test::write_element(data.data(), static_cast<int64_t>(e), t.dtype, static_cast<double>(random() % 2048) / 1024 - 1, 1);
    memory.back()->put(data.data(), size);
    buffers[t.buffer] = memory.back()->data();
  }
  DeviceMemory scratch(static_cast<size_t>(step->workspace_bytes()));
  step->set_workspace(static_cast<uint32_t>(buffers.size()));
  buffers.push_back(scratch.data());
  const double seconds = seconds_of([&] { run_step(*step, buffers); });
  std::printf("%-34s %7.1f us  %5.1f %% of copy  %6.1f TFLOP/s  %s\n", name.c_str(), seconds * 1e6, 100 * bytes / seconds / copy_rate,
              operations / seconds / 1e12, step->describe().c_str());
  const auto heads = anchor.op == kit::kOp_attention ? heads_problem(anchor, why_not) : std::nullopt;
  if (anchor.op == kit::kOp_attention && (!heads || !cudnn().supports(*heads, why_not))) return;
  auto library = anchor.op == kit::kOp_linear
                     ? make_product(anchor, *machine().gpu, code_target(*machine().gpu, nullptr), true, false, Pick::kFastest)
                     : make_heads(anchor, *heads, cudnn());
  DeviceMemory more(static_cast<size_t>(library->workspace_bytes()));
  library->set_workspace(static_cast<uint32_t>(buffers.size()));
  buffers.push_back(more.data());
  std::printf("%-34s %7.1f us\n", "  by the library", seconds_of([&] { run_step(*library, buffers); }) * 1e6);
}

TEST_F(CudaDevice, SpeedOfHandWrittenKernels) {
  const double copy_rate = machine().gpu->info.bytes_per_s;
  auto heads = [](uint32_t buffer, int64_t b, int64_t h, int64_t l, int64_t d, int64_t line) {
    return tensor(buffer, test::kBf16, {b, h, l, d}, {l * line, d, line, 1});
  };
  for (auto [b, h, l, d, masked] :
       {std::tuple{64, 12, 128, 64, true}, std::tuple{64, 12, 197, 64, false}, std::tuple{8, 16, 1024, 128, false}}) {
    AnchorDesc a;
    a.op = kit::kOp_attention, a.scale = 0.125;
    const int64_t line = 3 * h * d;
    a.operands = {heads(0, b, h, l, d, line), heads(1, b, h, l, d, line), heads(2, b, h, l, d, line)};
    if (masked) a.operands.push_back(tensor(4, kit::kDType_bool, {b, h, l, l}, {l, 0, 0, 1}));
    a.results = {heads(3, b, h, l, d, h * d)};
    time_anchor("attention " + std::to_string(b) + "x" + std::to_string(h) + "x" + std::to_string(l) + "x" + std::to_string(d) +
                    (masked ? " masked" : ""),
                a, 8.0 * static_cast<double>(b * h * l * d), 4.0 * static_cast<double>(b * h * l) * static_cast<double>(l * d), copy_rate);
  }
  for (int64_t keys : {1024, 8192}) {
    AnchorDesc a;
    a.op = kit::kOp_attention, a.scale = 0.09;
    a.operands = {tensor(0, test::kBf16, {1, 32, 1, 128}), tensor(1, test::kBf16, {1, 32, keys, 128}),
                  tensor(2, test::kBf16, {1, 32, keys, 128}), tensor(4, kit::kDType_bool, {1, 32, 1, keys}, {keys, 0, keys, 1})};
    a.results = {tensor(3, test::kBf16, {1, 32, 1, 128})};
    time_anchor("attention 1 of " + std::to_string(keys), a, 4.0 * 32 * 128 * static_cast<double>(keys), 0, copy_rate);
  }
  for (auto [rows, depth, columns] : {std::tuple{1, 4096, 12288}, std::tuple{1, 4096, 4096}, std::tuple{1, 4096, 22016},
                                      std::tuple{1, 11008, 4096}, std::tuple{1, 4096, 32000}, std::tuple{2, 4096, 12288}}) {
    AnchorDesc a;
    a.op = kit::kOp_linear;
    a.operands = {tensor(0, test::kBf16, {rows, depth}), tensor(1, test::kBf16, {columns, depth}), TensorDesc{}};
    a.results = {tensor(2, test::kBf16, {rows, columns})};
    time_anchor("gemv " + std::to_string(rows) + "x" + std::to_string(depth) + "x" + std::to_string(columns), a,
                2.0 * static_cast<double>(depth) * static_cast<double>(columns), 0, copy_rate);
  }
}

}  // namespace
}  // namespace keirin::cuda
