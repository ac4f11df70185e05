// SPDX-License-Identifier: Apache-2.0
//
// Writes tokens with one model: a prompt in one call, then a call for each token, on a cache that the model keeps in place.
// First eager answers, then the plans that compile() chose for both shapes; the sampling is greedy and never leaves the device.
// Prints JSON: tokens a second of both, where their texts part, and how their logits compare when both are fed eager's text.
//
//   keirin_generate MODEL.pt2 DEVICE PROMPT TOKENS VOCABULARY
#include <ATen/ATen.h>
#include <keirin/torch.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Text {
  std::vector<int64_t> tokens;
  at::Tensor logits;  // [tokens, vocabulary]
  double prompt_seconds = 0, seconds = 0;  // of the first call, of all the others
};

// With `fed`, the next token is eager's and not the model's own.
Text generate(const keirin::Model& model, const at::Tensor& prompt, int64_t count, const std::vector<int64_t>* fed = nullptr) {
  const int64_t length = prompt.size(1);
  const at::Tensor places = at::arange(length + count, prompt.options());
  const at::Tensor given = fed ? at::tensor(*fed, at::kLong).to(prompt.device()) : at::Tensor();
  std::vector<at::Tensor> tokens, logits;
  at::Tensor next = prompt, at = places.narrow(0, 0, length);
  Text out;
  auto start = Clock::now();
  for (int64_t i = 0; i < count; ++i) {
    logits.push_back(keirin::call(model, {next, at})[0].select(1, 0));
    tokens.push_back(logits.back().argmax(-1));
    next = (fed ? given.narrow(0, i, 1) : tokens.back()).view({1, 1});
    // A tensor of its own: a slice of `places` would start between words.
    at = places.narrow(0, length + i, 1).clone();
    if (i > 0) continue;
    tokens[0].item();  // waits
    out.prompt_seconds = seconds_since(start);
    start = Clock::now();
  }
  const at::Tensor all = at::cat(tokens).cpu();
  out.seconds = seconds_since(start);
  out.tokens.assign(all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel());
  out.logits = at::cat(logits).to(at::kFloat);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return std::fprintf(stderr, "usage: %s MODEL DEVICE PROMPT TOKENS VOCABULARY\n", argv[0]), 2;
  const int64_t length = std::stoll(argv[3]), count = std::stoll(argv[4]), vocabulary = std::stoll(argv[5]);
  c10::InferenceMode guard;
  keirin::LoadOptions options;
  options.device = argv[2];
  keirin::Model model = keirin::Model::load(argv[1], options);
  const at::Tensor prompt = ((at::arange(length) * 7919 + 17) % vocabulary).view({1, length}).to(std::string(argv[2]));
  generate(model, prompt, 4);  // warms up
  const Text eager = generate(model, prompt, count);
  auto start = Clock::now();
  const at::Tensor one = prompt.narrow(1, 0, 1).clone(), places = at::arange(length, prompt.options());
  keirin::compile(model, {prompt, places});
  keirin::compile(model, {one, places.narrow(0, length - 1, 1).clone()});
  const double compile_seconds = seconds_since(start);
  generate(model, prompt, 4);
  const Text own = generate(model, prompt, count), fed = generate(model, prompt, count, &eager.tokens);
  int64_t common = 0, agree = 0;
  while (common < count && own.tokens[common] == eager.tokens[common]) ++common;
  for (int64_t i = 0; i < count; ++i) agree += fed.tokens[i] == eager.tokens[i];
  const double error = (fed.logits - eager.logits).norm().item<double>() / eager.logits.norm().item<double>();
  std::printf(
      "{\"prompt\": %lld, \"tokens\": %lld, \"eager\": {\"prompt_ms\": %.3f, \"tokens_per_s\": %.2f},\n"
      " \"keirin\": {\"prompt_ms\": %.3f, \"tokens_per_s\": %.2f, \"compile_s\": %.2f},\n"
      " \"same_tokens_fed_the_same\": %lld, \"same_text_up_to\": %lld, \"logits_beside_eager\": %.3e,\n \"reports\": %s}\n",
      static_cast<long long>(length), static_cast<long long>(count), eager.prompt_seconds * 1e3,
      static_cast<double>(count - 1) / eager.seconds, own.prompt_seconds * 1e3, static_cast<double>(count - 1) / own.seconds,
      compile_seconds, static_cast<long long>(agree), static_cast<long long>(common), error, model.report_json().c_str());
}
