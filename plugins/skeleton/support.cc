// SPDX-License-Identifier: Apache-2.0
//
// Which nodes the plugin claims: relu and add on contiguous f32. The first file to grow: name more ops here, then compile them.
// And the device: its facts, and who answers the host's questions.
#include "device.h"

namespace skeleton_plugin {
namespace {

class Device final : public keirin::kit::Device {
 public:
  void describe(krn_device_desc& out) const override {
    out.name = keirin::kit::str("skeleton on the host CPU");
    out.arch = keirin::kit::str("portable");
    out.fingerprint = keirin::kit::str("none");
    out.prior_score = 1;  // any other plugin goes first
    out.alignment = 64;
    out.bytes_per_s = 10e9;
    out.launch_ns = 100;
  }

  void claim(const keirin::kit::Region& region, const krn_policy&, keirin::kit::ClaimSink& sink) override {
    const krn_gfunction& top = *krn_graph_function(&region.graph, 0);
    std::vector<uint32_t> nodes;
    for (uint32_t n = top.first_node; n < top.first_node + top.num_nodes; ++n) {
      std::string why = why_not(region.graph, *krn_graph_node(&region.graph, n));
      if (why.empty()) {
        nodes.push_back(n);
      } else {
        sink.refuse(n, why);
      }
    }
    if (!nodes.empty()) sink.claim(nodes, static_cast<uint32_t>(nodes.size()), 0, 0);
  }

  std::unique_ptr<keirin::kit::Executable> compile(const keirin::kit::Region& region, const krn_policy&,
                                                   const krn_options& options) override {
    if (options.candidate > 0) throw keirin::kit::Error(KRN_STATUS_unsupported, "skeleton has one way only");
    return make_executable({skeleton_plugin::compile(region.graph), hash_of(region)});
  }

  uint32_t check(std::string_view token) const override { return token == artifact_token() ? KRN_VERDICT_OPTIMAL : KRN_VERDICT_REJECT; }

  std::unique_ptr<keirin::kit::Executable> load(const keirin::kit::Region& region, std::string_view token, std::string_view body) override {
    if (token != artifact_token()) throw keirin::kit::Error(KRN_STATUS_version, "the artifact is of another form");
    return make_executable(skeleton_plugin::load(body, hash_of(region)));
  }

 private:
  static std::string hash_of(const keirin::kit::Region& region) { return {reinterpret_cast<const char*>(region.hash), 32}; }
};

}  // namespace

bool is_plain(const krn_graph& graph, uint32_t value) {
  const krn_gtype& type = *krn_graph_value_type(&graph, value);
  if (type.dtype != keirin::kit::kDType_f32) return false;
  const int64_t* sizes = krn_graph_sizes(&graph, &type);
  const int64_t* strides = krn_graph_strides(&graph, &type);
  int64_t step = 1;
  for (int d = type.rank; d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != step) return false;
    step *= sizes[d];
  }
  return true;
}

std::string why_not(const krn_graph& graph, const krn_gnode& node) {
  if (node.op != keirin::kit::kOp_add && node.op != keirin::kit::kOp_relu) return "only relu and add";
  if (!is_plain(graph, node.first_result)) return "only contiguous f32";
  for (uint32_t k = 0; k < node.num_operands; ++k) {
    uint32_t v = krn_graph_operand(&graph, &node, k);
    if (v == KRN_NONE || !is_plain(graph, v)) return "only contiguous f32";
  }
  return "";
}

std::unique_ptr<keirin::kit::Device> make_device() { return std::make_unique<Device>(); }

}  // namespace skeleton_plugin
