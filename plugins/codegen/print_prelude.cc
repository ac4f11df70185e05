// SPDX-License-Identifier: Apache-2.0
//
// What generated text stands on: per dialect the spelling of threads, shared memory, barriers and 16-bit conversions, and below
// that one common part in terms of those words. The text is compiled with every module, so it stays short.
#include "plugins/codegen/c_printer.h"

namespace keirin::codegen {
namespace {

constexpr std::string_view kCudaPrelude = R"(
#define KRN_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define KRN_KERNEL_FULL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define KRN_KERNEL_CLUSTER(blocks, threads) extern "C" __global__ void __cluster_dims__(blocks, 1, 1) __launch_bounds__(threads)
#define KRN_PARAMETER(...) const __grid_constant__ __VA_ARGS__
#define KRN_INLINE __device__ __forceinline__
#define KRN_FN KRN_INLINE
#define KRN_SHARED __shared__
#define KRN_SHARED_AHEAD(name, words) extern __shared__ Krn16 name[]
#define KRN_WAVE 32
#define KRN_THREAD ((int)threadIdx.x)
#define KRN_BLOCK ((int)blockIdx.x)
#define KRN_BLOCKS ((int)gridDim.x)
#define KRN_UNROLL _Pragma("unroll")
#define krn_sync() __syncthreads()
#define krn_bits_f32(x) __int_as_float((int)(x))
#define krn_f32_bits(x) ((unsigned)__float_as_int(x))
#define krn_bits_f64(x) __longlong_as_double((long long)(x))
template <class T> KRN_FN T krn_exchange(T v, int distance) { return __shfl_xor_sync(0xffffffffu, v, distance); }
template <> KRN_FN bool krn_exchange(bool v, int distance) { return __shfl_xor_sync(0xffffffffu, (int)v, distance) != 0; }
KRN_FN unsigned krn_shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
KRN_FN float krn_f16_value(unsigned short v) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(v)); return x; }
KRN_FN unsigned short krn_f16_bits(float x) { unsigned short v; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(v) : "f"(x)); return v; }
#define KRN_EXP2
KRN_FN float krn_exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#if __CUDA_ARCH__ >= 900
#define KRN_EARLY
#define krn_await_before() asm volatile("griddepcontrol.wait;" ::: "memory")
#define krn_let_next_begin() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define KRN_CLUSTERS
// Blocks of a cluster meet by words that they send to each other, counted by two barriers in shared memory that take turns. Barriers of
// the whole cluster would wait for every store to global memory as well.
typedef unsigned long long KrnMeeting;
KRN_FN void krn_open_meetings(KrnMeeting* met) {
  if (KRN_THREAD == 0) {
    KRN_UNROLL for (int k = 0; k < 2; ++k) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(krn_shared(met + k)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
}
KRN_FN void krn_send(unsigned* to, unsigned v, KrnMeeting* met, int rank) {
  asm volatile("{\n\t.reg .b32 a, b;\n\tmapa.shared::cluster.u32 a, %0, %3;\n\tmapa.shared::cluster.u32 b, %2, %3;\n\t"
               "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [a], %1, [b];\n\t}"
               ::"r"(krn_shared(to)), "r"(v), "r"(krn_shared(met)), "r"(rank) : "memory");
}
KRN_FN void krn_meet(KrnMeeting* met, int bytes, int parity) {
  const unsigned at = krn_shared(met);
  if (KRN_THREAD == 0)
    asm volatile("{\n\t.reg .b64 s;\n\tmbarrier.arrive.expect_tx.shared.b64 s, [%0], %1;\n\t}" ::"r"(at), "r"(bytes) : "memory");
  unsigned all;
  do asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                  : "=r"(all) : "r"(at), "r"(parity) : "memory");
  while (!all);
}
#endif
#if __CUDA_ARCH__ >= 800
#define KRN_COPY_BEHIND
KRN_FN void krn_bring16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(krn_shared(to)), "l"(from) : "memory");
}
#define krn_await_copies() asm volatile("cp.async.wait_all;" ::: "memory")
#define KRN_BF16_BITS
#define KRN_NAN_COMPARE
KRN_FN float krn_nan_max(float x, float y) { float v; asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(x), "f"(y)); return v; }
KRN_FN float krn_nan_min(float x, float y) { float v; asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(x), "f"(y)); return v; }
KRN_FN unsigned short krn_bf16_bits(float x) { unsigned short v; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(v) : "f"(x)); return v; }
#endif
)";

