// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/compile_words.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/overlap.h"

namespace keirin {
namespace {

using nlohmann::json;

constexpr uint64_t kWeightAlign = 64, kPage = 4096;

uint64_t rounded(uint64_t bytes, uint64_t to = kWeightAlign) { return (bytes + to - 1) / to * to; }

// A weight as the child sees it: a view of the memory file.
class MappedTensor final : public Tensor {
 public:
  MappedTensor(DType dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides, std::shared_ptr<void> file, void* data,
               int64_t bytes)
      : dtype_(dtype), sizes_(std::move(sizes)), strides_(std::move(strides)), file_(std::move(file)), data_(data), bytes_(bytes) {}
  DType dtype() const override { return dtype_; }
  Device device() const override { return {}; }
  const int64_t* sizes() const override { return sizes_.data(); }
  const int64_t* strides() const override { return strides_.data(); }
  int64_t rank() const override { return static_cast<int64_t>(sizes_.size()); }
  void* data() const override { return data_; }
  int64_t storage_bytes() const override { return bytes_; }

 private:
  DType dtype_;
  std::vector<int64_t> sizes_, strides_;
  std::shared_ptr<void> file_;
  void* data_;
  int64_t bytes_;
};

json policy_json(const PolicyOptions& p) {
  return {{"numerics", p.numerics}, {"deterministic", p.deterministic}, {"replay", p.replay}, {"memory_limit", p.memory_limit_bytes},
          {"tf32_convolutions", p.tf32_convolutions}, {"tf32_products", p.tf32_products}, {"tf32_recurrent", p.tf32_recurrent}};
}

json options_json(const CompileOptions& o) {
  return {{"candidate", o.candidate},
          {"level", o.level},
          {"deadline_ns", o.deadline.count()},
          {"tune_budget_ns", o.tune_budget.count()},
          {"dump", static_cast<bool>(o.dump)}};
}

Packet question(const char* op, const std::string& device, const PluginRegion& region, const PolicyOptions& policy) {
  Packet packet;
  packet.head = {{"op", op}, {"device", device}, {"policy", policy_json(policy)}};
  packet.blobs.emplace_back(reinterpret_cast<const char*>(region.bytes.data()), region.bytes.size());
  packet.blobs.emplace_back(reinterpret_cast<const char*>(region.hash.data()), region.hash.size());
  return packet;
}

// What the weight's elements take; its storage may hold other weights too.
uint64_t bytes_of(const Tensor& weight) {
  const auto [begin, end] = byte_range(weight);
  return end - begin;
}

// Without room the file is sealed.
Status put_weights(const std::vector<TensorRef>& weights, uint64_t room, Packet* packet) {
  uint64_t total = 0;
  for (const TensorRef& weight : weights) {
    if (!weight || weight->device().kind != Device::kCpu)
      return Status(Code::k_unsupported, "a weight is not in this process's memory, so a child cannot be given its values");
    total += rounded(bytes_of(*weight));
  }
  const uint64_t at = rounded(total, kPage);
  Descriptor file = above_standard(Descriptor(::memfd_create("keirin-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (file.get() < 0 || ::ftruncate(file.get(), static_cast<off_t>(room ? at + room : total)) != 0)
    return Status(Code::k_exhausted, "there is no memory file for the weights");
  json list = json::array();
  uint64_t offset = 0;
  for (const TensorRef& weight : weights) {
    const uint64_t bytes = bytes_of(*weight);
    for (uint64_t done = 0; done < bytes;) {
      const ssize_t n = ::pwrite(file.get(), static_cast<const char*>(weight->data()) + done, bytes - done,
                                 static_cast<off_t>(offset + done));
      if (n <= 0) return Status(Code::k_exhausted, "the memory file for the weights is full");
      done += static_cast<uint64_t>(n);
    }
    list.push_back({{"dtype", static_cast<int>(weight->dtype())},
                    {"sizes", std::vector<int64_t>(weight->sizes(), weight->sizes() + weight->rank())},
                    {"strides", std::vector<int64_t>(weight->strides(), weight->strides() + weight->rank())},
                    {"offset", offset},
                    {"bytes", bytes}});
    offset += rounded(bytes);
  }
  (void)::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | (room ? 0 : F_SEAL_WRITE));
  packet->head["weights"] = std::move(list);
  packet->head["room_at"] = at;
  packet->file = std::move(file);
  return {};
}

std::vector<TensorRef> take_weights(const json& list, const Descriptor& file) {
  struct stat info {};
  std::vector<TensorRef> weights;
  if (list.empty() || ::fstat(file.get(), &info) != 0 || info.st_size == 0) return weights;
  const auto size = static_cast<size_t>(info.st_size);
  void* const at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return weights;
  const std::shared_ptr<void> mapping(at, [size](void* p) { ::munmap(p, size); });
  for (const json& w : list)
    weights.push_back(std::make_shared<MappedTensor>(static_cast<DType>(w.at("dtype").get<int>()), w.at("sizes"), w.at("strides"),
                                                     mapping, static_cast<char*>(at) + w.at("offset").get<uint64_t>(),
                                                     w.at("bytes").get<int64_t>()));
  return weights;
}

}  // namespace

Packet claim_question(const std::string& device, const PluginRegion& region, const PolicyOptions& policy) {
  return question("claim", device, region, policy);
}

Result<Packet> compile_question(const std::string& device, const PluginRegion& region, const PolicyOptions& policy,
                                const CompileOptions& options, bool weights) {
  Packet packet = question("compile", device, region, policy);
  packet.head["options"] = options_json(options);
  if (weights) KRN_TRY(put_weights(region.weights, 0, &packet));
  return packet;
}

Result<Packet> load_question(uint64_t id, const std::string& device, const PluginRegion& region, const Artifact* artifact,
                             const PolicyOptions& policy, const CompileOptions& options, uint64_t room) {
  Packet packet = question("load", device, region, policy);
  packet.head["options"] = options_json(options);
  packet.head["id"] = id;
  if (artifact) packet.blobs.insert(packet.blobs.end(), {artifact->token, artifact->body});
  KRN_TRY(put_weights(region.weights, room, &packet));
  return packet;
}

void put_lent(const LentRegion& lent, Packet* packet) {
  const auto memory = [](const LentMemory& m) { return json{m.handle, m.bytes}; };
  json blocks = json::array(), weights = json::array();
  for (const LentMemory& block : lent.blocks) blocks.push_back(memory(block));
  for (const LentRegion::Weight& w : lent.weights)
    weights.push_back({static_cast<int>(w.dtype), w.sizes, w.strides, w.block, w.offset, w.bytes});
  const json event = lent.event ? json(*lent.event) : json();
  packet->head["lent"] = {{"arguments", lent.arguments ? memory(*lent.arguments) : json()},
                          {"event", event},
                          {"blocks", std::move(blocks)},
                          {"weights", std::move(weights)}};
}

std::optional<LentRegion> lent_of(const Packet& packet) {
  const auto at = packet.head.find("lent");
  if (at == packet.head.end()) return {};
  const auto memory = [](const json& m) { return LentMemory{m.at(0), m.at(1)}; };
  LentRegion lent;
  if (const json& arguments = at->at("arguments"); !arguments.is_null()) lent.arguments = memory(arguments);
  if (const json& event = at->at("event"); !event.is_null()) lent.event = event.get<DeviceDriver::Handle>();
  for (const json& block : at->at("blocks")) lent.blocks.push_back(memory(block));
  for (const json& w : at->at("weights"))
    lent.weights.push_back({static_cast<DType>(w.at(0).get<int>()), w.at(1), w.at(2), w.at(3), w.at(4), w.at(5)});
  return lent;
}

uint64_t room_at(const Packet& packet) { return packet.head.at("room_at"); }

Question read_question(const Packet& packet) {
  Question q;
  q.op = packet.head.at("op");
  q.id = packet.head.value("id", uint64_t{0});
  if (q.op == "drop") return q;
  q.device = packet.head.at("device");
  const std::string &bytes = packet.blobs.at(0), &hash = packet.blobs.at(1);
  q.bytes.resize((bytes.size() + 7) / 8);
  ::memcpy(q.bytes.data(), bytes.data(), bytes.size());
  q.region.bytes = {reinterpret_cast<const uint8_t*>(q.bytes.data()), bytes.size()};
  ::memcpy(q.region.hash.data(), hash.data(), std::min(hash.size(), q.region.hash.size()));
  const json& policy = packet.head.at("policy");
  q.policy = {policy.at("numerics"), policy.at("deterministic"), policy.at("replay"), policy.at("memory_limit"),
              policy.at("tf32_convolutions"), policy.at("tf32_products"), policy.at("tf32_recurrent")};
  if (q.op == "claim") return q;
  const json& options = packet.head.at("options");
  q.options.candidate = options.at("candidate");
  q.options.level = options.at("level");
  q.options.deadline = std::chrono::nanoseconds(options.at("deadline_ns").get<int64_t>());
  q.options.tune_budget = std::chrono::nanoseconds(options.at("tune_budget_ns").get<int64_t>());
  q.dump = options.at("dump");
  if (packet.head.contains("weights")) q.region.weights = take_weights(packet.head.at("weights"), packet.file);
  if (packet.blobs.size() == 4) q.artifact = Artifact{packet.blobs[2], packet.blobs[3]};
  return q;
}

json info_json(const ExecutableInfo& i) {
  return {i.num_kernels, i.num_anchors, i.num_codegen, i.code_bytes, i.constant_bytes, i.weights_baked};
}

ExecutableInfo info_from_json(const json& j) {
  ExecutableInfo info;
  info.num_kernels = j.at(0), info.num_anchors = j.at(1), info.num_codegen = j.at(2);
  info.code_bytes = j.at(3), info.constant_bytes = j.at(4), info.weights_baked = j.at(5);
  return info;
}

json claims_json(const ClaimResult& claims) {
  json list = json::array(), refusals = json::array();
  for (const NodeClaim& c : claims.claims) list.push_back({c.nodes, c.num_kernels, c.cost_ns, c.confidence});
  for (const NodeRefusal& r : claims.refusals) refusals.push_back({r.node, r.why});
  return {{"claims", list}, {"refusals", refusals}};
}

ClaimResult claims_from_json(const json& j) {
  ClaimResult claims;
  for (const json& c : j.at("claims")) claims.claims.push_back({c.at(0), c.at(1), c.at(2), c.at(3)});
  for (const json& r : j.at("refusals")) claims.refusals.push_back({r.at(0), r.at(1)});
  return claims;
}

}  // namespace keirin
