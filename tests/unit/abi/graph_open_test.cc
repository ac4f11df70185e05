// SPDX-License-Identifier: Apache-2.0
//
// krn_graph_open against damage: every truncation, and thousands of random mutants of valid bytes. A mutant may open; then
// every accessor is followed to its end. The bytes live in a block of exactly their size, so that a sanitizer sees the first
// byte read outside.
#include "abi/graph.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/ir/bytes.h"
#include "core/ir/text.h"
#include "tests/support/mutants.h"
#include "tests/unit/ir/random_graph.h"

extern "C" int32_t open_from_c(const void* bytes, uint64_t size, krn_graph* out);

namespace keirin {
namespace {

// Reads everything that an opened graph offers; the sum keeps the loads alive.
uint64_t read_all(const krn_graph& g) {
  uint64_t sum = 0;
  for (uint64_t f = 0; f < krn_graph_count(&g, KRN_SECTION_FUNCTIONS); ++f) {
    const krn_gfunction* function = krn_graph_function(&g, static_cast<uint32_t>(f));
    for (uint32_t k = 0; k < function->num_inputs; ++k)
      sum += krn_graph_value_type(&g, krn_graph_input(&g, function->first_input + k)->value)->dtype;
    for (uint32_t k = 0; k < function->num_outputs; ++k) {
      const krn_goutput* output = krn_graph_output(&g, function->first_output + k);
      sum += krn_graph_value_type(&g, output->value)->rank;
      if (output->alias_input != KRN_NONE) sum += krn_graph_input(&g, function->first_input + output->alias_input)->value;
    }
    for (uint32_t k = 0; k < function->num_nodes; ++k) {
      const krn_gnode* node = krn_graph_node(&g, function->first_node + k);
      for (uint32_t i = 0; i < node->num_operands; ++i) {
        uint32_t v = krn_graph_operand(&g, node, i);
        if (v == KRN_NONE) continue;
        const krn_gvalue* value = krn_graph_value(&g, v);
        EXPECT_TRUE(value->producer == KRN_NONE || value->producer < function->first_node + k);
        const krn_gtype* t = krn_graph_value_type(&g, v);
        for (uint32_t d = 0; d < t->rank; ++d)
          sum += static_cast<uint64_t>(krn_graph_sizes(&g, t)[d] + krn_graph_strides(&g, t)[d]);
      }
      for (uint32_t i = 0; i < node->num_attrs; ++i) {
        const krn_gattr* a = krn_graph_attr(&g, node->first_attr + i);
        char kind = krn_attr_kind(a->key);
        for (uint32_t w = 0; kind == 'I' && w < a->count; ++w) sum += static_cast<uint64_t>(krn_graph_words(&g, a)[w]);
        for (uint32_t w = 0; kind == 's' && w < a->count; ++w) sum += static_cast<uint64_t>(krn_graph_chars(&g, a)[w]);
      }
      if (node->body != KRN_NONE) sum += krn_graph_function(&g, node->body)->num_inputs;
      for (uint32_t i = 0; i < node->num_results; ++i) sum += krn_graph_value(&g, node->first_result + i)->type;
    }
  }
  for (uint64_t i = 0; i < krn_graph_count(&g, KRN_SECTION_NAMES); ++i) {
    auto* name = static_cast<const krn_gname*>(krn_graph_at(&g, KRN_SECTION_NAMES, i));
    auto* chars = static_cast<const char*>(krn_graph_at(&g, KRN_SECTION_NAME_CHARS, name->first_char));
    for (uint32_t k = 0; k < name->num_chars; ++k) sum += static_cast<uint64_t>(chars[k]);
  }
  return sum;
}

struct Block {
  explicit Block(const std::vector<uint8_t>& from, size_t size) : bytes(std::malloc(size ? size : 1), &std::free) {
    std::memcpy(bytes.get(), from.data(), size);
  }
  std::unique_ptr<void, decltype(&std::free)> bytes;
};

// 0 if it opened.
int32_t try_open(const std::vector<uint8_t>& bytes) {
  Block block(bytes, bytes.size());
  krn_graph g;
  int32_t line = krn_graph_open(block.bytes.get(), bytes.size(), &g);
  if (line == 0) {
    volatile uint64_t sum = read_all(g);
    (void)sum;
  }
  Result<Graph> graph = read_graph(bytes);  // the host's reader follows the same promise
  EXPECT_EQ(graph.ok() || graph.status().code() == Code::k_exhausted, line == 0);
  return line;
}

std::vector<uint8_t> valid_bytes() {
  Result<Graph> g = parse(R"(graph {
    %0 = input 0 : bf16[2,3] "x"
    %1 = constant 1 : f32[3,3]
    %2 = state 2 : f32[2,3]
    %3 = cast(%0) {dtype=f32} : f32[2,3]
    %4 = linear(%3, %1, _) : f32[2,3] unobserved
    %5 = softmax(%4) {dim=1} : f32[2,3] "probabilities" body 0
    %6 = permute(%5) {dims=[1,0]} : f32[3,2]{1,3}
    %7 = opaque#0(%6) {aten="aten::foo.bar"} : f32[3,2]
    %8, %9, %10 = lstm(%3, %3, %3, %1) {layers=1, has_biases=true} : f32[2,3], f32[2,3], f32[2,3]
    output %7
    output %8 updates %2
    body 0 {
      %0 = input 0 : f32[2,3]
      %1 = log_softmax(%0) {dim=1} : f32[2,3] body 0
      %2 = exp(%1) : f32[2,3]
      output %2
      body 0 {
        %0 = input 0 : f32[2,3]
        %1 = exp(%0) : f32[2,3]
        output %1
      }
    }
  })");
  EXPECT_TRUE(g.ok()) << g.status().text();
  Result<RegionBytes> r = write_region(*g);
  EXPECT_TRUE(r.ok()) << r.status().text();
  return r->bytes;
}

TEST(GraphOpen, ValidBytesOpenFromBothLanguages) {
  std::vector<uint8_t> bytes = valid_bytes();
  EXPECT_EQ(try_open(bytes), 0);
  krn_graph g;
  EXPECT_EQ(open_from_c(bytes.data(), bytes.size(), &g), 0);
  EXPECT_EQ(krn_graph_count(&g, KRN_SECTION_FUNCTIONS), 3u);
}

TEST(GraphOpen, EveryTruncationIsRefused) {
  std::vector<uint8_t> bytes = valid_bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    Block block(bytes, size);
    krn_graph g;
    ASSERT_NE(krn_graph_open(block.bytes.get(), size, &g), 0) << size;
    // the header may lie about the size, too
    if (size >= sizeof(krn_graph_header)) {
      reinterpret_cast<krn_graph_header*>(block.bytes.get())->total_bytes = size;
      ASSERT_NE(krn_graph_open(block.bytes.get(), size, &g), 0) << size;
    }
  }
  krn_graph g;
  EXPECT_NE(krn_graph_open(nullptr, 0, &g), 0);
  EXPECT_NE(krn_graph_open(bytes.data() + 1, bytes.size() - 1, &g), 0);
}

