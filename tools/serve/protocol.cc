// SPDX-License-Identifier: Apache-2.0
#include "tools/serve/protocol.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

namespace keirin::tools {
namespace {

using nlohmann::json;

constexpr const char* kVersion = "1";  // of every model: the file is the version
constexpr int64_t kMostElements = int64_t{1} << 40;

struct Word {
  DType dtype;
  std::string_view datatype;
};
constexpr Word kWords[] = {{DType::k_bool, "BOOL"},  {DType::k_u8, "UINT8"},   {DType::k_u16, "UINT16"},
                           {DType::k_u32, "UINT32"}, {DType::k_u64, "UINT64"}, {DType::k_i8, "INT8"},
                           {DType::k_i16, "INT16"},  {DType::k_i32, "INT32"},  {DType::k_i64, "INT64"},
                           {DType::k_f16, "FP16"},   {DType::k_bf16, "BF16"},  {DType::k_f32, "FP32"},
                           {DType::k_f64, "FP64"}};

Status refused(std::string what, std::string advice = {}) {
  return Status(Code::k_invalid_input, {std::move(what), {}, "nothing was run", std::move(advice)});
}

// What JSON numbers of a tensor are read as and written from, where C++ has no such type.
DType json_dtype(DType dtype) { return compute_dtype(dtype); }

template <class Fn>
Status with_type(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::k_bool:
      return fn(bool());
    case DType::k_u8:
      return fn(uint8_t());
    case DType::k_u16:
      return fn(uint16_t());
    case DType::k_u32:
      return fn(uint32_t());
    case DType::k_u64:
      return fn(uint64_t());
    case DType::k_i8:
      return fn(int8_t());
    case DType::k_i16:
      return fn(int16_t());
    case DType::k_i32:
      return fn(int32_t());
    case DType::k_i64:
      return fn(int64_t());
    case DType::k_f32:
      return fn(float());
    case DType::k_f64:
      return fn(double());
    default:
      return refused("the dtype has no word in the protocol");
  }
}

template <class T>
bool take_number(const json& item, T& to) {
  if constexpr (std::is_same_v<T, bool>) {
    if (item.is_boolean())
      to = item.get<bool>();
    else if (item.is_number_integer() && (item == 0 || item == 1))
      to = item == 1;
    else
      return false;
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!item.is_number()) return false;
    to = static_cast<T>(item.get<double>());
  } else {
    if (item.is_number_unsigned()) {
      const auto value = item.get<uint64_t>();
      if (value > static_cast<uint64_t>(std::numeric_limits<T>::max())) return false;
      to = static_cast<T>(value);
    } else if (item.is_number_integer()) {
      const auto value = item.get<int64_t>();
      if constexpr (std::is_unsigned_v<T>)
        return false;  // a negative one
      else if (value < static_cast<int64_t>(std::numeric_limits<T>::min()) ||
               value > static_cast<int64_t>(std::numeric_limits<T>::max()))
        return false;
      to = static_cast<T>(value);
    } else {
      return false;
    }
  }
  return true;
}

// Nested or flat, in row-major order. Nothing beyond `end` is written; false for an item that is not such a number, or too
// many of them.
template <class T>
bool flatten(const json& data, size_t depth, T*& at, T* end) {
  if (!data.is_array()) return at != end && take_number(data, *at++);
  if (depth == 0) return false;
  for (const json& item : data)
    if (!flatten(item, depth - 1, at, end)) return false;
  return true;
}

struct Header {  // of one tensor of the request
  std::string name;
  DType dtype = DType::kNone;
  std::vector<int64_t> shape;
  int64_t elements = 1;
  std::optional<size_t> binary_bytes;
};

Result<size_t> position_of(const std::vector<Port>& ports, const std::string& name, const char* what) {
  std::string names;
  for (size_t i = 0; i < ports.size(); ++i) {
    if (ports[i].name == name) return i;
    names += (i ? ", " : "") + ports[i].name;
  }
  return refused(fmt::format("the model has no {} \"{}\"", what, name), "its names are: " + names);
}

