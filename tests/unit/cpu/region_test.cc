// SPDX-License-Identifier: Apache-2.0
//
// Regions as bytes through the plugin's one symbol: opened with dlopen beside other LLVMs, negotiated, claimed, compiled, run on
// two threads, saved and loaded. Expected values come from node-by-node evaluation in double.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "plugins/kit/structs.h"
#include "tests/unit/codegen/evaluate.h"
#include "tests/unit/codegen/region_builder.h"

namespace keirin::codegen::test {
namespace {

std::string g_error;
std::vector<std::vector<char>> g_constants;  // by weight id

void KRN_CALL err_set(krn_err*, krn_code, krn_str text) { g_error.assign(text.data, text.size); }

// Two slices on two threads, as a pool of two would.
void KRN_CALL parallel_for(krn_host*, int64_t n, int64_t grain, void(KRN_CALL* fn)(void*, int64_t, int64_t, int32_t), void* ctx) {
  if (n <= grain) return fn(ctx, 0, n, 0);
  std::thread other([&] { fn(ctx, n / 2, n, 1); });
  fn(ctx, 0, n / 2, 0);
  other.join();
}
int32_t KRN_CALL num_threads(krn_host*) { return 2; }

krn_code KRN_CALL open_constant(krn_host*, uint64_t, uint32_t id, krn_tensor* out, krn_err*) {
  if (id >= g_constants.size() || g_constants[id].empty()) return KRN_STATUS_unsupported;
  out->data = g_constants[id].data();
  return KRN_STATUS_ok;
}

const krn_table* KRN_CALL host_table(krn_host*, const char* name, uint32_t) {
  static krn_host_core core{};
  static krn_host_threads threads{};
  static krn_host_consts consts{};
  core.table = {sizeof core, 1, 0}, core.err_set = err_set;
  threads.table = {sizeof threads, 1, 0}, threads.parallel_for = parallel_for, threads.num_threads = num_threads;
  consts.table = {sizeof consts, 1, 0}, consts.open = open_constant;
  if (!std::strcmp(name, "krn.host.core")) return &core.table;
  if (!std::strcmp(name, "krn.host.threads")) return &threads.table;
  if (!std::strcmp(name, "krn.host.consts")) return &consts.table;
  return nullptr;
}

struct LoadedPlugin {
  krn_answer answer = kit::init<krn_answer>();
  krn_dev* device = nullptr;
  template <class T>
  const T* table(const char* name) const { return reinterpret_cast<const T*>(answer.get_table(name, 1)); }

