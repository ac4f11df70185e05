// SPDX-License-Identifier: Apache-2.0
//
// The pipeline is short on purpose: the emitter writes vectors, hoists and unrolls itself. What is left is promotion of locals,
// early-cse, instcombine and licm; a full -O3 costs ten times as much and gained nothing on these loops.
#include "plugins/codegen/llvm/compile_kernel.h"

#include <mutex>
#include <stdexcept>

#include "llvm/ADT/SmallVector.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Utils/Mem2Reg.h"
#include "plugins/codegen/llvm/kernel_emitter.h"

namespace keirin::codegen::native {

void register_targets() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
}

namespace {

std::unique_ptr<llvm::TargetMachine> make_machine(const CpuTarget& target) {
  register_targets();
  std::string error;
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(target.triple, error);
  if (!found) throw std::runtime_error("LLVM has no code generator for " + target.triple + ": " + error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = target.contract ? llvm::FPOpFusion::Standard : llvm::FPOpFusion::Strict;
  return std::unique_ptr<llvm::TargetMachine>(
      found->createTargetMachine(target.triple, target.cpu, target.features, options, llvm::Reloc::PIC_,
                                 llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default, /*JIT=*/true));
}

}  // namespace

// The analysis managers know the module's analyses by type; they are made for each module, and cost microseconds.
struct Compiler::Machine {
  explicit Machine(const CpuTarget& target) : machine(make_machine(target)) {}

  void optimise(llvm::Module& module) {
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager graphs;
    llvm::ModuleAnalysisManager modules;
    llvm::PassBuilder builder(machine.get());
    builder.registerModuleAnalyses(modules);
    builder.registerCGSCCAnalyses(graphs);
    builder.registerFunctionAnalyses(functions);
    builder.registerLoopAnalyses(loops);
    builder.crossRegisterProxies(loops, functions, graphs, modules);
    llvm::FunctionPassManager passes;
    passes.addPass(llvm::PromotePass());
    passes.addPass(llvm::EarlyCSEPass(/*UseMemorySSA=*/false));
    passes.addPass(llvm::InstCombinePass());
    passes.addPass(llvm::createFunctionToLoopPassAdaptor(llvm::LICMPass(llvm::LICMOptions()), /*UseMemorySSA=*/true));
    for (llvm::Function& function : module) {
      if (!function.isDeclaration()) passes.run(function, functions);
    }
  }

  std::vector<uint8_t> to_object(llvm::Module& module) {
    llvm::SmallVector<char, 0> bytes;
    llvm::raw_svector_ostream stream(bytes);
    llvm::legacy::PassManager passes;
    if (machine->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::ObjectFile)) {
      throw std::runtime_error("LLVM writes no object files for this target");
    }
    passes.run(module);
    return {bytes.begin(), bytes.end()};
  }

  std::unique_ptr<llvm::TargetMachine> machine;
};

Compiler::Compiler(CpuTarget target) : target_(std::move(target)), machine_(std::make_unique<Machine>(target_)) {}
Compiler::~Compiler() = default;

std::vector<uint8_t> Compiler::compile(const Kernel& kernel, const std::string& name, std::string* ir) {
  llvm::LLVMContext context;
  llvm::Module module(name, context);
  module.setTargetTriple(target_.triple);
  module.setDataLayout(machine_->machine->createDataLayout());
  KernelEmitter(kernel, target_, module).emit(name);
#ifndef NDEBUG
  constexpr bool kVerify = true;
#else
  constexpr bool kVerify = false;
#endif
  std::string complaint;
  llvm::raw_string_ostream complaints(complaint);
  if (kVerify && llvm::verifyModule(module, &complaints)) {
    throw std::runtime_error("generated code of " + kernel.name + " is malformed: " + complaint);
  }
  machine_->optimise(module);
  if (ir) {
    llvm::raw_string_ostream text(*ir);
    module.print(text, nullptr);
  }
  return machine_->to_object(module);
}

}  // namespace keirin::codegen::native