Result<Header> header_of(const json& j) {
  Header header;
  if (!j.is_object() || !j.contains("name") || !j.at("name").is_string()) return refused("an input has no name");
  header.name = j.at("name");
  const std::string called = "input \"" + header.name + "\"";
  const auto datatype = j.find("datatype");
  if (datatype == j.end() || !datatype->is_string()) return refused(called + " has no datatype");
  const auto dtype = dtype_of(datatype->get<std::string>());
  if (!dtype) return refused(called + " has datatype " + datatype->get<std::string>() + ", which is not known");
  header.dtype = *dtype;
  const auto shape = j.find("shape");
  if (shape == j.end() || !shape->is_array()) return refused(called + " has no shape");
  for (const json& size : *shape) {
    int64_t value = 0;
    if (!take_number(size, value) || value < 0) return refused(called + " has a shape that is not made of sizes");
    header.shape.push_back(value);
    if (value > 0 && header.elements > kMostElements / value)
      return refused(called + " has a shape that no memory holds");
    header.elements *= value;
  }
  if (const auto parameters = j.find("parameters"); parameters != j.end() && parameters->is_object())
    if (const auto bytes = parameters->find("binary_data_size"); bytes != parameters->end()) {
      uint64_t value = 0;
      if (!take_number(*bytes, value)) return refused(called + " has a binary_data_size that is not a size");
      header.binary_bytes = value;
    }
  return header;
}

Result<TensorRef> tensor_of(const json& j, const Header& header, std::string_view& binary, TensorServices& services) {
  const std::string called = "input \"" + header.name + "\"";
  const size_t bytes = static_cast<size_t>(header.elements * dtype_bytes(header.dtype));
  if (header.binary_bytes) {
    if (*header.binary_bytes != bytes)
      return refused(
          fmt::format("{} has {} bytes of data, its shape and datatype take {}", called, *header.binary_bytes, bytes));
    if (binary.size() < bytes)
      return refused(called + " has fewer bytes than it says",
                     "is Inference-Header-Content-Length the length of the JSON?");
    KRN_TRY_LET(TensorRef tensor, services.allocate({header.dtype, header.shape, {}, {}}));
    if (bytes > 0) std::memcpy(tensor->data(), binary.data(), bytes);
    binary.remove_prefix(bytes);
    return tensor;
  }
  const auto data = j.find("data");
  if (data == j.end() || !data->is_array())
    return refused(called + " has no data", "give an array, or binary_data_size and bytes behind the JSON");
  // The outermost array has at most so many items as there are elements; it is there, so that this much memory is too.
  const size_t outer = header.shape.empty() ? 1 : static_cast<size_t>(header.shape[0]);
  if (data->size() != outer && data->size() != static_cast<size_t>(header.elements))
    return refused(
        fmt::format("{} has {} items of data for a shape of {} elements", called, data->size(), header.elements));
  size_t items = 0;
  const auto count = [&](const auto& self, const json& item, size_t depth) -> bool {
    if (!item.is_array()) return ++items, true;
    if (depth == 0) return false;
    return std::all_of(item.begin(), item.end(), [&](const json& inner) { return self(self, inner, depth - 1); });
  };
  const size_t depth = std::max<size_t>(header.shape.size(), 1);
  if (!count(count, *data, depth) || items != static_cast<size_t>(header.elements))
    return refused(fmt::format("{} has {} numbers for a shape of {} elements", called, items, header.elements));
  const DType held = json_dtype(header.dtype);
  KRN_TRY_LET(TensorRef tensor, services.allocate({held, header.shape, {}, {}}));
  KRN_TRY(with_type(held, [&](auto type) -> Status {
    using T = decltype(type);
    T* at = static_cast<T*>(tensor->data());
    T* const end = at + header.elements;
    if (!flatten(*data, depth, at, end) || at != end)
      return refused(called + " holds what is no " + std::string(datatype_of(header.dtype)));
    return {};
  }));
  return held == header.dtype ? Result<TensorRef>(std::move(tensor)) : services.cast(tensor, header.dtype);
}

std::string sizes_text(const Port& port) {
  std::string text;
  for (const Dimension& d : port.sizes) text += (text.empty() ? "" : ",") + (d.free ? "any" : std::to_string(d.size));
  return "[" + text + "]";
}

