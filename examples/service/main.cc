// SPDX-License-Identifier: Apache-2.0
//
// What a service does with a model, without LibTorch's headers: loads it from memory, asks for its signature, calls it by names into
// memory of its own while plans are made beside the calls, hears what happens, and replaces the weights under way.
// Usage: service MODEL.pt2 (a model of one f32 input and one output; the example uses the zoo's `mlp`)
#include <keirin/keirin.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace {

std::vector<int64_t> sizes_of(const keirin::Port& port) {
  std::vector<int64_t> sizes;
  for (const keirin::Dimension& each : port.sizes) sizes.push_back(each.size);  // as exported
  return sizes;
}

size_t count(const std::vector<int64_t>& sizes) {
  size_t out = 1;
  for (int64_t each : sizes) out *= static_cast<size_t>(each);
  return out;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return std::fprintf(stderr, "usage: service MODEL.pt2\n"), 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});

  keirin::LoadOptions options;
  options.compile = "background";
  options.on_event = [](const keirin::Event& event) {
    if (event.level < 3) std::printf("event: %s: %s\n", event.model.c_str(), event.text.c_str());
  };
  keirin::Model model = keirin::Model::load_memory(bytes.data(), bytes.size(), "mlp", options);

  const keirin::Signature signature = model.signature();
  const keirin::Port &in = signature.inputs.at(0), &out = signature.outputs.at(0);
  std::printf("takes %s, returns %s\n", in.name.c_str(), out.name.c_str());
  std::vector<float> x(count(sizes_of(in)), 0.5f), y(count(sizes_of(out)));
  const auto inputs = model.in_order({{in.name, {x.data(), in.dtype, sizes_of(in), {}, "cpu", nullptr}}});
  keirin::Destination to;
  to.outputs = {{y.data(), out.dtype, sizes_of(out), {}, "cpu", nullptr}};

  model.call(inputs, to);  // eager's
  const float before = y[0];
  if (!model.wait(120)) return std::fprintf(stderr, "no plan in two minutes\n"), 1;
  model.call(inputs, to);  // a plan's, where one is right and faster
  std::printf("%g, then %g\n", before, y[0]);

  std::map<std::string, keirin::TensorView> weights;
  std::vector<std::vector<float>> zeros;
  for (const auto& [name, weight] : model.weights()) {
    zeros.emplace_back(count(weight.sizes), 0.0f);
    weights[name] = {zeros.back().data(), weight.dtype, weight.sizes, {}, "cpu", nullptr};
  }
  model.replace_weights(weights);
  model.call(inputs, to);
  std::printf("with weights of zero: %g\n", y[0]);
  return y[0] == 0 && before != 0 ? 0 : 1;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