// Like the CUDA row but for the width of a wave, the exchange without a mask, and conversions by the compiler's own _Float16.
constexpr std::string_view kHipPrelude = R"(
#define KRN_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define KRN_PARAMETER(...) const __VA_ARGS__
#define KRN_INLINE __device__ __forceinline__
#define KRN_FN KRN_INLINE
#define KRN_SHARED __shared__
#define KRN_SHARED_AHEAD(name, words) extern __shared__ Krn16 name[]
#define KRN_WAVE 64
#define KRN_THREAD ((int)threadIdx.x)
#define KRN_BLOCK ((int)blockIdx.x)
#define KRN_BLOCKS ((int)gridDim.x)
#define KRN_UNROLL _Pragma("unroll")
#define krn_sync() __syncthreads()
#define krn_bits_f32(x) __int_as_float((int)(x))
#define krn_f32_bits(x) ((unsigned)__float_as_int(x))
#define krn_bits_f64(x) __longlong_as_double((long long)(x))
template <class T> KRN_FN T krn_exchange(T v, int distance) { return __shfl_xor(v, distance); }
template <> KRN_FN bool krn_exchange(bool v, int distance) { return __shfl_xor((int)v, distance) != 0; }
KRN_FN float krn_f16_value(unsigned short v) { _Float16 h; __builtin_memcpy(&h, &v, 2); return (float)h; }
KRN_FN unsigned short krn_f16_bits(float x) { _Float16 h = (_Float16)x; unsigned short v; __builtin_memcpy(&v, &h, 2); return v; }
)";

// Every thread of a block is a fibre of one host thread; krn_host is filled by whoever loads the library.
constexpr std::string_view kHostPrelude = R"(
#define KRN_KERNEL(threads) extern "C" void
#define KRN_KERNEL_FULL(threads, blocks) extern "C" void
#define KRN_KERNEL_CLUSTER(blocks, threads) extern "C" void
#define KRN_PARAMETER(...) const __VA_ARGS__&
#define KRN_INLINE inline
#define KRN_FN static inline
#define KRN_SHARED static
#define KRN_SHARED_AHEAD(name, words) static Krn16 name##_of[KRN_RANKS][words]; Krn16* const name = name##_of[KRN_RANK]
#define KRN_WAVE 32
struct KrnHost { int thread, block, blocks, rank; void (*sync)(); void* (*exchange)(const void* value, int bytes, int distance); };
extern "C" { KrnHost krn_host; }
#define KRN_THREAD (krn_host.thread)
#define KRN_BLOCK (krn_host.block)
#define KRN_BLOCKS (krn_host.blocks)
#define KRN_UNROLL
#define krn_sync() krn_host.sync()
// Blocks of a cluster run side by side over the same statics: what each has for itself is an array by its rank.
#define KRN_CLUSTERS
#define KRN_RANKS 8
#define KRN_RANK (krn_host.rank)
struct KrnMeeting { int unused; };
#define krn_open_meetings(met)
#define krn_send(to, v, met, rank) (*((to) + (long)sizeof(parts[0]) / 4 * ((rank) - KRN_RANK)) = (v))
#define krn_meet(met, bytes, parity) krn_host.sync()
static inline float krn_bits_f32(unsigned x) { float f; __builtin_memcpy(&f, &x, 4); return f; }
static inline unsigned krn_f32_bits(float f) { unsigned x; __builtin_memcpy(&x, &f, 4); return x; }
static inline double krn_bits_f64(unsigned long long x) { double f; __builtin_memcpy(&f, &x, 8); return f; }
template <class T> KRN_FN T krn_exchange(T v, int distance) { T out; __builtin_memcpy(&out, krn_host.exchange(&v, sizeof v, distance), sizeof v); return out; }
KRN_FN float krn_f16_value(unsigned short v) { _Float16 h; __builtin_memcpy(&h, &v, 2); return (float)h; }
KRN_FN unsigned short krn_f16_bits(float x) { _Float16 h = (_Float16)x; unsigned short v; __builtin_memcpy(&v, &h, 2); return v; }
#define KRN_1(name) static inline float name##f(float x) { return __builtin_##name##f(x); } static inline double name(double x) { return __builtin_##name(x); }
KRN_1(sqrt) KRN_1(exp) KRN_1(exp2) KRN_1(expm1) KRN_1(log) KRN_1(log1p) KRN_1(log2) KRN_1(tanh) KRN_1(erf) KRN_1(sin) KRN_1(cos)
KRN_1(floor) KRN_1(ceil) KRN_1(trunc) KRN_1(rint) KRN_1(fabs)
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline float powf(float x, float y) { return __builtin_powf(x, y); }
static inline double pow(double x, double y) { return __builtin_pow(x, y); }
static inline float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
static inline float fmodf(float x, float y) { return __builtin_fmodf(x, y); }
static inline double fmod(double x, double y) { return __builtin_fmod(x, y); }
)";