TEST(GraphOpen, MutantsAreRefusedOrHarmless) {
  std::mt19937 rng(20260101);
  const uint32_t kEvil[] = {0, 1, 2, 0x7f, 0xff, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  int opened = 0, refused = 0;
  test::MalformedInputs inputs;
  for (int i = 0; i < 8000; ++i) {
    Result<RegionBytes> random = write_region(testing::random_graph(static_cast<uint32_t>(i % 7), {.num_ops = 6}));
    ASSERT_TRUE(random.ok());
    std::vector<uint8_t> bytes = i % 3 ? valid_bytes() : random->bytes;
    for (uint32_t k = 0, n = 1 + rng() % 3; k < n; ++k) {
      size_t at = rng() % bytes.size();
      switch (rng() % 3) {
        case 0: bytes[at] ^= static_cast<uint8_t>(1u << (rng() % 8)); break;
        case 1: bytes[at] = static_cast<uint8_t>(rng()); break;
        default: {
          at &= ~size_t{3};
          uint32_t word = kEvil[rng() % std::size(kEvil)];
          std::memcpy(bytes.data() + at, &word, sizeof(word));
        }
      }
    }
    inputs.try_one(bytes, [&](const std::vector<uint8_t>& mutant) { (try_open(mutant) == 0 ? opened : refused)++; });
  }
  EXPECT_GT(opened, 100);   // names, op codes of equal arity, sizes: harmless
  EXPECT_GT(refused, 4000);
}

// Single defects that random bytes hit rarely.
TEST(GraphOpen, NamedDefectsAreRefused) {
  const std::vector<uint8_t> bytes = valid_bytes();
  auto record = [](std::vector<uint8_t>& b, uint32_t section, uint32_t i, uint32_t field) {
    krn_graph g;
    EXPECT_EQ(krn_graph_open(b.data(), b.size(), &g), 0);
    auto* p = const_cast<void*>(krn_graph_at(&g, section, i));
    return reinterpret_cast<uint32_t*>(p) + field;
  };
  struct Case {
    const char* name;
    uint32_t section, i, field, value;
  };
  const Case kCases[] = {
      {"operand read before it is made", KRN_SECTION_OPERANDS, 0, 0, 3},
      {"two inputs with one value", KRN_SECTION_INPUTS, 1, 0, 0},
      {"weight out of order", KRN_SECTION_INPUTS, 1, 2, 7},
      {"body calls its caller", KRN_SECTION_NODES, 6, 7, 0},
      {"value with the wrong producer", KRN_SECTION_VALUES, 2, 1, 5},
      {"alias of no input", KRN_SECTION_OUTPUTS, 1, 1, 9},
      {"unknown op", KRN_SECTION_NODES, 0, 0, 99},
      {"operands of another node", KRN_SECTION_NODES, 1, 1, 0},
      {"unknown dtype and rank", KRN_SECTION_TYPES, 0, 0, 0xff},
  };
  for (const Case& c : kCases) {
    std::vector<uint8_t> b = bytes;
    uint32_t* field = record(b, c.section, c.i, c.field);
    ASSERT_NE(*field, c.value) << c.name;
    *field = c.value;
    EXPECT_NE(try_open(b), 0) << c.name;
  }
  std::vector<uint8_t> b = bytes;  // sizes whose product overflows
  krn_graph g;
  ASSERT_EQ(krn_graph_open(b.data(), b.size(), &g), 0);
  int64_t* sizes = const_cast<int64_t*>(krn_graph_sizes(&g, krn_graph_type(&g, 0)));
  sizes[0] = sizes[1] = int64_t{1} << 40;
  EXPECT_NE(try_open(b), 0);
}

}  // namespace
}  // namespace keirin
