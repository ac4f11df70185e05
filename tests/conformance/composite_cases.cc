// SPDX-License-Identifier: Apache-2.0
//
// Cases of the COMPOSITE rows: attributes that models use and their corners, over floats and layouts.
#include <bit>
#include <cmath>
#include <functional>

#include "core/ops/table.h"
#include "tests/conformance/sheet.h"

namespace keirin::conformance {
namespace {

using K = AttrKey;

struct Variant {
  std::string name;
  std::function<Case(Sheet&, DType)> write;
  bool layouts = true;
};
using Variants = std::vector<Variant>;

Feed positive() { return {Feed::kPositive, 0, false}; }
Feed weight() { return {Feed::kNumbers, 0, false}; }

Variant one(std::string name, Dims sizes, Attrs attrs, bool layouts = true) {
  return {std::move(name), [=](Sheet& s, DType t) { return s.finish({s.operand(t, sizes)}, attrs); }, layouts};
}

void contractions(OpCode row, Variants& out) {
  if (row == OpCode::k_matmul) {
    const auto add = [&](std::string name, Dims a, Dims b, bool layouts) {
      out.push_back({std::move(name), [=](Sheet& s, DType t) {
                       const ValueId x = s.operand(t, a), y = s.operand(t, b, weight());
                       return s.finish({x, y});
                     }, layouts});
    };
    add("square", {16, 16}, {16, 16}, true);
    add("odd", {5, 37}, {37, 11}, true);
    add("batch", {2, 3, 5, 8}, {2, 3, 8, 7}, true);
    add("row", {1, 67}, {67, 9}, false);
    add("column", {9, 67}, {67, 1}, false);
    add("outer", {9, 1}, {1, 7}, false);
    add("deep", {3, 1031}, {1031, 4}, false);
    add("no_rows", {0, 5}, {5, 3}, false);
    add("no_depth", {4, 0}, {0, 3}, false);
    return;
  }
  for (bool constant : {false, true}) {
    const auto add = [&](std::string name, Dims x, Dims w, bool bias, bool layouts) {
      out.push_back({std::move(name) + (constant ? "_weights" : ""), [=](Sheet& s, DType t) {
                       ValueIds in{s.operand(t, x)};
                       in.push_back(constant ? s.constant(t, w, weight()) : s.operand(t, w, weight()));
                       if (bias) in.push_back(constant ? s.constant(t, {w[0]}, weight()) : s.plain(t, {w[0]}, weight()));
                       else in.push_back(kNone);
                       return s.finish(in);
                     }, layouts});
    };
    add("bias", {5, 37}, {11, 37}, true, true);
    add("plain", {2, 3, 16}, {8, 16}, false, true);
    add("vector", {19}, {4, 19}, true, false);
    add("one_row", {1, 67}, {33, 67}, true, false);
    add("to_one", {7, 33}, {1, 33}, true, false);
    add("no_rows", {0, 5}, {3, 5}, true, false);
  }
}

Attrs conv_attrs(Dims stride, Dims padding, Dims dilation, int64_t groups, bool transposed, Dims extra, bool ieee = false) {
  Attrs attrs{{K::k_stride, stride},  {K::k_padding, padding},       {K::k_dilation, dilation},
                          {K::k_groups, groups}, {K::k_transposed, transposed}, {K::k_output_padding, extra}};
  if (ieee) attrs.push_back({K::k_ieee, true});
  return attrs;
}

void convolutions(Variants& out) {
  struct Conv {
    const char* name;
    Dims x, w;
    bool bias;
    Attrs attrs;
  };
  const Conv all[] = {
      {"same_3x3", {2, 6, 9, 9}, {8, 6, 3, 3}, true, conv_attrs({1, 1}, {1, 1}, {1, 1}, 1, false, {0, 0})},
      {"whole_operands", {2, 6, 9, 9}, {8, 6, 3, 3}, true, conv_attrs({1, 1}, {1, 1}, {1, 1}, 1, false, {0, 0}, true)},
      {"pointwise", {2, 6, 5, 7}, {4, 6, 1, 1}, false, conv_attrs({1, 1}, {0, 0}, {1, 1}, 1, false, {0, 0})},
      {"stride_2", {1, 3, 11, 9}, {5, 3, 3, 2}, true, conv_attrs({2, 3}, {1, 0}, {1, 1}, 1, false, {0, 0})},
      {"dilated", {1, 4, 12, 12}, {4, 4, 3, 3}, true, conv_attrs({1, 1}, {2, 2}, {2, 2}, 1, false, {0, 0})},
      {"grouped", {2, 6, 7, 7}, {8, 3, 3, 3}, true, conv_attrs({1, 1}, {1, 1}, {1, 1}, 2, false, {0, 0})},
      {"depthwise", {2, 6, 7, 7}, {6, 1, 3, 3}, true, conv_attrs({1, 1}, {1, 1}, {1, 1}, 6, false, {0, 0})},
      {"conv1d", {2, 4, 33}, {6, 4, 5}, true, conv_attrs({2}, {2}, {1}, 1, false, {0})},
      {"conv3d", {1, 2, 5, 6, 7}, {3, 2, 3, 3, 3}, true, conv_attrs({1, 1, 1}, {1, 0, 1}, {1, 1, 1}, 1, false, {0, 0, 0})},
      {"transposed", {1, 4, 5, 6}, {4, 3, 3, 3}, true, conv_attrs({2, 2}, {1, 1}, {1, 1}, 1, true, {1, 1})},
      {"transposed_1d", {2, 4, 9}, {4, 3, 4}, false, conv_attrs({2}, {1}, {1}, 1, true, {0})},
  };
  for (const Conv& c : all) {
    for (bool constant : {false, true}) {
      out.push_back({std::string(c.name) + (constant ? "_weights" : ""), [=](Sheet& s, DType t) {
                       const int64_t groups = std::get<int64_t>(c.attrs[3].value);
                       const int64_t channels = std::get<bool>(c.attrs[4].value) ? c.w[1] * groups : c.w[0];
                       ValueIds in{s.operand(t, c.x)};
                       in.push_back(constant ? s.constant(t, c.w, weight()) : s.plain(t, c.w, weight()));
                       in.push_back(!c.bias ? kNone : constant ? s.constant(t, {channels}, weight()) : s.plain(t, {channels}, weight()));
                       return s.finish(in, c.attrs);
                     }, std::string(c.name) == "same_3x3" || std::string(c.name) == "grouped"});
    }
  }
}

// Of a convolution of x by a kernel of these sizes.
void weight_gradients(Variants& out) {
  struct Gradient {
    const char* name;
    Dims x, grad, kernel, stride, padding, dilation;
    int64_t groups;
  };
  const Gradient all[] = {{"same_3x3", {2, 6, 9, 9}, {2, 8, 9, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
                          {"pointwise", {2, 6, 5, 7}, {2, 4, 5, 7}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1},
                          {"stride_2", {1, 3, 11, 9}, {1, 5, 6, 3}, {3, 2}, {2, 3}, {1, 0}, {1, 1}, 1},
                          {"unreached", {1, 2, 6, 8}, {1, 3, 2, 2}, {3, 3}, {3, 4}, {0, 0}, {1, 1}, 1},  // the last rows of x
                          {"dilated", {1, 4, 12, 12}, {1, 4, 12, 12}, {3, 3}, {1, 1}, {2, 2}, {2, 2}, 1},
                          {"grouped", {2, 6, 7, 7}, {2, 8, 7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 2},
                          {"depthwise", {2, 6, 7, 7}, {2, 6, 7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 6},
                          {"wide", {2, 32, 8, 8}, {2, 48, 8, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
                          {"conv1d", {2, 4, 33}, {2, 6, 17}, {5}, {2}, {2}, {1}, 1},
                          {"conv3d", {1, 2, 5, 6, 7}, {1, 3, 5, 4, 7}, {3, 3, 3}, {1, 1, 1}, {1, 0, 1}, {1, 1, 1}, 1}};
  for (const Gradient& g : all)
    out.push_back({g.name, [=](Sheet& s, DType t) {
                     const ValueId x = s.operand(t, g.x), grad = s.operand(t, g.grad, weight());
                     return s.finish({x, grad}, {{K::k_sizes, g.kernel},
                                                 {K::k_stride, g.stride},
                                                 {K::k_padding, g.padding},
                                                 {K::k_dilation, g.dilation},
                                                 {K::k_groups, g.groups}});
                   }, std::string(g.name) == "same_3x3" || std::string(g.name) == "grouped"});
}

void attentions(Variants& out) {
  struct Attention {
    const char* name;
    Dims q, k;
    int mask;  // 0 none, 1 bool, 2 additive
    Attrs attrs;
  };
  const Attr usual{K::k_scale, 1 / std::sqrt(8.0)};  // the importer always writes one
  const Attention all[] = {{"plain", {2, 3, 7, 8}, {2, 3, 9, 8}, 0, {{K::k_causal, false}, usual}},
                           {"causal", {2, 3, 7, 8}, {2, 3, 7, 8}, 0, {{K::k_causal, true}, usual}},
                           {"causal_more_keys", {2, 3, 7, 8}, {2, 3, 12, 8}, 0, {{K::k_causal, true}, usual}},
                           {"causal_more_queries", {2, 3, 12, 8}, {2, 3, 7, 8}, 0, {{K::k_causal, true}, usual}},
                           {"causal_one_query", {2, 3, 1, 8}, {2, 3, 9, 8}, 0, {{K::k_causal, true}, usual}},
                           {"causal_gqa_more_keys", {2, 4, 6, 8}, {2, 2, 9, 8}, 0, {{K::k_causal, true}, usual, {K::k_gqa, true}}},
                           {"scaled", {1, 2, 5, 16}, {1, 2, 5, 16}, 0, {{K::k_causal, false}, {K::k_scale, 0.3}}},
                           {"bool_mask", {2, 3, 7, 8}, {2, 3, 9, 8}, 1, {{K::k_causal, false}, usual}},
                           {"additive", {2, 3, 7, 8}, {2, 3, 9, 8}, 2, {{K::k_causal, false}, usual}},
                           {"gqa", {2, 4, 6, 8}, {2, 2, 6, 8}, 0, {{K::k_causal, false}, usual, {K::k_gqa, true}}},
                           {"no_heads", {2, 0, 7, 8}, {2, 0, 9, 8}, 0, {{K::k_causal, false}, usual}},
                           {"no_queries", {2, 3, 0, 8}, {2, 3, 9, 8}, 0, {{K::k_causal, false}, usual}}};
  for (const Attention& a : all)
    out.push_back({a.name, [=](Sheet& s, DType t) {
                     const ValueId q = s.operand(t, a.q, weight()), k = s.operand(t, a.k, weight()), v = s.operand(t, a.k, weight());
                     ValueIds in{q, k, v};
                     const Dims mask{a.q[0], a.q[1], a.q[2], a.k[2]};
                     if (a.mask) in.push_back(s.plain(a.mask == 1 ? DType::k_bool : t, mask, weight()));
                     return s.finish(in, a.attrs);
                   }, std::string(a.name) == "plain"});
}

void recurrent(OpCode row, Variants& out) {
  const int64_t gates = row == OpCode::k_lstm ? 4 : 3;
  for (int form = 0; form < 12; ++form) {
    const bool biases = form % 2 == 0, both = form / 2 % 2 == 1;
    const int64_t layers = form >= 8 ? 2 : 1;
    const bool batch_first = form % 3 == 1, constant = form % 4 < 2;
    const std::string name = std::string(layers == 2 ? "two_layers" : "one_layer") + (both ? "_both" : "") + (biases ? "" : "_no_bias") +
                             (batch_first ? "_batch_first" : "") + (constant ? "_weights" : "") + std::to_string(form);
    out.push_back({name, [=](Sheet& s, DType t) {
                     const int64_t steps = 5, batch = 3, in = 6, hidden = 8, dirs = both ? 2 : 1;
                     ValueIds v{s.operand(t, batch_first ? Dims{batch, steps, in} : Dims{steps, batch, in}, weight())};
                     for (int64_t i = 0; i < (gates == 4 ? 2 : 1); ++i) v.push_back(s.plain(t, {layers * dirs, batch, hidden}, weight()));
                     const auto put = [&](Dims sizes) {
                       v.push_back(constant ? s.constant(t, sizes, weight()) : s.plain(t, sizes, weight()));
                     };
                     for (int64_t i = 0; i < layers * dirs; ++i) {
                       put({gates * hidden, i < dirs ? in : hidden * dirs});
                       put({gates * hidden, hidden});
                       if (biases) put({gates * hidden}), put({gates * hidden});
                     }
                     return s.finish(
                         v,
                         {{K::k_layers, layers}, {K::k_bidirectional, both}, {K::k_batch_first, batch_first}, {K::k_has_biases, biases}});
                   }, form == 0});
  }
}

Attrs window(Dims kernel, Dims stride, Dims padding, bool ceil) {
  return {{K::k_kernel, kernel}, {K::k_stride, stride}, {K::k_padding, padding}, {K::k_ceil_mode, ceil}};
}

void windows(OpCode row, Variants& out) {
  const auto bits = [](double a, double b) { return Dims{std::bit_cast<int64_t>(a), std::bit_cast<int64_t>(b)}; };
  switch (row) {
    case OpCode::k_max_pool:
    case OpCode::k_avg_pool: {
      const bool max = row == OpCode::k_max_pool;
      const auto add = [&](const char* name, Dims x, Attrs attrs, Dims dilation, bool count, int64_t divisor) {
        if (max) {
          attrs.push_back({K::k_dilation, dilation});
        } else {
          attrs.push_back({K::k_count_include_pad, count});
          attrs.push_back({K::k_divisor, divisor});
        }
        out.push_back(one(name, x, attrs, std::string(name) == "k3s2"));
      };
      add("k2s2", {2, 3, 8, 6}, window({2, 2}, {2, 2}, {0, 0}, false), {1, 1}, true, 0);
      add("k3s2", {2, 3, 9, 11}, window({3, 3}, {2, 2}, {1, 1}, false), {1, 1}, true, 0);
      add("pad_not_counted", {2, 3, 9, 11}, window({3, 3}, {2, 2}, {1, 1}, false), {1, 1}, false, 0);
      add("ceil", {1, 3, 8, 7}, window({3, 2}, {2, 2}, {1, 0}, true), {1, 1}, true, 0);
      add("ceil_not_counted", {1, 3, 8, 7}, window({3, 2}, {2, 2}, {1, 0}, true), {1, 1}, false, 0);
      add("one_d", {2, 3, 33}, window({3}, {2}, {1}, false), {1}, true, 0);
      add("three_d", {1, 2, 6, 7, 5}, window({2, 3, 2}, {2, 1, 2}, {0, 1, 0}, false), {1, 1, 1}, true, 0);
      if (max) add("dilated", {1, 2, 9, 9}, window({3, 3}, {1, 1}, {1, 1}, false), {2, 2}, true, 0);
      else add("divisor", {1, 2, 9, 9}, window({3, 3}, {1, 1}, {1, 1}, false), {1, 1}, true, 5);
      return;
    }
    case OpCode::k_adaptive_avg_pool:
      out.push_back(one("to_one", {2, 5, 7, 7}, {{K::k_sizes, Dims{1, 1}}}));
      out.push_back(one("divides", {2, 3, 8, 6}, {{K::k_sizes, Dims{4, 2}}}));
      out.push_back(one("overlaps", {2, 3, 7, 10}, {{K::k_sizes, Dims{3, 4}}}));
      out.push_back(one("grows", {1, 3, 3, 4}, {{K::k_sizes, Dims{5, 6}}}));
      out.push_back(one("one_d", {2, 3, 17}, {{K::k_sizes, Dims{4}}}));
      out.push_back(one("three_d", {1, 2, 4, 5, 6}, {{K::k_sizes, Dims{2, 2, 3}}}));
      return;
    case OpCode::k_upsample_nearest:
      out.push_back(one("double", {2, 3, 4, 5}, {{K::k_sizes, Dims{8, 10}}, {K::k_scales, Dims{}}}));
      out.push_back(one("odd", {2, 3, 4, 5}, {{K::k_sizes, Dims{7, 13}}, {K::k_scales, Dims{}}}));
      out.push_back(one("scaled", {2, 3, 4, 5}, {{K::k_sizes, Dims{10, 12}}, {K::k_scales, bits(2.5, 2.5)}}));
      out.push_back(one("shrink", {1, 3, 9, 8}, {{K::k_sizes, Dims{4, 3}}, {K::k_scales, Dims{}}}));
      out.push_back(one("one_d", {2, 3, 5}, {{K::k_sizes, Dims{11}}, {K::k_scales, Dims{}}}));
      return;
    default:
      for (bool corners : {false, true}) {
        const std::string tail = corners ? "_corners" : "";
        const auto add = [&](std::string name, Dims x, Dims to, Dims scales) {
          out.push_back(one(name + tail, x, {{K::k_sizes, to}, {K::k_scales, scales}, {K::k_align_corners, corners}}));
        };
        add("double", {2, 3, 4, 5}, {8, 10}, {});
        add("odd", {2, 3, 4, 5}, {7, 13}, {});
        add("scaled", {2, 3, 4, 5}, {10, 12}, bits(2.5, 2.5));
        add("shrink", {1, 3, 9, 8}, {4, 3}, {});
        add("to_one", {1, 3, 9, 8}, {1, 1}, {});
      }
      return;
  }
}

void bags(Variants& out) {
  for (const char* mode : {"sum", "mean", "max"}) {
    const std::string name = mode;
    const auto attrs = [=](bool last) { return Attrs{{K::k_mode, name}, {K::k_include_last_offset, last}}; };
    out.push_back({name + "_rows", [=](Sheet& s, DType t) {
                     const ValueId w = s.operand(t, {11, 9}), i = s.plain(DType::k_i64, {4, 5}, {Feed::kIndex, 11, false});
                     return s.finish({w, i, kNone}, attrs(false));
                   }});
    for (bool last : {false, true})
      out.push_back({name + "_offsets" + (last ? "_last" : ""), [=](Sheet& s, DType t) {
                       const ValueId w = s.operand(t, {11, 9}), i = s.plain(DType::k_i64, {20}, {Feed::kIndex, 11, false});
                       const ValueId o = s.plain(DType::k_i64, {5}, {last ? Feed::kPartition : Feed::kAscending, 20, false});
                       return s.finish({w, i, o}, attrs(last));
                     }, false});
  }
}

// Groups without rows, rows of no group, one group, one row, and more rows and columns than a kernel takes at once.
void groups(Variants& out) {
  struct Groups {
    const char* name;
    int64_t rows, depth, number, columns;
    Feed::Fill ends;  // kPartition: the last group ends with the rows; kAscending: anywhere
    DType dtype;
    bool layouts;
  };
  const Groups all[] = {{"groups", 9, 16, 4, 24, Feed::kPartition, DType::k_i32, true},
                        {"rows_behind", 11, 7, 3, 5, Feed::kAscending, DType::k_i64, false},
                        {"one_group", 7, 16, 1, 8, Feed::kPartition, DType::k_i64, false},
                        {"second_group_has_all", 7, 16, 2, 8, Feed::kPartition, DType::k_i32, false},
                        {"first_row_of_one", 1, 33, 3, 16, Feed::kPartition, DType::k_i32, false},
                        {"more_groups_than_rows", 3, 8, 12, 8, Feed::kPartition, DType::k_i64, false},
                        {"many_rows", 173, 32, 3, 256, Feed::kPartition, DType::k_i32, false},
                        {"no_rows", 0, 5, 2, 3, Feed::kPartition, DType::k_i64, false},
                        {"no_depth", 4, 0, 2, 3, Feed::kPartition, DType::k_i64, false}};
  for (const Groups& g : all)
    for (bool constant : {false, true})
      out.push_back({std::string(g.name) + (constant ? "_weights" : ""), [=](Sheet& s, DType t) {
                       const Dims sizes{g.number, g.depth, g.columns};
                       const ValueId x = s.operand(t, {g.rows, g.depth});
                       const ValueId w = constant ? s.constant(t, sizes, weight()) : s.operand(t, sizes, weight());
                       return s.finish({x, w, s.plain(g.dtype, {g.number}, {g.ends, g.rows, false})});
                     }, g.layouts});
}

void norms(OpCode row, Variants& out) {
  const Attr eps{K::k_eps, 1e-5};
  if (row == OpCode::k_batch_norm) {
    for (const Dims& x : {Dims{4, 6, 5, 3}, Dims{7, 6}, Dims{2, 6, 33}, Dims{0, 6, 4}})
      for (bool affine : {true, false})
        out.push_back({"rank" + std::to_string(x.size()) + (x[0] == 0 ? "_empty" : "") + (affine ? "" : "_plain"), [=](Sheet& s, DType t) {
                         ValueIds in{s.operand(t, x), kNone, kNone};
                         if (affine) in[1] = s.plain(t, {6}, weight()), in[2] = s.plain(t, {6}, weight());
                         in.push_back(s.plain(t, {6}, weight()));
                         in.push_back(s.plain(t, {6}, positive()));
                         return s.finish(in, {eps});
                       }, x.size() == 4 && affine});
    return;
  }
  if (row == OpCode::k_group_norm) {
    for (const auto& [x, groups] : {std::pair<Dims, int64_t>{{2, 6, 5, 3}, 3}, {{2, 6, 33}, 1}, {{3, 6, 2, 2}, 6}, {{2, 8}, 2}})
      for (bool affine : {true, false}) {
        const Dims sizes = x;
        const int64_t number = groups;
        out.push_back({"groups" + std::to_string(number) + "_rank" + std::to_string(sizes.size()) + (affine ? "" : "_plain"),
                       [=](Sheet& s, DType t) {
                         ValueIds in{s.operand(t, sizes), kNone, kNone};
                         if (affine) in[1] = s.plain(t, {sizes[1]}, weight()), in[2] = s.plain(t, {sizes[1]}, weight());
                         return s.finish(in, {{K::k_groups, number}, eps});
                       },
                       sizes.size() == 4 && affine && number == 3});
      }
    return;
  }
  const bool layer = row == OpCode::k_layer_norm;
  for (const auto& [x, rank] :
       {std::pair<Dims, int64_t>{{3, 5, 7}, 1}, {{3, 5, 7}, 2}, {{2, 67}, 1}, {{5, 1}, 1}, {{3, 1027}, 1}, {{0, 7}, 1}, {{19}, 1}})
    for (bool affine : {true, false}) {
      const Dims sizes = x, tail(x.end() - rank, x.end());
      const int64_t n = rank;
      std::string name = "rank" + std::to_string(n) + "_of";
      for (int64_t d : sizes) name += "_" + std::to_string(d);
      out.push_back({name + (affine ? "" : "_plain"), [=](Sheet& s, DType t) {
                       ValueIds in{s.operand(t, sizes)};
                       if (affine) in.push_back(s.plain(t, tail, weight()));
                       if (affine && layer) in.push_back(s.plain(t, tail, weight()));
                       return s.finish(in, {{K::k_rank, n}, eps});
                     }, sizes.size() == 3});
    }
}

void statistics(OpCode row, Variants& out) {
  if (row == OpCode::k_softmax || row == OpCode::k_log_softmax) {
    for (int64_t dim : {0, 1, 2}) out.push_back(one("dim_" + std::to_string(dim), {3, 5, 7}, {{K::k_dim, dim}}));
    out.push_back(one("tail", {4, 67}, {{K::k_dim, int64_t{1}}}));
    out.push_back(one("one", {4, 1}, {{K::k_dim, int64_t{1}}}, false));
    out.push_back(one("long", {2, 4099}, {{K::k_dim, int64_t{1}}}, false));
    out.push_back(one("columns", {67, 5}, {{K::k_dim, int64_t{0}}}, false));
    out.push_back(one("empty", {0, 5}, {{K::k_dim, int64_t{1}}}, false));
    return;
  }
  for (double correction : {0.0, 1.0}) {
    if (row == OpCode::k_mean && correction != 0) continue;
    const auto add = [&](std::string name, Dims x, Dims dims, bool keep, bool layouts) {
      Attrs attrs{{K::k_dims, dims}, {K::k_keepdim, keep}};
      if (row == OpCode::k_var) attrs.push_back({K::k_correction, correction}), name += correction != 0 ? "_unbiased" : "";
      out.push_back(one(name, x, attrs, layouts));
    };
    add("last", {3, 5, 7}, {2}, false, true);
    add("first", {3, 5, 7}, {0}, true, true);
    add("two", {3, 5, 7}, {0, 2}, false, true);
    add("all", {3, 5, 7}, {0, 1, 2}, false, false);
    add("long", {3, 4099}, {1}, true, false);
    add("kept_empty", {0, 5}, {1}, false, false);
  }
}

}  // namespace

std::vector<Case> composite_cases(OpCode row) {
  Variants variants;
  switch (row) {
    case OpCode::k_matmul:
    case OpCode::k_linear: contractions(row, variants); break;
    case OpCode::k_conv: convolutions(variants); break;
    case OpCode::k_conv_grad_weight: weight_gradients(variants); break;
    case OpCode::k_attention: attentions(variants); break;
    case OpCode::k_lstm:
    case OpCode::k_gru: recurrent(row, variants); break;
    case OpCode::k_max_pool:
    case OpCode::k_avg_pool:
    case OpCode::k_adaptive_avg_pool:
    case OpCode::k_upsample_nearest:
    case OpCode::k_upsample_bilinear: windows(row, variants); break;
    case OpCode::k_embedding_bag: bags(variants); break;
    case OpCode::k_grouped_matmul: groups(variants); break;
    case OpCode::k_batch_norm:
    case OpCode::k_layer_norm:
    case OpCode::k_group_norm:
    case OpCode::k_rms_norm: norms(row, variants); break;
    case OpCode::k_softmax:
    case OpCode::k_log_softmax:
    case OpCode::k_mean:
    case OpCode::k_var: statistics(row, variants); break;
    default: return {};
  }
  const Law law = row == OpCode::k_max_pool ? Law::kValue : row == OpCode::k_upsample_nearest ? Law::kBits : Law::kError;
  std::vector<Case> out;
  for (const Variant& v : variants) {
    for (DType dtype : kFloats) {
      const auto add = [&](Layout layout) {
        Sheet sheet(row, dtype, v.name, layout, law);
        out.push_back(v.write(sheet, dtype));
      };
      add(Layout::kContiguous);
      for (Layout layout : kLayouts)
        if (v.layouts) add(layout);
    }
  }
  return out;
}

}  // namespace keirin::conformance
