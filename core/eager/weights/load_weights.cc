// SPDX-License-Identifier: Apache-2.0
//
// Storages become tensors once each; every name is a view.
#include "core/eager/weights/load_weights.h"

#include "abi/planted.h"

namespace keirin {
namespace {

class Loader {
 public:
  Loader(const pt2::Model& model, const std::optional<InitialValues>& rules, TensorServices& services)
      : model_(model), rules_(rules), services_(services) {}

  Result<WeightTable> load() {
    for (const pt2::InputSpec& spec : model_.program.inputs) {
      const pt2::Weight* weight = model_.payload.find(spec);
      if (weight == nullptr) continue;
      if (table_.find(spec.target)) continue;
      KRN_TRY(add(spec.target, *weight));
    }
    return std::move(table_);
  }

 private:
  Status add(const std::string& name, const pt2::Weight& weight) {
    const TensorSpec spec{weight.meta.dtype, weight.sizes, weight.strides, {}};
    const int64_t offset = weight.storage_offset * dtype_bytes(weight.meta.dtype);
    if (weight.is_pending()) return add_drawn(name, weight, spec, offset);
    if (weight.storage == nullptr) {
      KRN_TRY_LET(TensorRef empty, services_.allocate(spec));
      table_.add_view(name, std::move(empty), next_storage_++, 0);
      return {};
    }
    KRN_TRY_LET(const Storage whole, storage_of(weight));
    KRN_TRY_LET(TensorRef view, services_.view(whole.tensor, spec, KRN_PLANTED(weight_offset) ? 0 : offset));
    table_.add_view(name, std::move(view), whole.number, offset);
    return {};
  }

  Status add_drawn(const std::string& name, const pt2::Weight& weight, const TensorSpec& spec, int64_t offset) {
    const auto rule = rules_ ? rules_->tensors.find(name) : decltype(rules_->tensors.find(name)){};
    if (!rules_ || rule == rules_->tensors.end()) {
      return Status(Code::k_invalid_input,
                    Message{"weight \"" + name + "\" has no bytes in the file and no rule to draw it by", weight.record,
                            "nothing was loaded", "save the model with its weights"});
    }
    const auto tied = drawn_.find(weight.record);
    if (tied != drawn_.end() && fits(weight, *tied->second.tensor)) {
      KRN_TRY_LET(TensorRef view, services_.view(tied->second.tensor, spec, offset));
      table_.add_view(name, std::move(view), tied->second.number, offset);
      return {};
    }
    TensorSpec whole = spec;
    if (offset != 0) {  // a storage that is larger than its first view
      whole = {spec.dtype, {extent(weight)}, {}, {}};
    }
    KRN_TRY_LET(TensorRef tensor, draw(services_, whole, rule->second, rules_->seed, name));
    const uint32_t storage = next_storage_++;
    drawn_[weight.record] = {tensor, storage};
    if (offset != 0) {
      KRN_TRY_LET(tensor, services_.view(tensor, spec, offset));
    }
    table_.add_view(name, std::move(tensor), storage, offset);
    return {};
  }

  // Elements from the start of the storage to the end of the view.
  static int64_t extent(const pt2::Weight& weight) {
    int64_t last = weight.storage_offset;
    for (size_t i = 0; i < weight.sizes.size(); ++i) last += (weight.sizes[i] - 1) * weight.strides[i];
    return last + 1;
  }
  static bool fits(const pt2::Weight& weight, const Tensor& storage) {
    return storage.dtype() == weight.meta.dtype &&
           extent(weight) * dtype_bytes(weight.meta.dtype) <= storage.storage_bytes();
  }

  struct Storage {
    TensorRef tensor;  // all of it
    uint32_t number = 0;
  };
  // One for each of the file's, in its full size: an operator may reach what lies beside the weight that it is given.
  Result<Storage> storage_of(const pt2::Weight& weight) {
    const auto known = read_.find(weight.storage.get());
    if (known != read_.end()) return known->second;
    const TensorSpec bytes{DType::k_u8, {static_cast<int64_t>(weight.storage->size())}, {}, {}};
    KRN_TRY_LET(TensorRef tensor, services_.wrap(bytes, weight.storage->data(), weight.storage));
    return read_[weight.storage.get()] = {std::move(tensor), next_storage_++};
  }

  const pt2::Model& model_;
  const std::optional<InitialValues>& rules_;
  TensorServices& services_;
  WeightTable table_;
  uint32_t next_storage_ = 0;
  std::map<const pt2::Storage*, Storage> read_;
  std::map<std::string, Storage> drawn_;
};

int64_t export_size(const pt2::SymInt& size) { return size.is_literal() ? size.value : size.hint.value_or(1); }

}  // namespace

Result<std::optional<InitialValues>> read_initial_values(const pt2::Pt2File& file) {
  const std::string_view record = kInitRecord;
  const auto found = file.extra.find(record.substr(record.find('/') + 1));  // the reader takes the folder off
  if (found == file.extra.end()) return std::optional<InitialValues>();
  KRN_TRY_LET(InitialValues rules, parse_initial_values(found->second));
  return std::optional<InitialValues>(std::move(rules));
}

Result<WeightTable> load_weights(const pt2::Model& model, const std::optional<InitialValues>& rules,
                                 TensorServices& services) {
  return Loader(model, rules, services).load();
}

Result<std::vector<TensorRef>> draw_inputs(const pt2::Program& program, const std::optional<InitialValues>& rules,
                                           TensorServices& services) {
  std::vector<TensorRef> inputs;
  std::vector<TensorSpec> specs;
  for (const pt2::InputSpec& input : program.inputs) {
    if (input.kind != pt2::InputSpec::Kind::kUserInput) continue;
    const std::vector<std::string> names = input.arg.names();
    if (names.size() != 1) continue;
    TensorSpec spec{DType::k_i64, {}, {}, {}};
    InitRule rule{InitRule::Kind::kIntegers, 0, 2};
    if (input.arg.is<pt2::TensorArg>()) {
      const pt2::TensorMeta& meta = program.graph.tensor_values.at(names[0]);
      spec.dtype = meta.dtype;
      for (const pt2::SymInt& size : meta.sizes) spec.sizes.push_back(export_size(size));
      if (is_float(meta.dtype)) rule = {InitRule::Kind::kUniform, 0, 1};
    } else {
      const auto number = program.graph.sym_int_values.find(names[0]);
      if (number != program.graph.sym_int_values.end()) {
        rule = {InitRule::Kind::kConstant, static_cast<double>(export_size(number->second)), 0};
      }
    }
    specs.push_back(spec);
    if (rules && inputs.size() < rules->inputs.size()) {
      KRN_TRY_LET(rule, rule_at(rules->inputs, inputs.size(), specs));
    }
    KRN_TRY_LET(TensorRef tensor, draw(services, spec, rule, rules ? rules->seed : 0, names[0]));
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

}  // namespace keirin