constexpr std::string_view kCommonPrelude = R"(
typedef long long i64;
#ifndef KRN_RANKS
#define KRN_RANKS 1
#define KRN_RANK 0
#endif
template <class I, int N> struct KrnSizes { I v[N]; };
template <int N> struct KrnPointers { void* v[N]; };

// Where the launch says so, a kernel begins before the one before it has ended: what that one writes is there after krn_await_before.
#ifndef KRN_EARLY
#define krn_await_before()
#define krn_let_next_begin()
#endif

// Integers wrap; neither a zero divisor nor MIN / -1 traps.
KRN_FN i64 krn_add(i64 x, i64 y) { return (i64)((unsigned long long)x + (unsigned long long)y); }
KRN_FN i64 krn_sub(i64 x, i64 y) { return (i64)((unsigned long long)x - (unsigned long long)y); }
KRN_FN i64 krn_mul(i64 x, i64 y) { return (i64)((unsigned long long)x * (unsigned long long)y); }
KRN_FN i64 krn_div(i64 x, i64 y) { return y == -1 ? krn_sub(0, x) : y == 0 ? 0 : x / y; }
KRN_FN i64 krn_abs(i64 x) { return x < 0 ? krn_sub(0, x) : x; }
KRN_FN float krn_add(float x, float y) { return x + y; }
KRN_FN double krn_add(double x, double y) { return x + y; }
KRN_FN float krn_mul(float x, float y) { return x * y; }
KRN_FN double krn_mul(double x, double y) { return x * y; }
// NaN goes through from either side.
template <class T> KRN_FN T krn_max(T x, T y) { return x != x ? x : x > y ? x : y; }
template <class T> KRN_FN T krn_min(T x, T y) { return x != x ? x : x < y ? x : y; }
#ifdef KRN_NAN_COMPARE
template <> KRN_FN float krn_max(float x, float y) { return krn_nan_max(x, y); }
template <> KRN_FN float krn_min(float x, float y) { return krn_nan_min(x, y); }
#endif

#ifndef KRN_EXP2
KRN_FN float krn_exp2(float x) { return exp2f(x); }
#endif
// erf in few instructions, for 1 + erf(x), where the error beside 1 counts (2e-7): 1 - 2^P(|x|), fitted on [0, 4] where it is 1.
#ifdef KRN_STRICT
#define krn_erf(x) erff(x)
#else
KRN_FN float krn_erf(float x) {
  const float a = krn_min(fabsf(x), 4.0f);
  const float p = ((((((-4.535858478e-05f * a + 0.0004455075062f) * a - 0.001489441105f) * a - 0.0007746306058f) * a + 0.02825368196f) * a -
                    0.1484816155f) * a - 0.9184163932f) * a - 1.627908593f;
  return copysignf(1.0f - krn_exp2(p * a), x);
}
#endif
#ifdef KRN_STRICT
#define krn_inverse(y) 0.0f
#define krn_over(x, y, inverse) ((x) / (y))
#else
#define krn_inverse(y) (1.0f / (y))
#define krn_over(x, y, inverse) ((x) * (inverse))
#endif
#ifndef KRN_BF16_BITS
KRN_FN unsigned short krn_bf16_bits(float x) {
  const unsigned v = krn_f32_bits(x);
  return (unsigned short)(x != x ? (v >> 16) | 0x40u : (v + 0x7fffu + ((v >> 16) & 1u)) >> 16);
}
#endif
#define KRN_STORAGE(name, S, K, read, write) \
  struct name { typedef S Stored; typedef K Value; static KRN_INLINE K get(S v) { return read; } static KRN_INLINE S put(K v) { return write; } };
