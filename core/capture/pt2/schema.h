// SPDX-License-Identifier: Apache-2.0
//
// An exported program as plain structs: what the file says, checked for form and limits, with nothing resolved.
// Operators are names, values are names, defaulted arguments are absent. Resolving against operator schemas is the
// importer's work. Invariants after read_pt2: every name used in a graph is defined in it exactly once and before its
// use; every number fits int64; every enum value is known; every dtype is one of ours.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/dtype.h"
#include "core/capture/pt2/sym_expr.h"

namespace keirin::pt2 {

enum class Layout : uint8_t { kStrided = 7 };  // every other layout is refused while reading
enum class MemoryFormat : uint8_t { kContiguous = 1, kChannelsLast = 2, kChannelsLast3d = 3, kPreserve = 4 };
enum class ArgumentKind : uint8_t { kUnknown = 0, kPositional = 1, kKeyword = 2 };

struct Device {
  std::string type;              // "cpu", "cuda", ...: as written at export
  std::optional<int64_t> index;  // absent = the current one
};

// A size, stride or symbolic number: a literal, or an expression with the value that it had at export.
struct SymInt {
  int64_t value = 0;            // the literal if `expr` is null
  ExprPtr expr;                 // null for a literal; equal texts share one tree
  std::optional<int64_t> hint;  // of an expression, if the file has one
  bool is_literal() const { return expr == nullptr; }
};

struct SymFloat {
  double value = 0;
  ExprPtr expr;
  std::optional<double> hint;
};

struct SymBool {
  bool value = false;
  ExprPtr expr;
  std::optional<bool> hint;
};

struct TensorMeta {
  DType dtype = DType::kNone;
  std::vector<SymInt> sizes;
  std::vector<SymInt> strides;  // as many as sizes
  SymInt storage_offset;        // not to be trusted for intermediate values
  bool requires_grad = false;
  Device device;
  Layout layout = Layout::kStrided;
};

struct Graph;
struct Argument;

// The kinds of Argument, one struct each. A name always refers to a value of the same graph.
struct NoneArg {};
struct TensorArg {
  std::string name;
};
struct TensorsArg {  // also every empty list under a higher-order operator
  std::vector<std::string> names;
};
struct OptionalTensorsArg {
  std::vector<std::optional<std::string>> names;
};
struct NestedTensorsArg {
  std::vector<std::vector<std::string>> names;
};
struct SymIntArg {  // a name or a literal
  std::string name;
  int64_t value = 0;
  bool is_name() const { return !name.empty(); }
};
struct SymFloatArg {
  std::string name;
  double value = 0;
  bool is_name() const { return !name.empty(); }
};
struct SymBoolArg {
  std::string name;
  bool value = false;
  bool is_name() const { return !name.empty(); }
};
struct ComplexArg {
  double real = 0, imag = 0;
};
struct OperatorArg {
  std::string target;
};
struct GraphArg {
  std::string name;                    // of the submodule at export
  std::shared_ptr<const Graph> graph;  // never null; its names are its own
};
struct DictItem;  // no std::pair: its traits would ask for the size of an Argument while that is being defined
struct DictArg {
  std::vector<DictItem> items;
};  // as_string_to_argument, in file order

// as_optional_tensor reads as TensorArg or NoneArg. Custom objects and tokens are refused while reading.
struct Argument {
  using Value = std::variant<NoneArg, TensorArg, TensorsArg, OptionalTensorsArg, NestedTensorsArg,  //
                             bool, int64_t, double, std::string,                                    //
                             std::vector<bool>, std::vector<int64_t>, std::vector<double>, std::vector<std::string>,
                             std::vector<std::vector<int64_t>>, std::vector<std::vector<double>>,  //
                             SymIntArg, SymFloatArg, SymBoolArg, std::vector<SymIntArg>, std::vector<SymFloatArg>,
                             std::vector<SymBoolArg>,  //
                             ComplexArg, DType, MemoryFormat, Layout, Device, OperatorArg, GraphArg, DictArg>;
  Value value;

  template <class T>
  const T* get() const {
    return std::get_if<T>(&value);
  }
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(value);
  }
  // The graph values that it names, in order: tensors, symbols, and those inside lists and dicts (not inside graphs).
  std::vector<std::string> names() const;
};

struct DictItem {
  std::string key;
  Argument value;
};

