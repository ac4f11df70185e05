// SPDX-License-Identifier: Apache-2.0
//
// Models that are C++ code: an unmodified torch::nn module, a lambda on tensors, a TorchScript file.
//
//   #include <keirin/capture.h>
//   auto net = std::make_shared<Net>();
//   keirin::CapturedModel model = keirin::capture(net);
//   model.compile({x});                           // records the operators of one run, verifies, races
//   torch::NoGradGuard no_grad;
//   std::vector<at::Tensor> out = model({x});     // the plan, or the module itself
//
// The function itself answers until `compile`, for inputs of other dtypes, sizes or strides, where a call needs gradients (gradient
// mode is on and an input or weight asks for them), once a weight was written or moved (compile again), where a module was switched
// between training and evaluation, and where it cannot be recorded; `explain` says which.
//
// A recording is the function's operators for one set of sizes. Before it is used it is compared with the function, on the inputs given
// and on others of the same sizes. What it cannot know is code outside of operators that this comparison does not reach: a branch on a
// global variable, a write through a raw pointer to a tensor that `forward` reads. `Source::state` is there for the former.
#pragma once

#include <ATen/ATen.h>
#include <keirin/keirin.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace keirin {

class KRN_API CapturedModel {
 public:
  using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
  struct Source {
    Function forward;
    // Names of what it reads besides its inputs, for reports. Tensors that are not among them are found and numbered.
    std::vector<std::pair<std::string, at::Tensor>> weights;
    // Called before each call: another number says that `forward` would ask for other operators. Empty: it never does.
    std::function<uint64_t()> state;
    std::string name = "captured";  // in reports
  };
  // `options.device` is not used: what runs where the inputs are runs there. Throws Error as Model::load does.
  explicit CapturedModel(Source source, const LoadOptions& options = {});
  // A TorchScript file (torch.jit.save; the format is deprecated, torch.export is its successor), in evaluation mode, on `options.device`.
  // Throws what LibTorch throws for a file that it cannot read.
  static CapturedModel load_script(const std::string& path, const LoadOptions& options = {});

  // Decides for calls like one with `inputs`: runs `forward` several times on them and on others of the same sizes; inputs, weights and
  // random generators are as before afterwards. Where it cannot be recorded nothing is thrown, `explain` says why. Not beside calls of
  // a function that writes its weights.
  void compile(const std::vector<at::Tensor>& inputs);
  // Any number of threads, if `forward` may be called so. Outputs of a plan need no gradients.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) const;

  std::string explain() const;      // what was chosen and why, as text
  std::string report_json() const;  // the same as JSON: an array with one report per decision

  struct Impl;
  explicit CapturedModel(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}  // for the library itself

 private:
  std::shared_ptr<Impl> impl_;
};

namespace capture_detail {

inline void flatten(std::vector<at::Tensor>& out, const at::Tensor& value) { out.push_back(value); }
inline void flatten(std::vector<at::Tensor>& out, const std::vector<at::Tensor>& values) {
  out.insert(out.end(), values.begin(), values.end());
}
template <class... T>
void flatten(std::vector<at::Tensor>& out, const std::tuple<T...>& values) {
  std::apply([&](const auto&... each) { (flatten(out, each), ...); }, values);
}

template <class Net, size_t... I>
std::vector<at::Tensor> forward(Net& net, const std::vector<at::Tensor>& inputs, std::index_sequence<I...>) {
  std::vector<at::Tensor> out;
  flatten(out, net->forward(inputs[I]...));
  return out;
}

template <class Net, class Indices>
struct Takes;
template <class Net, size_t... I>
struct Takes<Net, std::index_sequence<I...>> {
  template <size_t>
  using Input = const at::Tensor&;
  template <class N>
  static auto test(int) -> decltype(std::declval<N&>()->forward(std::declval<Input<I>>()...), std::true_type());
  template <class>
  static std::false_type test(...);
  static constexpr bool value = decltype(test<Net>(0))::value;
};

// As many arguments as there are inputs, of those that `forward` can be called with.
template <size_t N, class Net>
std::vector<at::Tensor> call(Net& net, const std::vector<at::Tensor>& inputs) {
  if constexpr (Takes<Net, std::make_index_sequence<N>>::value) {
    if (inputs.size() == N) return forward(net, inputs, std::make_index_sequence<N>());
  }
  if constexpr (N == 0)
    throw Error(2, "invalid_input: forward cannot be called with " + std::to_string(inputs.size()) + " tensors");
  else
    return call<N - 1>(net, inputs);
}

template <class Net>
CapturedModel::Source source_of(Net net) {
  CapturedModel::Source source;
  for (const auto& each : net->named_parameters()) source.weights.emplace_back(each.key(), each.value());
  for (const auto& each : net->named_buffers()) source.weights.emplace_back(each.key(), each.value());
  source.state = [modules = net->modules()] {
    uint64_t state = 14695981039346656037u;  // FNV-1a over who is training
    for (const auto& module : modules) state = (state ^ static_cast<uint64_t>(module->is_training())) * 1099511628211u;
    return state;
  };
  source.name = net->name();
  source.forward = [net](const std::vector<at::Tensor>& inputs) mutable { return call<8>(net, inputs); };
  return source;
}

}  // namespace capture_detail

// A torch::nn module by shared_ptr or by its holder, whose `forward` takes up to eight tensors and returns a tensor, a vector of them, or
// tuples of these. Others: a CapturedModel of a lambda.
template <class Net>
CapturedModel capture(Net net, const LoadOptions& options = {}) {
  return CapturedModel(capture_detail::source_of(std::move(net)), options);
}

}  // namespace keirin