KRN_STORAGE(d_bool, unsigned char, bool, v != 0, (unsigned char)v)
KRN_STORAGE(d_u8, unsigned char, i64, v, (unsigned char)v)
KRN_STORAGE(d_i8, signed char, i64, v, (signed char)v)
KRN_STORAGE(d_i16, short, i64, v, (short)v)
KRN_STORAGE(d_i32, int, i64, v, (int)v)
KRN_STORAGE(d_i64, i64, i64, v, v)
KRN_STORAGE(d_f16, unsigned short, float, krn_f16_value(v), krn_f16_bits(v))
KRN_STORAGE(d_bf16, unsigned short, float, krn_bits_f32((unsigned)v << 16), krn_bf16_bits(v))
KRN_STORAGE(d_f32, float, float, v, v)
KRN_STORAGE(d_f64, double, double, v, v)

// V neighbours as whole 16-byte words where they are aligned and all there, else one by one. They stay as stored until they are
// used, so that a thread can have several words under way.
struct alignas(16) Krn16 { unsigned w[4]; };
struct alignas(8) Krn8 { unsigned w[2]; };
template <int BYTES> struct KrnWord { typedef Krn16 T; };
template <> struct KrnWord<8> { typedef Krn8 T; };
template <> struct KrnWord<4> { typedef unsigned T; };
template <> struct KrnWord<2> { typedef unsigned short T; };
template <> struct KrnWord<1> { typedef unsigned char T; };
template <class D, int V> struct KrnPack {
  enum { bytes = (int)sizeof(typename D::Stored) * V, word = bytes > 16 ? 16 : bytes, words = bytes / word };
  typedef typename KrnWord<word>::T Word;
  union { Word w[words]; typename D::Stored s[V]; };
};
template <class D, int V> KRN_FN KrnPack<D, V> krn_fetch(const typename D::Stored* p, int count) {
  typedef KrnPack<D, V> Pack;
  Pack pack;
  KRN_UNROLL for (int j = 0; j < V; ++j) pack.s[j] = 0;
  if (V > 1 && count == V && ((unsigned long long)p & (Pack::word - 1)) == 0) {
    KRN_UNROLL for (int k = 0; k < Pack::words; ++k) pack.w[k] = ((const typename Pack::Word*)p)[k];
  } else {
    KRN_UNROLL for (int j = 0; j < V; ++j) if (j < count) pack.s[j] = p[j];
  }
  return pack;
}
// V neighbours on their way into words of shared memory that are the thread's own, STEP apart, and out of them after krn_await_copies.
#ifndef KRN_COPY_BEHIND
KRN_FN void krn_bring16(void* to, const void* from) { *(Krn16*)to = *(const Krn16*)from; }
#define krn_await_copies()
#endif
template <class D, int V, int STEP> KRN_FN void krn_bring(Krn16* to, const typename D::Stored* p, int count) {
  typedef KrnPack<D, V> Pack;
  if (count == V && ((unsigned long long)p & 15) == 0) {
    KRN_UNROLL for (int k = 0; k < Pack::words; ++k) krn_bring16(to + k * STEP, (const Krn16*)p + k);
  } else {
    const Pack pack = krn_fetch<D, V>(p, count);
    KRN_UNROLL for (int k = 0; k < Pack::words; ++k) to[k * STEP] = pack.w[k];
  }
}
template <class D, int V, int STEP> KRN_FN KrnPack<D, V> krn_brought(const Krn16* from) {
  KrnPack<D, V> pack;
  KRN_UNROLL for (int k = 0; k < KrnPack<D, V>::words; ++k) pack.w[k] = from[k * STEP];
  return pack;
}
// Whole words that are known to be aligned, or zeros: for text written by hand.
template <class D, int V> KRN_FN KrnPack<D, V> krn_word(const typename D::Stored* p, bool there) {
  typedef KrnPack<D, V> Pack;
  Pack pack;
  KRN_UNROLL for (int j = 0; j < V; ++j) pack.s[j] = 0;
  KRN_UNROLL for (int k = 0; k < Pack::words; ++k) if (there) pack.w[k] = ((const typename Pack::Word*)p)[k];
  return pack;
}
// N neighbours of a line from the place `at` of it on, in whole words where those are aligned and inside; what is not in [0, limit),
// and everything unless `there`, is `fill`. SKEW: by how many elements the first follows the start of a word, if nothing is odd.
template <class D, int N, int SKEW, class I>
KRN_FN void krn_line(typename D::Stored (&x)[N], const typename D::Stored* p, I at, I limit, bool there, typename D::Stored fill) {
  enum { V = 16 / (int)sizeof(typename D::Stored) };
  KRN_UNROLL for (int w = -SKEW; w < N; w += V) {
    const bool whole = w >= 0 && w + V <= N && there && at + w >= 0 && at + w + V <= limit && ((unsigned long long)(p + w) & 15) == 0;
    if (whole) {
      const KrnPack<D, V> pack = krn_word<D, V>(p + w, true);
      KRN_UNROLL for (int j = 0; j < V; ++j) if (w + j >= 0 && w + j < N) x[w + j] = pack.s[j];
    } else {
      KRN_UNROLL for (int j = 0; j < V; ++j)
        if (w + j >= 0 && w + j < N) x[w + j] = there && at + w + j >= 0 && at + w + j < limit ? p[w + j] : fill;
    }
  }
}
template <class D, int V> KRN_FN void krn_store(typename D::Stored* p, int count, const typename D::Value (&x)[V]) {
  typedef KrnPack<D, V> Pack;
  if (V > 1 && count == V && ((unsigned long long)p & (Pack::word - 1)) == 0) {
    Pack pack;
    KRN_UNROLL for (int j = 0; j < V; ++j) pack.s[j] = D::put(x[j]);
    KRN_UNROLL for (int k = 0; k < Pack::words; ++k) ((typename Pack::Word*)p)[k] = pack.w[k];
  } else {
    KRN_UNROLL for (int j = 0; j < V; ++j) if (j < count) p[j] = D::put(x[j]);
  }
}

