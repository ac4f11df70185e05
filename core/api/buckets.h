// SPDX-License-Identifier: Apache-2.0
//
// Sizes that calls are padded to (options `buckets` and `pads`): a call between two buckets is answered by the plan of the larger one, its
// inputs padded and its outputs cut back. Which sizes a model may be padded in is proved when it is opened (core/passes/pad_safety.h); that
// the proof is right is looked at once more, by the first call of each bucket. Internal to core/api.
//
// The invariant: what is handed out is what eager answers to the call as it came, whatever stands in the padding.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/api/session.h"
#include "core/api/size_ranges.h"
#include "core/base/services.h"
#include "core/capture/pt2/schema.h"
#include "core/exec/report.h"

namespace keirin {

// To which sizes one free size is padded: "exact", "multiple:K", "pow2", "list:A,B,C".
class BucketPolicy {
 public:
  static Result<BucketPolicy> parse(const std::string& word);
  // The least that is not below `size`; `size` itself where there is none up to `most` (0: no limit).
  int64_t next(int64_t size, int64_t most) const;
  bool pads() const { return kind_ != Kind::kExact; }
  const std::string& word() const { return word_; }

 private:
  enum class Kind { kExact, kMultiple, kPowers, kList } kind_ = Kind::kExact;
  std::string word_ = "exact";
  int64_t multiple_ = 1;
  std::vector<int64_t> list_;  // ascending
};

struct PaddedCall {
  std::vector<TensorRef> inputs;
  Sizes from, to;  // the call's free sizes, and the bucket's
  double share = 1;  // of the padded inputs' elements, that are the call's
};

// Whether the plan of a bucket, so many times faster than eager there (0: not known), is the faster one for a call that fills this share of
// it: eager, which is not given the padding, takes no less than its share of the time.
inline bool padding_pays(double gain, double share) { return gain <= 0 || gain * share >= 1; }

// Of one session. Any thread.
class Buckets {
 public:
  // As the session's options say; null where no bucket is asked for. invalid_input for what they name and the model does not have;
  // `unsupported` with the operator and the output that forbid it where padding is not proved safe. The session outlives them.
  static Result<std::unique_ptr<Buckets>> make(const Session::Impl& session);

  // The call at its bucket's sizes; nullopt where it is answered as it is: it has these sizes already, lies beyond the last bucket, is not
  // of the model's sizes, or holds an index that a padded axis would answer otherwise. Inputs that are not padded are the caller's.
  Result<std::optional<PaddedCall>> pad(const std::vector<TensorRef>& inputs) const;
  // Of the outputs of a padded call, what the call asked for; new memory where that is not dense. `unsupported` where padding may have made
  // NaN of a number: eager has to answer.
  Result<std::vector<TensorRef>> cut(const std::vector<TensorRef>& outputs, const Sizes& from) const;

  // Whether plans may answer calls of this bucket.
  enum class Trust { kUnknown, kAsked, kRight, kClosed };
  Trust trust(const Sizes& to) const;
  // Of a bucket that nothing is known of: the caller finds out now, and says so by `judged`; false: somebody else does.
  bool ask(const Sizes& to);
  // Empty: the plan answered as eager did; nullopt: it could not be told. False if buckets were closed before.
  bool judged(const Sizes& to, const std::optional<std::string>& wrong);

  void count(const PaddedCall& call);  // one that a plan answered
  void count_left();                   // one that eager answered, because padding does not pay
  BucketsReport report() const;

 private:
  // One extent of an input or output: a number, a free size, or computed of them.
  struct Extent {
    int64_t number = 0;
    int size = -1;
    pt2::ExprPtr expr;
    int of = -1;  // of an expression: the free size that it tells, as 4 * s does, where no extent is that size
  };
  struct Input {
    DType dtype = DType::kNone;
    std::vector<Extent> extents;
    double fill = 0;
    int first_of = -1;      // the fill is the first padded position of this free size
    std::vector<int> below;  // its elements have to lie from 0 to below these free sizes
    TensorRef filled;       // the fill on the device, where it is a number
  };
  struct Output {
    std::vector<Extent> extents;
    std::vector<bool> cut;
    bool or_nan = false;  // PadProof::or_nan
  };
  struct Size {
    std::string name, symbol;  // "x[0]"; of one that is nowhere a size itself, "x[0]/4"
    BucketPolicy policy;
    int64_t least = 1, most = 0;
    bool needs_row = false;  // an input names its first padded position
  };

  explicit Buckets(const Session::Impl& session) : session_(session) {}
  Status read_program();
  Status read_policies();
  Status read_fills();
  Status prove();
  Status prove_pair(const Sizes& small, const Sizes& large);
  Extent extent_of(const pt2::SymInt& size) const;
  void find_in_expression(size_t k);
  Result<int64_t> value_of(const Extent& extent, const Sizes& sizes) const;
  Result<size_t> size_number(const std::string& word, const std::string& option) const;
  std::optional<Sizes> sizes_of(const std::vector<TensorRef>& inputs) const;
  Sizes bucket_of(const Sizes& sizes) const;
  Result<TensorRef> scalar(DType dtype, double value) const;
  bool in_bounds(const std::vector<TensorRef>& inputs, const Sizes& sizes) const;
  Result<TensorRef> padded(const Input& input, const TensorRef& tensor, const Sizes& from, const Sizes& to) const;

  const Session::Impl& session_;
  std::vector<Size> sizes_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<Sizes, Trust> trust_;
  std::string closed_;        // why; empty: they are not
  uint64_t calls_ = 0, left_ = 0;
  std::vector<int64_t> asked_, ran_;  // sums over calls, by free size
};

}  // namespace keirin