Status check_against(const Port& port, const Header& header) {
  const std::string called = "input \"" + header.name + "\"";
  if (dtype_name(header.dtype) != port.dtype) {
    const auto dtype = dtype_from_name(port.dtype);
    return refused(fmt::format("{} is {}, the model takes {}", called, datatype_of(header.dtype),
                               dtype ? datatype_of(*dtype) : port.dtype));
  }
  bool fits = header.shape.size() == port.sizes.size();
  for (size_t d = 0; fits && d < port.sizes.size(); ++d) {
    const Dimension& size = port.sizes[d];
    const int64_t given = header.shape[d];
    fits = size.free ? given >= size.min && (size.max == 0 || given <= size.max) : size.size == 0 || given == size.size;
  }
  if (fits) return {};
  return refused(
      fmt::format("{} has shape [{}], the model takes {}", called, fmt::join(header.shape, ","), sizes_text(port)));
}

bool parameter_is_true(const json& j, const char* name, bool otherwise) {
  const auto parameters = j.find("parameters");
  if (parameters == j.end() || !parameters->is_object()) return otherwise;
  const auto value = parameters->find(name);
  return value != parameters->end() && value->is_boolean() ? value->get<bool>() : otherwise;
}

Result<std::vector<InferRequest::Wanted>> wanted_of(const json& j, const Signature& signature) {
  const bool all_binary = parameter_is_true(j, "binary_data_output", false);
  std::vector<InferRequest::Wanted> wanted;
  const auto outputs = j.find("outputs");
  if (outputs == j.end() || (outputs->is_array() && outputs->empty())) {
    for (size_t i = 0; i < signature.outputs.size(); ++i)
      if (!signature.outputs[i].dtype.empty()) wanted.push_back({i, all_binary});
    return wanted;
  }
  if (!outputs->is_array()) return refused("outputs is not an array");
  for (const json& output : *outputs) {
    if (!output.is_object() || !output.contains("name") || !output.at("name").is_string())
      return refused("an output has no name");
    KRN_TRY_LET(const size_t position, position_of(signature.outputs, output.at("name"), "output"));
    if (signature.outputs[position].dtype.empty())
      return refused("output \"" + signature.outputs[position].name + "\" is not a tensor");
    wanted.push_back({position, parameter_is_true(output, "binary_data", all_binary)});
  }
  return wanted;
}

// Numbers as JSON has them; NaN and infinities, which it has not, are null.
json numbers_of(const Tensor& tensor, int64_t elements) {
  json data = json::array();
  data.get_ref<json::array_t&>().reserve(static_cast<size_t>(elements));
  (void)with_type(tensor.dtype(), [&](auto type) -> Status {
    using T = decltype(type);
    const T* at = static_cast<const T*>(tensor.data());
    for (int64_t i = 0; i < elements; ++i) {
      if constexpr (std::is_floating_point_v<T>) {
        if (!std::isfinite(at[i])) {
          data.push_back(nullptr);
          continue;
        }
      }
      data.push_back(at[i]);
    }
    return {};
  });
  return data;
}

json port_json(const Port& port) {
  const auto dtype = dtype_from_name(port.dtype);
  json shape = json::array();
  for (const Dimension& d : port.sizes) shape.push_back(d.free || d.size == 0 ? -1 : d.size);
  return {{"name", port.name}, {"datatype", dtype ? std::string(datatype_of(*dtype)) : port.dtype}, {"shape", shape}};
}

}  // namespace

std::string_view datatype_of(DType dtype) {
  for (const Word& word : kWords)
    if (word.dtype == dtype) return word.datatype;
  return {};
}

std::optional<DType> dtype_of(std::string_view datatype) {
  for (const Word& word : kWords)
    if (word.datatype == datatype) return word.dtype;
  return std::nullopt;
}

