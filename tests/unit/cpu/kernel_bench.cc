// SPDX-License-Identifier: Apache-2.0
//
// Throughput of generated kernels beside a memory copy: GB/s of reads and writes, one thread in cache and two threads from
// memory. A program to read, not a test: nothing here passes or fails.
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "tests/unit/cpu/kernel_maker.h"
#include "tests/unit/cpu/levels.h"

namespace keirin::test {
namespace {

using namespace codegen;
using Clock = std::chrono::steady_clock;

// The least of several runs, in seconds.
double best_of(int runs, const std::function<void()>& body) {
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

double seconds(const Kernel& k, native::KernelFunction f, std::vector<Storage>& storage, int num_threads, int repeats) {
  std::vector<void*> pointers;
  for (Storage& s : storage) pointers.push_back(s.data());
  int32_t error = 0;
  pointers.insert(pointers.end(), {nullptr, nullptr, &error});
  std::vector<int64_t> arguments = size_arguments(k);
  const int64_t n = k.axes.back().size;
  const int64_t block = native::walks_down(k) ? std::min(n, native::kWalkBlock) : n;
  arguments.insert(arguments.end(), {block, (n + block - 1) / block});
  int64_t units = (n + block - 1) / block;
  for (const Axis& a : k.axes) units *= a.kind == AxisKind::kOuter ? a.size : 1;
  std::vector<std::vector<char>> scratch(2, std::vector<char>(static_cast<size_t>(native::scratch_bytes(k, n)) + 64));
  auto run = [&](int64_t begin, int64_t end, int thread) {
    for (int r = 0; r < repeats; ++r) f(pointers.data(), arguments.data(), begin, end, scratch[static_cast<size_t>(thread)].data());
  };
  return best_of(7, [&] {
    if (num_threads == 1) return run(0, units, 0);
    std::thread other(run, units / 2, units, 1);
    run(0, units / 2, 0);
    other.join();
  }) / repeats;
}

const char* g_only = "";  // kernels whose name contains it

void measure(const char* name, const std::function<Kernel(int64_t rows, int64_t n)>& make, int64_t n) {
  if (!std::strstr(name, g_only)) return;
  native::CodeCache cache;
  for (const native::CpuTarget& target : levels()) {
    double rates[2];
    for (int big = 0; big < 2; ++big) {
      const int64_t rows = (big ? (8 << 20) : (16 << 10)) / n;
      const Kernel k = make(rows, n);
      uint32_t generated = 0;
      auto f = cache.get(k, target, generated);
      std::vector<Storage> storage;
      std::mt19937 random(1);
      double bytes = 0;
      for (int64_t e : extents(k, 1)) {
        storage.emplace_back(k.buffers[storage.size()].dtype, e);
        storage.back().fill_random(random, 0);
        bytes += static_cast<double>(e * element_bytes(storage.back().dtype()));
      }
      rates[big] = bytes / seconds(k, f, storage, big + 1, big ? 1 : 20) * 1e-9;
    }
    printf("%-34s %-10s rows of %6lld: in cache, 1 thread %6.1f GB/s   from memory, 2 threads %6.1f GB/s\n", name, target.cpu.c_str(),
           static_cast<long long>(n), rates[0], rates[1]);
  }
}

Kernel pointwise(int64_t rows, int64_t n, uint8_t dtype, Prim prim) {
  KernelMaker m;
  m.outer(rows).inner(n);
  const int32_t x = m.op(Prim::kAdd, m.load(dtype, {n, 1}), m.load(dtype, {0, 1}));
  m.store(prim == Prim::kAdd ? x : m.op(prim, x), dtype, {n, 1});
  return m.k;
}

Kernel softmax(int64_t rows, int64_t n) {
  KernelMaker m;
  m.outer(rows).inner(n);
  const int32_t x = m.load(kF32, {n, 1});
  const int32_t e = m.op(Prim::kExp, m.op(Prim::kSub, x, m.reduce(Monoid::kMax, x)));
  m.store(m.op(Prim::kDiv, e, m.reduce(Monoid::kSum, e)), kF32, {n, 1});
  return m.k;
}

Kernel layer_norm(int64_t rows, int64_t n) {
  KernelMaker m;
  m.outer(rows).inner(n);
  const int32_t x = m.op(Prim::kAdd, m.load(kF32, {n, 1}), m.load(kF32, {n, 1}));
  const int32_t share = m.real(1.0 / static_cast<double>(n));
  const int32_t centred = m.op(Prim::kSub, x, m.op(Prim::kMul, m.reduce(Monoid::kSum, x), share));
  const int32_t variance = m.op(Prim::kMul, m.reduce(Monoid::kSum, m.op(Prim::kMul, centred, centred)), share);
  const int32_t scale = m.op(Prim::kRsqrt, m.op(Prim::kAdd, variance, m.real(1e-5)));
  m.store(m.op(Prim::kAdd, m.op(Prim::kMul, m.op(Prim::kMul, centred, scale), m.load(kF32, {0, 1})), m.load(kF32, {0, 1})), kF32, {n, 1});
  return m.k;
}

Kernel column_sum(int64_t rows, int64_t n) {
  KernelMaker m;
  m.outer(2).serial(rows / 2).inner(n);
  m.k.column = true;
  m.store(m.reduce(Monoid::kSum, m.load(kF32, {rows / 2 * n, n, 1})), kF32, {n, 0, 1});
  return m.k;
}

Kernel transpose(int64_t rows, int64_t n) {
  KernelMaker m;
  m.outer(rows).inner(n);
  m.store(m.load(kF32, {1, rows}), kF32, {n, 1});
  return m.k;
}

}  // namespace
}  // namespace keirin::test

int main(int argc, char** argv) {
  using namespace keirin::test;
  if (argc > 1) g_only = argv[1];
  for (int64_t megabytes : {0, 64}) {
    const size_t bytes = megabytes ? static_cast<size_t>(megabytes) << 20 : 128 << 10;
    std::vector<char> from(bytes, 1), to(bytes, 2);
    const int threads = megabytes ? 2 : 1;
    const double s = best_of(7, [&] {
      std::thread other([&] { if (threads == 2) std::memcpy(to.data() + bytes / 2, from.data() + bytes / 2, bytes / 2); });
      for (int r = 0; r < (megabytes ? 1 : 200); ++r) std::memcpy(to.data(), from.data(), threads == 2 ? bytes / 2 : bytes);
      other.join();
    });
    printf("copy, %s: %.1f GB/s\n", megabytes ? "from memory, 2 threads" : "in cache, 1 thread",
           2.0 * static_cast<double>(bytes) * (megabytes ? 1 : 200) / s * 1e-9);
  }
  using keirin::codegen::Prim;
  auto of = [](uint8_t dtype, Prim prim) { return [=](int64_t rows, int64_t n) { return pointwise(rows, n, dtype, prim); }; };
  for (int64_t n : {16, 64, 4096}) measure("x + bias, f32", of(kF32, Prim::kAdd), n);
  measure("x + bias, bf16", of(kBf16, Prim::kAdd), 4096);
  measure("exp(x + bias), f32", of(kF32, Prim::kExp), 4096);
  measure("tanh(x + bias), f32", of(kF32, Prim::kTanh), 4096);
  measure("erf(x + bias), f32", of(kF32, Prim::kErf), 4096);
  for (int64_t n : {64, 512, 4096}) measure("softmax, f32", softmax, n);
  for (int64_t n : {64, 768}) measure("residual + layer norm, f32", layer_norm, n);
  measure("column sum, f32", column_sum, 256);
  measure("transpose, f32", transpose, 1024);
}