  explicit LoadedPlugin(const char* level) {
    void* library = dlopen(KEIRIN_CPU_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    auto* entry = reinterpret_cast<decltype(&krn_plugin_entry)>(dlsym(library, "krn_plugin_entry"));
    krn_offer offer = kit::init<krn_offer>();
    offer.abi_minor_min = offer.abi_minor_max = KRN_ABI_MINOR;
    offer.role = KRN_ROLE_RUN;
    offer.get_table = host_table;
    if (entry(&offer, &answer, nullptr) != KRN_STATUS_ok) throw std::runtime_error("entry: " + g_error);
    krn_config config = kit::init<krn_config>();
    const krn_key_value option{kit::str("level"), kit::str(level)};
    config.options = &option, config.num_options = 1;
    krn_plugin* plugin = nullptr;
    if (table<krn_plugin_table>("krn.plugin")->initialize(&config, &plugin, nullptr)) throw std::runtime_error(g_error);
    krn_hw hw = kit::init<krn_hw>();
    hw.torch_type = 1;
    const krn_array list{&hw, 1, sizeof hw};
    table<krn_device_table>("krn.device")->enumerate(plugin, &list, [](void* to, uint32_t, krn_dev* dev, krn_str why) {
      if (!dev) g_error.assign(why.data, why.size);
      *static_cast<krn_dev**>(to) = dev;
    }, &device, nullptr);
    if (!device) throw std::runtime_error(g_error);
  }
};

LoadedPlugin& plugin(bool avx2) {
  static auto* full = new LoadedPlugin("");
  static auto* small = new LoadedPlugin("x86-64-v3");
  return avx2 ? *small : *full;
}

// Storage values <-> doubles, for the dtypes of these tests.
size_t bytes_of(uint8_t dtype) {
  return dtype == kDType_i64 || dtype == kDType_f64 ? 8 : dtype == kDType_bf16 || dtype == kDType_f16 ? 2 : dtype == kDType_bool ? 1 : 4;
}
void put(char* to, uint8_t dtype, double v) {
  const auto f = static_cast<float>(v);
  const auto i = static_cast<int64_t>(v);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const auto half = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  if (dtype == kDType_f32) std::memcpy(to, &f, 4);
  if (dtype == kDType_bf16) std::memcpy(to, &half, 2);
  if (dtype == kDType_i64) std::memcpy(to, &i, 8);
  if (dtype == kDType_bool) *to = v != 0;
}
double get(const char* from, uint8_t dtype) {
  float f;
  int64_t i;
  uint16_t h;
  switch (dtype) {
    case kDType_f32: std::memcpy(&f, from, 4); return f;
    case kDType_bf16: {
      std::memcpy(&h, from, 2);
      const uint32_t bits = static_cast<uint32_t>(h) << 16;
      std::memcpy(&f, &bits, 4);
      return f;
    }
    case kDType_i64: std::memcpy(&i, from, 8); return static_cast<double>(i);
    default: return *from;
  }
}
int64_t elements(const Dims& sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

struct Ran {
  krn_exec_info info = kit::init<krn_exec_info>();
  krn_code code = KRN_STATUS_ok;
};

struct Options {
  double tolerance = 2e-5;
  int64_t limit = 4;     // integer inputs lie below it
  bool through_artifact = false;
  bool expect_error = false;
  const RegionBuilder* like = nullptr;   // the executable is that of this region, taken to the other's sizes
  krn_code resized = KRN_STATUS_ok;      // what that answers
};

Ran run_on(LoadedPlugin& p, const RegionBuilder& g, const Options& o) {
  const std::vector<uint8_t> bytes = g.bytes();
  const FlatRegion region = read_region(bytes);
  std::mt19937 random(5);
  std::vector<Values> inputs;
  std::vector<std::vector<char>> memory;
  std::vector<krn_tensor> in(region.inputs.size()), out(region.outputs.size());
  g_constants.clear();
  for (int input : region.inputs) {
    const Tensor& type = region.tensors[static_cast<size_t>(input)];
    Values v(static_cast<size_t>(elements(type.sizes)));
    memory.emplace_back(v.size() * bytes_of(type.dtype) + 64);
    for (size_t i = 0; i < v.size(); ++i) {
      const bool whole = type.dtype == kDType_i64;
      put(memory.back().data() + i * bytes_of(type.dtype), type.dtype,
          whole ? static_cast<double>(random() % static_cast<uint64_t>(o.limit)) : std::normal_distribution<double>(0, 1)(random));
      v[i] = get(memory.back().data() + i * bytes_of(type.dtype), type.dtype);
    }
    inputs.push_back(v);
    if (type.weight != KRN_NONE) {
      g_constants.resize(std::max<size_t>(g_constants.size(), type.weight + 1));
      g_constants[type.weight] = memory.back();
    }
  }
  for (size_t i = 0; i < in.size(); ++i) in[i] = krn_tensor{}, in[i].data = memory[i].data();
  std::vector<std::vector<char>> results;
  for (size_t i = 0; i < out.size(); ++i) {
    const auto& type = region.tensors[static_cast<size_t>(region.outputs[i].tensor)];
    results.emplace_back(static_cast<size_t>(elements(type.sizes)) * bytes_of(type.dtype) + 64, 0x5a);
    const int32_t updated = region.outputs[i].alias_input;
    out[i] = krn_tensor{}, out[i].data = updated >= 0 ? memory[static_cast<size_t>(updated)].data() : results[i].data();
  }
  const std::vector<std::vector<char>> before = memory;

  Ran ran;
  const auto* compile = p.table<krn_compile_table>("krn.compile");
  const auto* exec_table = p.table<krn_exec_table>("krn.exec");
  krn_region r = kit::init<krn_region>();
  const std::vector<uint8_t> like = o.like ? o.like->bytes() : bytes;
  r.graph = {like.data(), like.size()};
  krn_policy policy = kit::init<krn_policy>();
  krn_options options = kit::init<krn_options>();
  krn_exec* exec = nullptr;
  EXPECT_EQ(compile->compile(p.device, &r, &policy, &options, &exec, reinterpret_cast<krn_err*>(&ran)), KRN_STATUS_ok) << g_error;
  if (!exec) return ran;
  if (o.like) {
    r.graph = {bytes.data(), bytes.size()};
    krn_exec* made = nullptr;
    EXPECT_EQ(compile->resize(exec, &r, &made, reinterpret_cast<krn_err*>(&ran)), o.resized) << g_error;
    compile->release(exec);
    if (!made) return ran;
    exec = made;
  }
  if (o.through_artifact) {
    std::string token, body;
    const krn_sink token_sink{[](void* to, const void* d, uint64_t n) {
                                static_cast<std::string*>(to)->append(static_cast<const char*>(d), n);
                                return krn_code{0};
                              },
                              &token};
    krn_sink body_sink = token_sink;
    body_sink.ctx = &body;
    const auto* artifact = p.table<krn_artifact_table>("krn.artifact");
    EXPECT_EQ(artifact->save(exec, &token_sink, &body_sink, reinterpret_cast<krn_err*>(&ran)), KRN_STATUS_ok) << g_error;
    compile->release(exec);
    uint32_t verdict = 0;
    EXPECT_EQ(artifact->check(p.device, {token.data(), token.size()}, &verdict, nullptr), KRN_STATUS_ok);
    EXPECT_EQ(verdict, KRN_VERDICT_OPTIMAL);
    EXPECT_EQ(
        artifact->load(p.device, &r, {token.data(), token.size()}, {body.data(), body.size()}, &exec, reinterpret_cast<krn_err*>(&ran)),
        KRN_STATUS_ok)
        << g_error;
    krn_exec* damaged = nullptr;
    body[body.size() / 2] ^= 1;
    EXPECT_EQ(artifact->load(p.device, &r, {token.data(), token.size()}, {body.data(), body.size()}, &damaged, nullptr),
              KRN_STATUS_corrupt);
  }
  exec_table->info(exec, &ran.info, nullptr);
  krn_needs needs = kit::init<krn_needs>();
  exec_table->needs(exec, nullptr, 0, &needs, nullptr);
  void* workspace = std::aligned_alloc(256, (needs.workspace_bytes + 511) / 256 * 256);
  krn_run run = kit::init<krn_run>();
  run.inputs = in.data(), run.num_inputs = static_cast<uint32_t>(in.size());
  run.outputs = out.data(), run.num_outputs = static_cast<uint32_t>(out.size());
  run.workspace = workspace, run.workspace_bytes = needs.workspace_bytes;
  for (int repeat = 0; repeat < 2; ++repeat) ran.code = exec_table->run(exec, &run, reinterpret_cast<krn_err*>(&ran));
  std::free(workspace);
  compile->release(exec);
  if (o.expect_error) {
    if (ran.code == KRN_STATUS_invalid_input) EXPECT_EQ(memory, before) << "an index out of range led to a write";
    return ran;
  }
  EXPECT_EQ(ran.code, KRN_STATUS_ok) << g_error;
  const std::vector<Values> want = evaluate(region, inputs);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto& type = region.tensors[static_cast<size_t>(region.outputs[i].tensor)];
    for (size_t e = 0; e < want[i].size(); ++e) {
      const double got = get(static_cast<const char*>(out[i].data) + e * bytes_of(type.dtype), type.dtype);
      const double allowed = (type.dtype == kDType_bf16 ? 0.02 : o.tolerance) * (1 + std::fabs(want[i][e]));
      if (!(std::fabs(got - want[i][e]) <= allowed)) {
        ADD_FAILURE() << "output " << i << " element " << e << ": " << got << ", not " << want[i][e];
        return ran;
      }
    }
  }
  return ran;
}

Ran check_both(const RegionBuilder& g, Options o = {}) {
  run_on(plugin(true), g, o);
  return run_on(plugin(false), g, o);
}

TEST(CpuRegions, MlpWithGelu) {
  RegionBuilder g;
  int x = g.input(kDType_f32, {7, 48});
  for (int64_t width : {64, 64, 10}) {
    const int64_t in = g.sizes(x).back();
    x = g.linear(x, g.input(kDType_f32, {width, in}, {}, true), g.input(kDType_f32, {width}, {}, true));
    if (width == 64) x = g.unary(kOp_gelu, x);
  }
  g.output(x);
  Options o;
  o.tolerance = 5e-4;  // weights of variance 1: hidden values are in the hundreds, and results cancel
  const Ran ran = check_both(g, o);
  EXPECT_EQ(ran.info.num_anchors, 3u);
  EXPECT_EQ(ran.info.num_kernels, 0u) << "both gelus are epilogues";
}

TEST(CpuRegions, ConvScaleShiftReluResidual) {
  RegionBuilder g;
  const int x = g.input(kDType_f32, {2, 16, 10, 10});
  int y = g.conv(x, g.input(kDType_f32, {16, 16, 3, 3}, {}, true), g.input(kDType_f32, {16}, {}, true), 1, 1);
  y = g.binary(kOp_mul, y, g.input(kDType_f32, {16, 1, 1}, {}, true));
  y = g.binary(kOp_add, y, g.input(kDType_f32, {16, 1, 1}, {}, true));
  g.output(g.unary(kOp_relu, g.binary(kOp_add, y, x)));
  Options o;
  o.tolerance = 1e-4;
  EXPECT_EQ(check_both(g, o).info.num_anchors, 1u);
}

// What stands beside a product, on either side of it: oneDNN applies some of these itself.
TEST(CpuRegions, AFunctionBehindAProductKeepsTheOrderOfItsOperands) {
  for (uint32_t op : {kOp_add, kOp_sub, kOp_mul, kOp_div, kOp_maximum, kOp_minimum})
    for (bool convolution : {false, true})
      for (bool product_first : {false, true}) {
        RegionBuilder g;
        const int x = convolution ? g.input(kDType_f32, {1, 8, 6, 6}) : g.input(kDType_f32, {5, 32});
        const int y = convolution ? g.conv(x, g.input(kDType_f32, {8, 8, 3, 3}, {}, true), g.input(kDType_f32, {8}, {}, true), 1, 1)
                                  : g.linear(x, g.input(kDType_f32, {32, 32}, {}, true), g.input(kDType_f32, {32}, {}, true));
        const int beside = op == kOp_div ? g.binary(kOp_add, g.unary(kOp_exp, x), g.scalar(1, x)) : x;
        g.output(product_first ? g.binary(op, y, beside)
                               : g.binary(op, beside, op == kOp_div ? g.unary(kOp_exp, g.unary(kOp_tanh, y)) : y));
        Options o;
        o.tolerance = 1e-4;
        EXPECT_EQ(check_both(g, o).info.num_anchors, 1u);
        ASSERT_FALSE(HasFailure()) << op_name(op) << ", convolution " << convolution << ", product first " << product_first;
      }
}

TEST(CpuRegions, TransformerPieces) {
  for (uint8_t dtype : {kDType_f32, kDType_bf16}) {
    RegionBuilder g;
    const int x = g.input(dtype, {2, 5, 72});
    const int wide = g.cast(x, kDType_f32);
    const int y = g.layer_norm(g.binary(kOp_add, wide, g.input(kDType_f32, {2, 5, 72})), g.input(kDType_f32, {72}, {}, true),
                               g.input(kDType_f32, {72}, {}, true), 1e-5);
    g.output(g.softmax(g.permute(y, {0, 2, 1}), 2));
    g.output(g.cast(g.unary(kOp_silu, y), dtype));
    Options o;
    o.tolerance = 1e-4;
    check_both(g, o);
  }
}

RegionBuilder encoder_piece(int64_t rows, int64_t length) {
  RegionBuilder g;
  const int x = g.input(kDType_f32, {rows, length, 48});
  const int y = g.layer_norm(x, g.input(kDType_f32, {48}, {}, true), g.input(kDType_f32, {48}, {}, true), 1e-5);
  const int z = g.linear(y, g.input(kDType_f32, {64, 48}, {}, true), g.input(kDType_f32, {64}, {}, true));
  g.output(g.softmax(g.binary(kOp_mul, z, g.unary(kOp_tanh, z)), 2));
  g.output(g.reduce(kOp_sum, z, {1}, false));
  return g;
}

TEST(CpuRegions, AnExecutableIsTakenToOtherSizes) {
  const RegionBuilder small = encoder_piece(2, 5), large = encoder_piece(3, 41);
  Options o;
  o.tolerance = 1e-4;
  const Ran compiled = check_both(large, o);
  o.like = &small;
  Ran ran = check_both(large, o);
  EXPECT_EQ(ran.info.num_kernels, compiled.info.num_kernels);
  EXPECT_EQ(ran.info.num_anchors, 1u);
  EXPECT_EQ(ran.info.num_codegen, 0u);
  o.like = &large;
  check_both(small, o);
  o.through_artifact = true;  // what was resized is saved like any other
  check_both(small, o);
}

TEST(CpuRegions, AnExecutableIsNotTakenToAnotherGraph) {
  const RegionBuilder encoder = encoder_piece(2, 5);
  RegionBuilder g;
  g.output(g.unary(kOp_exp, g.input(kDType_f32, {2, 5})));
  check_both(g, {.like = &encoder, .resized = KRN_STATUS_unsupported});
}

TEST(CpuRegions, NorIsItWhereItsCodeIsNotThere) {
  const auto chain = [](uint32_t first, uint32_t second) {
    RegionBuilder g;
    g.output(g.unary(first, g.unary(second, g.unary(first, g.unary(second, g.input(kDType_f32, {2, 5}))))));
    return g;
  };
  const RegionBuilder like = chain(kOp_sin, kOp_sigmoid);
  check_both(chain(kOp_sigmoid, kOp_sin), {.like = &like, .resized = KRN_STATUS_unsupported});
}

TEST(CpuRegions, MovesCatPadFlipTranspose) {
  RegionBuilder g;
  const int x = g.input(kDType_f32, {3, 6, 20});
  const int t = g.permute(x, {0, 2, 1});
  const int c = g.cat({t, g.unary(kOp_tanh, t), g.slice(t, 1, 2, 9, 2)}, 1);
  g.output(g.pad(c, {0, 1, 0}, {0, 2, 1}, 0.5));
  g.output(g.flip(g.reduce(kOp_sum, c, {1}, false), {1}));
  check_both(g);
}

// Numbers that no double holds: what is padded is equal to the number that it is padded with, for every integer type and both of its
// ends. The comparison is the region's own, so nothing here goes through a double.
TEST(CpuRegions, PaddingWithAnyInteger) {
  struct {
    uint8_t dtype;
    int64_t low, high;
  } const types[] = {{kDType_i64, INT64_MIN, INT64_MAX},
                     {kDType_i32, INT32_MIN, INT32_MAX},
                     {kDType_i16, INT16_MIN, INT16_MAX},
                     {kDType_i8, INT8_MIN, INT8_MAX},
                     {kDType_u8, 0, UINT8_MAX}};
  for (const auto& type : types)
    for (int64_t value : {type.low, type.low + 1, int64_t{7}, (int64_t{1} << 53) + 1, -(int64_t{1} << 53) - 1, type.high - 1, type.high}) {
      if (value < type.low || value > type.high) continue;
      for (bool computed : {false, true}) {
        RegionBuilder g;
        const int x = g.cast(g.input(kDType_i64, {3, 5}), type.dtype);
        const int source = computed ? g.binary(kOp_minimum, x, g.scalar(1, x)) : x;
        const AttrList attrs{{kAttr_low, Dims{0, 2}}, {kAttr_high, Dims{1, 0}}, {kAttr_value_i, value}, {kAttr_value_d, 0.0}};
        const int padded = type.dtype == kDType_i64 && !computed ? g.op(kOp_pad, {g.input(kDType_i64, {3, 5})}, type.dtype, {4, 7}, attrs)
                                                                : g.op(kOp_pad, {source}, type.dtype, {4, 7}, attrs);
        const int same =
            g.op(kOp_full, {}, type.dtype, {4, 7},
                 {{kAttr_sizes, Dims{4, 7}}, {kAttr_dtype, int64_t{type.dtype}}, {kAttr_value_i, value}, {kAttr_value_d, 0.0}});
        const int equal = g.op(kOp_eq, {padded, same}, kDType_bool, {4, 7});
        g.output(equal);
        g.output(g.slice(equal, 1, 0, 2));  // nothing but padding
        check_both(g);
        ASSERT_FALSE(HasFailure()) << value << " of " << int{type.dtype} << ", computed " << computed;
      }
    }
}

TEST(CpuRegions, GatherAndItsError) {
  RegionBuilder g;
  const int table = g.input(kDType_f32, {9, 33}), index = g.input(kDType_i64, {4, 6});
  g.output(g.unary(kOp_relu, g.take(table, index, 0)));
  Options o;
  o.limit = 9;
  check_both(g, o);
  o.limit = 1000;
  o.expect_error = true;
  EXPECT_EQ(check_both(g, o).code, KRN_STATUS_invalid_input);
  EXPECT_NE(g_error.find("out of range"), std::string::npos) << g_error;
}

// Rows of an input that becomes an output again, as of a cache: those that the index names are written, in the input's own memory, and
// read back by what follows.
void rows_in_place(const Dims& sizes, int64_t dim, int64_t count) {
  RegionBuilder g;
  Dims rows = sizes;
  rows[static_cast<size_t>(dim)] = count;
  const int cache = g.input(kDType_f32, sizes), first = g.input(kDType_i64, {1}), x = g.input(kDType_f32, rows);
  const AttrList counted{
      {kAttr_sizes, Dims{count}}, {kAttr_dtype, int64_t{kDType_i64}}, {kAttr_start, int64_t{0}}, {kAttr_step, int64_t{1}}};
  const int index = g.binary(kOp_add, g.op(kOp_iota, {}, kDType_i64, {count}, counted), g.expand(first, {count}));
  const int next = g.op(kOp_index_reduce, {cache, index, g.unary(kOp_neg, x)}, kDType_f32, sizes,
                        {{kAttr_dim, dim}, {kAttr_reduce, std::string("none")}, {kAttr_include_self, true}});
  g.output(next, 0);
  g.output(g.reduce(kOp_sum, next, {dim}, false));
  Options o;
  o.limit = sizes[static_cast<size_t>(dim)] - count + 1;
  check_both(g, o);
  o.limit = 1 << 30;  // then it lies outside
  o.expect_error = true;
  EXPECT_EQ(check_both(g, o).code, KRN_STATUS_invalid_input);
  EXPECT_NE(g_error.find("out of range"), std::string::npos) << g_error;
}

TEST(CpuRegions, RowsOfACacheAreWrittenInPlace) {
  rows_in_place({2, 9, 33}, 1, 1);
  rows_in_place({2, 3, 40, 20}, 2, 7);
  rows_in_place({5, 70}, 1, 1);
  rows_in_place({5, 70}, 1, 37);  // the index varies along the vectors
  rows_in_place({300}, 0, 129);
}

// One cache is written already when the index into another is found wrong: nobody may run that again.
TEST(CpuRegions, AnIndexThatIsFoundTooLateIsNoInvalidInput) {
  RegionBuilder g;
  const AttrList by_rows{{kAttr_dim, int64_t{0}}, {kAttr_reduce, std::string("none")}, {kAttr_include_self, true}};
  const int index = g.input(kDType_i64, {1});
  const int cache = g.input(kDType_f32, {9, 33}), row = g.input(kDType_f32, {1, 33}), other = g.input(kDType_f32, {70, 5});
  const int first = g.binary(kOp_mul, index, g.scalar(0, index));
  const int near = g.op(kOp_index_reduce, {cache, first, row}, kDType_f32, {9, 33}, by_rows);
  const int sum = g.expand(g.reduce(kOp_sum, near, {0, 1}, true), {1, 5});
  g.output(near, 1);
  g.output(g.op(kOp_index_reduce, {other, index, sum}, kDType_f32, {70, 5}, by_rows), 3);
  Options o;
  o.limit = 9;
  check_both(g, o);
  o.limit = 1 << 30;
  o.expect_error = true;
  EXPECT_EQ(check_both(g, o).code, KRN_STATUS_internal);
}

// A row put into a new tensor: all of that is written. An index out of range is an error, whether the source is in memory or computed.
TEST(CpuRegions, RowOfACopyAndItsError) {
  for (const bool in_memory : {true, false}) {
    RegionBuilder g;
    const int index = g.input(kDType_i64, {1}), row = g.input(kDType_f32, {1, 33}), like = g.input(kDType_f32, {9, 33});
    const int whole = in_memory ? like : g.expand(g.scalar(2, like), {9, 33});
    const int next = g.op(kOp_index_reduce, {whole, index, row}, kDType_f32, {9, 33},
                          {{kAttr_dim, int64_t{0}}, {kAttr_reduce, std::string("none")}, {kAttr_include_self, true}});
    g.output(g.binary(kOp_add, next, like));
    Options o;
    o.limit = 9;
    check_both(g, o);
    o.limit = 1 << 30;
    o.expect_error = true;
    EXPECT_EQ(check_both(g, o).code, KRN_STATUS_invalid_input) << in_memory;
  }
}

// A scatter-add over edges becomes a segment kernel over a CSR that is built at run time.
TEST(CpuRegions, MessagePassing) {
  RegionBuilder g;
  const int64_t nodes = 20, edges = 90, width = 24;
  const int x = g.input(kDType_f32, {nodes, width}), from = g.input(kDType_i64, {edges}), to = g.input(kDType_i64, {edges});
  const int zero = g.input(kDType_f32, {nodes, width});
  const int messages = g.binary(kOp_mul, g.take(x, from, 0), g.input(kDType_f32, {edges, 1}));
  const int sum = g.op(kOp_index_reduce, {zero, to, messages}, kDType_f32, {nodes, width},
                       {{kAttr_dim, int64_t{0}}, {kAttr_reduce, std::string("sum")}, {kAttr_include_self, true}});
  g.output(g.unary(kOp_relu, sum));
  Options o;
  o.limit = nodes;
  check_both(g, o);
}

TEST(CpuRegions, ArtifactsLoadWithoutGeneratingAndDamagedOnesAreRefused) {
  RegionBuilder g;
  const int x = g.input(kDType_f32, {6, 31});
  g.output(g.softmax(g.unary(kOp_sin, x), 1));
  Options o;
  o.through_artifact = true;
  const Ran ran = check_both(g, o);
  EXPECT_GE(ran.info.num_kernels, 1u);
  EXPECT_EQ(ran.info.num_codegen, 0u);
}

// The plugin's LLVM is hidden: another copy in the process neither sees nor disturbs it.
TEST(CpuRegions, RunsBesideOtherLlvms) {
  int beside = 0;
  for (const char* name : {"libLLVM-14.so.1", "libLLVM.so.19.1"}) {
    if (dlopen(name, RTLD_NOW | RTLD_GLOBAL)) ++beside;
    else printf("%s is not installed: not tried beside it\n", name);
  }
  RegionBuilder g;
  const int x = g.input(kDType_f32, {5, 19});
  g.output(g.unary(kOp_exp, g.unary(kOp_cos, g.unary(kOp_neg, x))));
  check_both(g);
  printf("compiled and ran beside %d other LLVMs\n", beside);
}

TEST(CpuRegions, CodeThatWasMadeIsCounted) {
  RegionBuilder g;
  const int x = g.input(kDType_f32, {6, 31});
  g.output(g.softmax(g.unary(kOp_cos, x), 1));
  const Ran ran = run_on(plugin(true), g, Options());  // on some machines the other one has the same code
  EXPECT_GE(ran.info.num_kernels, 1u);
  EXPECT_GE(ran.info.num_codegen, 1u);
}

TEST(CpuRegions, WhatIsNoProcessorIsRefusedByName) {
  const LoadedPlugin& loaded = plugin(false);
  krn_config config = kit::init<krn_config>();
  krn_plugin* made = nullptr;
  ASSERT_EQ(loaded.table<krn_plugin_table>("krn.plugin")->initialize(&config, &made, nullptr), KRN_STATUS_ok);
  krn_hw hw = kit::init<krn_hw>();
  hw.torch_type = 2;  // CUDA
  const krn_array list{&hw, 1, sizeof hw};
  std::string why = "not asked";
  loaded.table<krn_device_table>("krn.device")->enumerate(made, &list, [](void* to, uint32_t, krn_dev* dev, krn_str text) {
    EXPECT_EQ(dev, nullptr);
    static_cast<std::string*>(to)->assign(text.data, text.size);
  }, &why, nullptr);
  EXPECT_EQ(why, "not a CPU");
}

}  // namespace
}  // namespace keirin::codegen::test
