// SPDX-License-Identifier: Apache-2.0
//
// Is a candidate right? It is judged by its error against an fp64 referee, compared with eager's own error: never by a fixed
// tolerance. Integers and bools are bit-equal. A referee whose output is constant proves nothing, and that is said.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/services.h"
#include "core/base/tensor.h"
#include "core/passes/pass.h"

namespace keirin {

struct JudgeOptions {
  double k = 2;               // how many times eager's error, times 1 + 3/sqrt(n) for n elements; 16-bit floats get k_narrow
  double k_narrow = 3;
  double ulps = 4;            // allowed beyond that, in units of the last place at the element's magnitude
  // For f32 and f64 also this many at the output's largest magnitude, for the order in which sums are taken.
  double summation_ulps = 16;
  // Terms of the longest matmul, linear or conv that the outputs depend on; 0: none. One accumulator rounds at each of its K partial sums:
  // independent errors, uniform within a unit of the last place of sums that grow like sqrt(k / K), give a root mean square of
  // 0.3 sqrt(K) eps / 2 of the result's, as oneDNN's plain reference and its channels-last convolutions have it; its blocked
  // ones, which eager may use, are off by a quarter of that. Which of both a library does is not an error of its caller, so f32 and
  // f64 get one such error in the mean square and twelve at the worst element, where the partial sums strayed far (10 to 11 seen).
  int64_t summands = 0;
  bool strict = false;        // eager's bits, for everything
  double error_budget = 0;    // numerics=fast: error relative to the largest element that the user accepts; 0: not used
  // What each tensor is, for reasons; beyond the list, or empty: "output 3". A constant tensor proves nothing only among the first
  // `must_vary`: what a buffer holds after a call may well be constant.
  std::vector<std::string> names;
  size_t must_vary = SIZE_MAX;
};

struct OutputVerdict {
  bool right = false;
  bool vacuous = false;       // right, but the referee is constant: nothing was shown
  double max_error = 0;       // worst element of the candidate, relative to max |referee|
  double eager_error = 0;     // the same of eager
  double rms_error = 0, eager_rms_error = 0;
  int64_t worst_index = -1;   // row-major
  std::string reason;         // why not right, or why not verified
};

struct Judgement {
  bool right = false;         // no output is wrong
  bool verified = false;      // right, and no output with elements is vacuous
  double max_error = 0, eager_error = 0;
  std::string reason;         // why not verified: of the first output that is wrong, else of the first that is vacuous
  std::vector<OutputVerdict> outputs;
};

// Whether the judge saw nothing but numbers that are too far away: not another dtype or form. They may be as far as roundings explain
// (core/tune/sensitivity.h).
bool only_numbers_differ(const Judgement& judgement, const JudgeOptions& judging);

// For what a plan of `graph` computes. `error_budget` counts with numerics fast only.
JudgeOptions judge_options(const Graph& graph, Numerics numerics, double error_budget);

// How far two ways of computing one thing may be apart.
struct Nearness {
  double bound = 0;           // of floats: largest difference, relative to the referee's largest element
  bool exact_rest = true;     // integers and bools are equal, NaN and infinities in the same places; else those are not looked at
};

// How far the outputs of a model may be from fp64 when it computes in its own dtypes and is right: `graph` has the narrowest float of
// it, the number of its operators, whose roundings add up like a random walk, and its longest dot product, whose partial sums do the
// same in f32 and f64 (16-bit products are summed in f32). `tf32`: products of f32 may round their operands to 10 bits. Four such
// deviations of each kind: a bound that right models keep by far, while an error of meaning is near 1.
double eager_bound(const Graph& graph, bool tf32);

// A sum of n terms rounds n times on its way to the one rounding of its result: how many of that one the deviation is. 1 without long
// sums, and where they are taken in a wider dtype than they are kept in.
double roundings_of_sums(const Graph& graph);
double roundings_of_sum(int64_t terms);

// What is further apart than `nearness` allows, in words; empty if nothing is. The lists are parallel and of equal sizes each; the
// second one may be in narrower floats. Names as in JudgeOptions.
Result<std::string> find_difference(std::span<const TensorRef> referee, std::span<const TensorRef> other, TensorServices& services,
                                    const Nearness& nearness, const std::vector<std::string>& names = {});

// Judges candidates beside one referee and one run of eager. What is large and lies on a device is judged by sums that are taken there;
// only what these do not show to be right is copied, referee and eager once, to be looked at element by element.
// Tensors of any device and layout, read through `services`, which must outlive this. The lists are parallel. A referee of another shape
// than eager's output, or lists of different lengths, are the caller's error: `invalid_input`. One thread at a time.
class Judge {
 public:
  static Result<Judge> make(std::span<const TensorRef> referee, std::span<const TensorRef> eager, TensorServices& services,
                            JudgeOptions options = {});
  Judge(Judge&&) noexcept;
  ~Judge();
  Result<Judgement> operator()(std::span<const TensorRef> candidate) const;

 private:
  struct Impl;
  explicit Judge(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Of one candidate.
Result<Judgement> judge(std::span<const TensorRef> referee, std::span<const TensorRef> eager,
                        std::span<const TensorRef> candidate, TensorServices& services, const JudgeOptions& options = {});

}  // namespace keirin