struct NamedArgument {
  std::string name;  // parameter name of the operator schema; empty for higher-order operators
  Argument arg;
  ArgumentKind kind = ArgumentKind::kUnknown;
};

struct Node {
  std::string name;    // unique at export, may be empty in older files
  std::string target;  // "torch.ops.aten.relu.default", "torch.ops.higher_order.cond", "_operator.mul", ...
  std::vector<NamedArgument> inputs;
  std::vector<Argument> outputs;  // TensorArg, TensorsArg, OptionalTensorsArg, SymIntArg, ..., NoneArg for undefined
  std::string module_path;        // "layer1.0.conv1", from nn_module_stack; empty for the root
  std::string stack_trace;        // of the user's Python, innermost line last
  std::optional<bool> is_hop_single_tensor_return;
  uint64_t json_byte = 0;  // where it starts in its models/<name>.json, for messages

  // Names, in order. Those that inner graphs are given are read by the node; inner graphs see nothing else.
  std::vector<std::string> reads() const;
  std::vector<std::string> defines() const;
};

template <class T>
using Named = std::map<std::string, T, std::less<>>;

struct Graph {
  std::vector<Argument> inputs;
  std::vector<Argument> outputs;
  std::vector<Node> nodes;
  Named<TensorMeta> tensor_values;
  Named<SymInt> sym_int_values;
  Named<SymFloat> sym_float_values;
  Named<SymBool> sym_bool_values;
  bool is_single_tensor_return = false;
};

using Constant = std::variant<std::monostate, bool, int64_t, double, std::string>;

struct InputSpec {
  enum class Kind : uint8_t { kUserInput, kParameter, kBuffer, kTensorConstant, kConstantInput };
  Kind kind = Kind::kUserInput;
  Argument arg;             // the graph input; TensorArg for weights, NoneArg for kConstantInput
  std::string target;       // name of the weight ("layer1.weight"), or of the constant input
  bool persistent = false;  // kBuffer: in weights, else in constants
  Constant constant;        // kConstantInput: the only value that the program accepts
};

struct OutputSpec {
  enum class Kind : uint8_t {
    kUserOutput,
    kLossOutput,
    kBufferMutation,
    kParameterMutation,
    kUserInputMutation,
    kGradientToParameter,
    kGradientToUserInput
  };
  Kind kind = Kind::kUserOutput;
  Argument arg;
  std::string
      target;  // name of the buffer or parameter, or of the user input in the graph; empty for user and loss outputs

  // Whether the value is written to `target` and not returned.
  bool is_mutation() const {
    return kind == Kind::kBufferMutation || kind == Kind::kParameterMutation || kind == Kind::kUserInputMutation;
  }
};

struct RangeConstraint {
  std::optional<int64_t> min, max;  // inclusive; absent = unbounded
};

// How structured inputs and outputs flatten into leaves. `kOther` keeps the type name: only the flat call exists then.
struct TreeSpec {
  enum class Kind : uint8_t { kLeaf, kTuple, kList, kDict, kOrderedDict, kNamedTuple, kOther };
  Kind kind = Kind::kLeaf;
  std::string type;            // "builtins.dict", class name of a namedtuple, empty for a leaf
  std::vector<PathStep> keys;  // dicts: the keys, one per child; namedtuples: field names if the file has them
  std::vector<TreeSpec> children;
  uint64_t num_leaves() const;
  bool has_other() const;  // some part of it is kOther
};

struct Program {
  std::string name;           // "model", from models/<name>.json
  std::string torch_version;  // of the writer
  std::string digest;         // SHA-256 of the record it was read from; empty where it is not that record's program, or no longer
  int64_t schema_major = 0, schema_minor = 0;
  std::string dialect;  // "TRAINING" (in-place nodes), "ATEN" (functional), "" if not stated
  Named<int64_t> opset_version;
  Graph graph;
  std::vector<InputSpec> inputs;    // as many as graph.inputs
  std::vector<OutputSpec> outputs;  // as many as graph.outputs
  Named<RangeConstraint> range_constraints;
  std::vector<Guard> guards;
  TreeSpec in_spec;  // (args tuple, kwargs dict)
  TreeSpec out_spec;
  bool has_tree_specs = false;
  std::vector<std::string> forward_arg_names;
};

}  // namespace keirin::pt2
