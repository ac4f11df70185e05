// SPDX-License-Identifier: Apache-2.0
//
// The Open Inference Protocol, version 2, as text and bytes: requests become tensors, tensors become answers. JSON, and
// the binary tensor extension, in which tensors stand behind the JSON as they lie in memory (little-endian, row-major).
// No sockets, no model.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/keirin.h"
#include "core/base/services.h"
#include "core/base/status.h"

namespace keirin::tools {

struct InferRequest {
  std::string id;                 // the client's, comes back with the answer
  std::vector<TensorRef> inputs;  // in the order of the signature, on the CPU, owned by the request
  struct Wanted {
    size_t output = 0;  // position
    bool binary = false;
  };
  std::vector<Wanted> outputs;  // in the order of the answer
  int64_t timeout_us = 0;       // the parameter `timeout`; 0: none was given
};

struct InferAnswer {
  std::string body;
  size_t json_bytes = 0;  // where tensors in binary begin; 0: there are none
};

// The protocol's word, FP32; empty for a dtype that it has none for.
std::string_view datatype_of(DType dtype);
std::optional<DType> dtype_of(std::string_view datatype);

// A request's body. `json_bytes`: what the header Inference-Header-Content-Length says, if it is there. `invalid_input`
// in words for the client for whatever is missing, superfluous, of another dtype, rank or length; memory is allocated
// only for what the body holds.
Result<InferRequest> parse_infer(std::string_view body, std::optional<size_t> json_bytes, const Signature& signature,
                                 TensorServices& services);

// Outputs of a call, of which those that the request wants are written. They are on the CPU.
Result<InferAnswer> write_infer(const InferRequest& request, const std::string& model, const Signature& signature,
                                const std::vector<TensorRef>& outputs, TensorServices& services);

nlohmann::json server_metadata(bool has_repository);
nlohmann::json model_metadata(const std::string& model, const Signature& signature);

}  // namespace keirin::tools
