// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/payload.h"

#include <algorithm>

#include "abi/planted.h"
#include "core/capture/pt2/decoder.h"

namespace keirin::pt2 {
namespace {

using Wide = __int128;

// One past the last byte that the view can touch. Rank, sizes and strides are bounded, so 128 bits cannot overflow
// before the check on each step.
bool view_end(const Weight& w, uint64_t storage_bytes) {
  if (std::find(w.sizes.begin(), w.sizes.end(), 0) != w.sizes.end()) return true;  // whatever its strides say
  Wide last = w.storage_offset;
  Wide item = dtype_bytes(w.meta.dtype);
  for (size_t i = 0; i < w.sizes.size(); ++i) {
    last += static_cast<Wide>(w.sizes[i] - 1) * w.strides[i];
    if (last > static_cast<Wide>(storage_bytes)) return false;
  }
  return (last + (KRN_PLANTED(weight_end) ? 0 : 1)) * item <= static_cast<Wide>(storage_bytes);
}

bool literals(const std::vector<SymInt>& from, std::vector<int64_t>* to) {
  for (const SymInt& s : from) {
    if (!s.is_literal()) return false;
    to->push_back(s.value);
  }
  return true;
}

// The element count must fit, or a later product of sizes would overflow unseen.
bool count_fits(const std::vector<int64_t>& sizes, int64_t item) {
  int64_t bytes = item;
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  for (int64_t s : sizes)
    if (__builtin_mul_overflow(bytes, s, &bytes)) return false;
  return true;
}

class PayloadReader {
 public:
  PayloadReader(const ZipArchive& archive, const std::string& model, const Limits& limits)
      : archive_(archive), model_(model), limits_(limits) {}

  Status table(const std::string& folder, const std::string& suffix, Named<Weight>* out) {
    std::string record = folder + model_ + suffix;
    const ZipRecord* config = archive_.find(record);
    if (config == nullptr) return missing_config(folder, record);
    KRN_TRY_LET(std::string text, archive_.read_text(*config, limits_));
    KRN_TRY(entries(text, folder, out).at(record));
    return {};
  }

 private:
  Status missing_config(const std::string& folder, const std::string& record) {
    if (archive_.find(folder + model_ + ".pt") != nullptr)
      return Status(Code::k_version,
                    {"the weights are pickled, a layout of older torch releases", folder + model_ + ".pt",
                     "nothing was loaded", "save the model again with torch 2.9 or newer"});
    return Status(Code::k_corrupt, {"a record is missing", record, "nothing was loaded", "save the file again"});
  }

  Status entries(const std::string& text, const std::string& folder, Named<Weight>* out) {
    KRN_TRY_LET(JsonDoc doc, JsonDoc::parse(text, limits_));
    JsonRef root(doc), config;
    Decoder d(limits_);
    if (!d.member(root, "config", &config) || !d.want(config, JsonType::kObject)) return d.status;
    num_weights_ += config.count();
    if (num_weights_ > limits_.weights) {
      d.fail(config, Code::k_exhausted, "the program has more than " + std::to_string(limits_.weights) + " weights",
             "raise Limits::weights if the file is trusted");
      return d.status;
    }
    config.members([&](std::string_view name, const JsonRef& at) {
      return entry(d, at, folder, &out->emplace_hint(out->end(), std::string(name), Weight{})->second);
    });
    return d.status;
  }

  bool entry(Decoder& d, const JsonRef& at, const std::string& folder, Weight* w) {
    std::string path;
    bool pickled = false, has_meta = false;
    JsonRef meta;
    if (!d.read_member(at, "path_name", &path) || !d.read_member(at, "is_param", &w->is_param) ||
        !d.read_member(at, "use_pickle", &pickled))
      return false;
    if (!d.optional(at, "tensor_meta", &meta, &has_meta)) return false;
    if (path.starts_with("custom_obj_") || path.starts_with("opaque_obj_"))
      return d.fail(at, Code::k_unsupported, "the program holds a custom object",
                    "export a model whose inputs and constants are tensors");
    if (pickled)
      return d.fail(at, Code::k_unsupported, "the weight is a pickle, which is never opened",
                    "export a model whose weights are plain tensors");
    if (!has_meta) return d.fail(at, Code::k_corrupt, "a weight has no tensor_meta");
    if (!d.tensor_meta(meta, &w->meta)) return false;
    if (!literals(w->meta.sizes, &w->sizes) || !literals(w->meta.strides, &w->strides) ||
        !w->meta.storage_offset.is_literal())
      return d.fail(meta, Code::k_corrupt, "a weight has a symbolic size");
    w->storage_offset = w->meta.storage_offset.value;
    if (!count_fits(w->sizes, dtype_bytes(w->meta.dtype)))
      return d.fail(meta, Code::k_corrupt, "the sizes of a weight overflow");
    w->record = folder + path;
    return bind(d, at, w);
  }

  bool bind(Decoder& d, const JsonRef& at, Weight* w) {
    const ZipRecord* record = archive_.find(w->record);
    if (record == nullptr)
      return d.fail(at, Code::k_corrupt, "the record \"" + w->record.substr(0, 300) + "\" of a weight is missing");
    if (record->size == 0) return true;
    if (!view_end(*w, record->size))
      return d.fail(at, Code::k_corrupt,
                    "a weight reaches beyond its record of " + std::to_string(record->size) + " bytes",
                    "move the model to the CPU before the export and save it again");
    std::shared_ptr<Storage>& storage = storages_[w->record];
    if (storage == nullptr) {
      Result<std::shared_ptr<Storage>> read = archive_.read_storage(*record);
      if (!read.ok()) return d.status = std::move(read).status(), false;
      storage = std::move(read).value();
    }
    w->storage = storage;
    return true;
  }

  const ZipArchive& archive_;
  const std::string& model_;
  const Limits& limits_;
  Named<std::shared_ptr<Storage>> storages_;
  uint64_t num_weights_ = 0;
};

}  // namespace

int64_t Weight::num_elements() const {
  int64_t n = 1;
  for (int64_t s : sizes)
    if (s == 0) return 0;
  for (int64_t s : sizes) n *= s;
  return n;
}

std::byte* Weight::data() const {
  return storage == nullptr || num_elements() == 0 ? nullptr
                                                   : storage->data() + storage_offset * dtype_bytes(meta.dtype);
}

const Weight* Payload::find(const InputSpec& input) const {
  using Kind = InputSpec::Kind;
  bool in_constants = input.kind == Kind::kTensorConstant || (input.kind == Kind::kBuffer && !input.persistent);
  if (!in_constants && input.kind != Kind::kParameter && input.kind != Kind::kBuffer) return nullptr;
  const Named<Weight>& table = in_constants ? constants : weights;
  auto it = table.find(input.target);
  return it == table.end() ? nullptr : &it->second;
}

Result<Payload> read_payload(const ZipArchive& archive, const Program& program, const Limits& limits) {
  Payload payload;
  PayloadReader reader(archive, program.name, limits);
  KRN_TRY(reader.table("data/weights/", "_weights_config.json", &payload.weights));
  KRN_TRY(reader.table("data/constants/", "_constants_config.json", &payload.constants));
  for (const InputSpec& input : program.inputs) {
    bool weight = input.kind != InputSpec::Kind::kUserInput && input.kind != InputSpec::Kind::kConstantInput;
    if (weight && payload.find(input) == nullptr)
      return Status(Code::k_corrupt, {"the weight \"" + input.target + "\" is not in the file",
                                      "models/" + program.name + ".json", "nothing was loaded", "save the file again"});
  }
  return payload;
}

}  // namespace keirin::pt2
