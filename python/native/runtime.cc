// SPDX-License-Identifier: Apache-2.0
#include "python/native/runtime.h"

#include <map>

#include "core/base/nearest.h"
#include "core/eager/at_tensor.h"

namespace keirin::python {
namespace {

std::vector<at::Tensor> tensors_of(const std::vector<TensorRef>& refs) {
  std::vector<at::Tensor> out;
  out.reserve(refs.size());
  for (const TensorRef& ref : refs) out.push_back(to_at(ref));
  return out;
}

// With its strides; what is repeated along a dimension (stride 0) is one element there in the copy too.
at::Tensor copy_laid_out(const at::Tensor& tensor) {
  at::Tensor once = tensor;
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) once = once.narrow(d, 0, 1);
  at::Tensor copy = at::empty_strided(once.sizes(), once.strides(), tensor.options());
  return copy.copy_(once).expand(tensor.sizes());
}

const OptionRow* row_of(const std::string& name) {
  for (const OptionRow& row : option_rows())
    if (row.name == name) return &row;
  return nullptr;
}

}  // namespace

Options options_of(const OptionWords& words) {
  Options options;
  for (const auto& [name, values] : words) {
    const OptionRow* row = row_of(name);
    if (!row) {
      std::vector<std::string> names;
      for (const OptionRow& each : option_rows()) names.push_back(each.name);
      raise({Code::k_invalid_input,
             {"no option is called \"" + name + "\": the nearest is \"" + nearest_word(name, names) + "\"",
              {},
              "nothing was done",
              "help(keirin.options) lists them"}});
    }
    if (!row->list && values.size() != 1)
      raise({Code::k_invalid_input,
             {"option \"" + name + "\" takes one value and not a list of " + std::to_string(values.size()),
              {},
              "nothing was done",
              "give " + allowed_text(*row)}});
    for (const std::string& word : values)
      if (const Status status = set_option(*row, options, word); !status.ok()) raise(status);
  }
  return take(complete_options(options));
}

Runtime& runtime_of(const Options& options) {
  static std::mutex* const mutex = new std::mutex;  // both outlive the interpreter, whose threads may still run
  static auto* const runtimes = new std::map<std::vector<std::string>, std::unique_ptr<Runtime>>;
  std::vector<std::string> key;
  for (const OptionRow& row : option_rows()) {
    key.push_back(row.name);
    for (std::string& word : row.get(options)) key.push_back(std::move(word));
  }
  const std::lock_guard lock(*mutex);
  std::unique_ptr<Runtime>& runtime = (*runtimes)[key];
  if (!runtime) runtime = take(Runtime::open(options));
  return *runtime;
}

std::vector<TensorRef> refs_of(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorRef> out;
  out.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) out.push_back(from_at(tensor));
  return out;
}

std::vector<at::Tensor> Model::call(const std::vector<at::Tensor>& inputs) {
  const std::vector<TensorRef> refs = refs_of(inputs);
  const auto lock = turn();
  return tensors_of(take(session_->call(refs)));
}

ModelReport Model::compile(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> own;
  {
    // Below autograd: a copy of a view is a tensor of its own, with the strides that a call has.
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const at::Tensor& input : inputs) own.push_back(copy_laid_out(input));
  }
  const std::vector<TensorRef> refs = refs_of(own);
  const auto lock = turn();
  return take(session_->compile(refs));
}

Session::Effects Model::effects(const std::vector<at::Tensor>& inputs) { return take(session_->effects(refs_of(inputs))); }

void Model::meet(const std::vector<at::Tensor>& inputs) {
  const at::AutoDispatchBelowADInplaceOrView below;  // what is copied of them
  session_->meet(refs_of(inputs));
}

bool Model::is_decided(const std::vector<at::Tensor>& inputs) { return session_->is_decided(refs_of(inputs)); }

}  // namespace keirin::python