// Monoids. krn_arg carries the place of a value: NaN beats numbers, of equals the first place wins.
template <class T> struct krn_arg { T value; i64 place; };
template <class T> KRN_FN krn_arg<T> krn_exchange(krn_arg<T> v, int distance) {
  krn_arg<T> out;
  out.value = krn_exchange(v.value, distance);
  out.place = krn_exchange(v.place, distance);
  return out;
}
template <class T, bool LARGEST> KRN_FN krn_arg<T> krn_better(krn_arg<T> x, krn_arg<T> y) {
  const bool x_nan = x.value != x.value, y_nan = y.value != y.value;
  const bool better = (LARGEST ? y.value > x.value : y.value < x.value) || (y_nan && !x_nan);
  const bool equal = x.value == y.value || (x_nan && y_nan);
  return better || (equal && y.place < x.place) ? y : x;
}
#define KRN_MONOID(name, body) struct name { template <class T> static KRN_INLINE T step(T x, T y) { return body; } };
KRN_MONOID(m_sum, krn_add(x, y))
KRN_MONOID(m_prod, krn_mul(x, y))
KRN_MONOID(m_max, krn_max(x, y))
KRN_MONOID(m_min, krn_min(x, y))
KRN_MONOID(m_any, x | y)
KRN_MONOID(m_all, x & y)
struct m_argmax { template <class T> static KRN_INLINE krn_arg<T> step(krn_arg<T> x, krn_arg<T> y) { return krn_better<T, true>(x, y); } };
struct m_argmin { template <class T> static KRN_INLINE krn_arg<T> step(krn_arg<T> x, krn_arg<T> y) { return krn_better<T, false>(x, y); } };