Result<InferRequest> parse_infer(std::string_view body, std::optional<size_t> json_bytes, const Signature& signature,
                                 TensorServices& services) {
  if (json_bytes && *json_bytes > body.size())
    return refused(fmt::format("the header says {} bytes of JSON, the body has {}", *json_bytes, body.size()));
  const std::string_view text = body.substr(0, json_bytes.value_or(body.size()));
  std::string_view binary = body.substr(text.size());
  const json j = json::parse(text, nullptr, false);
  if (!j.is_object())
    return refused("the body is no JSON object",
                   json_bytes ? "" : "bytes behind the JSON take the header Inference-Header-Content-Length");
  InferRequest request;
  if (const auto id = j.find("id"); id != j.end()) {
    if (!id->is_string()) return refused("id is not text");
    request.id = *id;
  }
  if (const auto parameters = j.find("parameters"); parameters != j.end() && parameters->is_object())
    if (const auto timeout = parameters->find("timeout");
        timeout != parameters->end() && (!take_number(*timeout, request.timeout_us) || request.timeout_us < 0))
      return refused("timeout is not a number of microseconds");
  KRN_TRY_LET(request.outputs, wanted_of(j, signature));
  const auto inputs = j.find("inputs");
  if (inputs == j.end() || !inputs->is_array()) return refused("there are no inputs");
  request.inputs.resize(signature.inputs.size());
  for (const json& input : *inputs) {
    KRN_TRY_LET(const Header header, header_of(input));
    KRN_TRY_LET(const size_t position, position_of(signature.inputs, header.name, "input"));
    if (request.inputs[position]) return refused("input \"" + header.name + "\" is given twice");
    KRN_TRY(check_against(signature.inputs[position], header));
    KRN_TRY_LET(request.inputs[position], tensor_of(input, header, binary, services));
  }
  for (size_t i = 0; i < request.inputs.size(); ++i)
    if (!request.inputs[i]) return refused("input \"" + signature.inputs[i].name + "\" is missing");
  if (!binary.empty()) return refused(fmt::format("{} bytes behind the JSON belong to no input", binary.size()));
  return request;
}

Result<InferAnswer> write_infer(const InferRequest& request, const std::string& model, const Signature& signature,
                                const std::vector<TensorRef>& outputs, TensorServices& services) {
  json j = {{"model_name", model}, {"model_version", kVersion}, {"outputs", json::array()}};
  if (!request.id.empty()) j["id"] = request.id;
  std::vector<TensorRef> binary;
  for (const InferRequest::Wanted& wanted : request.outputs) {
    if (wanted.output >= outputs.size())
      return Status(Code::k_internal, "the model returned fewer outputs than its file says");
    TensorRef tensor = outputs[wanted.output];
    if (!tensor) continue;  // eager returned None
    const std::string& name = signature.outputs[wanted.output].name;
    const std::string_view datatype = datatype_of(tensor->dtype());
    if (datatype.empty())
      return Status(Code::k_unsupported, "output \"" + name + "\" is " + std::string(dtype_name(tensor->dtype())) +
                                             ", which the protocol has no word for");
    TensorSpec spec = spec_of(*tensor);
    json out = {{"name", name}, {"datatype", datatype}, {"shape", spec.sizes}};
    int64_t elements = 1;
    for (const int64_t size : spec.sizes) elements *= size;
    const bool in_json = !wanted.binary;
    if (in_json && json_dtype(spec.dtype) != spec.dtype) {
      KRN_TRY_LET(tensor, services.cast(tensor, json_dtype(spec.dtype)));
      spec.dtype = json_dtype(spec.dtype);
    }
    spec.strides.clear();
    KRN_TRY_LET(const TensorRef dense, services.allocate(spec));
    KRN_TRY(services.copy(dense, tensor));
    if (in_json) {
      out["data"] = numbers_of(*dense, elements);
    } else {
      out["parameters"] = {{"binary_data_size", elements * dtype_bytes(spec.dtype)}};
      binary.push_back(dense);
    }
    j["outputs"].push_back(std::move(out));
  }
  InferAnswer answer{j.dump(-1, ' ', false, json::error_handler_t::replace), 0};
  if (binary.empty()) return answer;
  answer.json_bytes = answer.body.size();
  for (const TensorRef& tensor : binary) {
    int64_t bytes = dtype_bytes(tensor->dtype());
    for (int64_t d = 0; d < tensor->rank(); ++d) bytes *= tensor->sizes()[d];
    answer.body.append(static_cast<const char*>(tensor->data()), static_cast<size_t>(bytes));
  }
  return answer;
}

json server_metadata(bool has_repository) {
  json extensions = {"binary_tensor_data", "plans"};
  if (has_repository) extensions.push_back("model_repository");
  return {{"name", "keirin"}, {"version", KEIRIN_VERSION}, {"extensions", extensions}};
}

json model_metadata(const std::string& model, const Signature& signature) {
  json j = {{"name", model},
            {"versions", {kVersion}},
            {"platform", "keirin_pt2"},
            {"inputs", json::array()},
            {"outputs", json::array()}};
  for (const Port& port : signature.inputs) j["inputs"].push_back(port_json(port));
  for (const Port& port : signature.outputs)
    if (!port.dtype.empty()) j["outputs"].push_back(port_json(port));
  return j;
}

}  // namespace keirin::tools