// Joins one value of each of GROUP neighbouring threads; all of them get the result. A group above a wave is the whole block.
template <class M, int GROUP, class T> KRN_FN T krn_join(T v) {
  KRN_UNROLL for (int d = (GROUP < KRN_WAVE ? GROUP : KRN_WAVE) / 2; d > 0; d /= 2) v = M::step(v, krn_exchange(v, d));
  if (GROUP > KRN_WAVE) {
    enum { waves = GROUP > KRN_WAVE ? GROUP / KRN_WAVE : 1 };
    KRN_SHARED T parts[KRN_RANKS][waves];
    krn_sync();
    if (KRN_THREAD % KRN_WAVE == 0) parts[KRN_RANK][KRN_THREAD / KRN_WAVE] = v;
    krn_sync();
    v = parts[KRN_RANK][KRN_THREAD % waves];
    KRN_UNROLL for (int d = waves / 2; d > 0; d /= 2) v = M::step(v, krn_exchange(v, d));
  }
  return v;
}
#ifdef KRN_CLUSTERS
template <class T> union KrnWords {
  enum { n = (sizeof(T) + 3) / 4 };
  unsigned w[n];
  T v;
};
// Joins one value of each of GROUP threads of BLOCKS blocks; all of them get the result. Every wave sends its part to every block.
// `turn` counts joins: who sends for the next one writes elsewhere, and before the one after that everybody has read this one's.
template <class M, int GROUP, int BLOCKS, class T> KRN_FN T krn_join_cluster(T v, KrnMeeting* met, int& turn) {
  enum { waves = GROUP / KRN_WAVE, all = waves * BLOCKS, across = all < KRN_WAVE ? all : KRN_WAVE };
  KRN_SHARED KrnWords<T> parts[KRN_RANKS][2][all];
  const int lane = KRN_THREAD % KRN_WAVE, side = turn & 1;
  KRN_UNROLL for (int d = KRN_WAVE / 2; d > 0; d /= 2) v = M::step(v, krn_exchange(v, d));
  KrnWords<T> mine;
  mine.w[0] = 0;
  mine.v = v;
  if (lane < BLOCKS)
    KRN_UNROLL for (int k = 0; k < KrnWords<T>::n; ++k)
      krn_send(&parts[KRN_RANK][side][KRN_BLOCK % BLOCKS * waves + KRN_THREAD / KRN_WAVE].w[k], mine.w[k], met + side, lane);
  krn_meet(met + side, all * (int)sizeof(KrnWords<T>), turn >> 1 & 1);
  v = parts[KRN_RANK][side][lane % across].v;
  KRN_UNROLL for (int k = across; k < all; k += across) v = M::step(v, parts[KRN_RANK][side][k + lane % across].v);
  KRN_UNROLL for (int d = across / 2; d > 0; d /= 2) v = M::step(v, krn_exchange(v, d));
  ++turn;
  return v;
}
#endif
// Joins V values of GROUP threads that are ACROSS apart; all of them get the results.
template <class M, int GROUP, int ACROSS, int V, class T> KRN_FN void krn_join_columns(T (&v)[V]) {
  if (GROUP == 1) return;
  KRN_SHARED T parts[V][GROUP * ACROSS];
  krn_sync();
  KRN_UNROLL for (int j = 0; j < V; ++j) parts[j][KRN_THREAD] = v[j];
  for (int half = GROUP / 2; half > 0; half /= 2) {
    krn_sync();
    if (KRN_THREAD < half * ACROSS)
      KRN_UNROLL for (int j = 0; j < V; ++j) parts[j][KRN_THREAD] = M::step(parts[j][KRN_THREAD], parts[j][KRN_THREAD + half * ACROSS]);
  }
  krn_sync();
  KRN_UNROLL for (int j = 0; j < V; ++j) v[j] = parts[j][KRN_THREAD % ACROSS];
}
)";

}  // namespace

const Dialect kCudaDialect = {"cuda", 32, kCudaPrelude};
const Dialect kHipDialect = {"hip", 64, kHipPrelude};
const Dialect kHostDialect = {"host", 32, kHostPrelude};

std::string print_prelude(const Dialect& dialect) { return std::string(dialect.prelude) + std::string(kCommonPrelude); }

}  // namespace keirin::codegen
