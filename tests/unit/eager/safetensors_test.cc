// SPDX-License-Identifier: Apache-2.0
//
// Round trips of tensor files, and what happens to files that lie about themselves.
#include "core/eager/weights/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "core/eager/tensor_services.h"
#include "tests/support/mutants.h"

namespace keirin {
namespace {

std::string temporary(const std::string& name) { return ::testing::TempDir() + "keirin_" + name + ".safetensors"; }

void write_raw(const std::string& path, const std::string& header, const std::string& data, int64_t length = -1) {
  const uint64_t bytes = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&bytes), 8);
  file << header << data;
}

TEST(Safetensors, RoundTripKeepsOrderAndMakesDense) {
  const auto services = make_tensor_services();
  const TensorRef dense = *services->allocate({DType::k_f32, {2, 3}, {}, {}});
  for (int i = 0; i < 6; ++i) static_cast<float*>(dense->data())[i] = static_cast<float>(i);
  const TensorRef turned = *services->wrap({DType::k_f32, {3, 2}, {1, 3}, {}}, dense->data(), dense);
  const TensorRef empty = *services->allocate({DType::k_i64, {0, 4}, {}, {}});
  const std::string path = temporary("round_trip");
  ASSERT_TRUE(write_safetensors(path, {{"z", turned}, {"a", dense}, {"none", empty}}, *services).ok());
  auto read = read_safetensors(path, *services);
  ASSERT_TRUE(read.ok()) << read.status().text();
  ASSERT_EQ(read->size(), 3u);
  EXPECT_EQ((*read)[0].first, "z");
  const float wanted[] = {0, 3, 1, 4, 2, 5};
  EXPECT_EQ(std::memcmp((*read)[0].second->data(), wanted, sizeof wanted), 0);
  EXPECT_EQ(std::memcmp((*read)[1].second->data(), dense->data(), 24), 0);
}

TEST(Safetensors, RefusesHostileFiles) {
  const auto services = make_tensor_services();
  const std::string path = temporary("hostile");
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return R"({"x":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::pair<std::string, const char*> cases[] = {
      {entry("[2]", "[0,16]"), "lies outside the file"},
      {entry("[3]", "[0,8]"), "does not match its bytes"},
      {entry("[4611686018427387904,4]", "[0,8]"), "does not match its bytes"},
      {entry("[-2]", "[0,8]"), "bad size"},
      {entry("[2]", "[8,0]"), "lies outside the file"},
      {R"({"x":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", "unknown dtype"},
      {R"({"x":7})", "lacks dtype"},
      {"[1", "not a JSON object"},
  };
  for (const auto& [header, words] : cases) {
    write_raw(path, header, "12345678");
    auto read = read_safetensors(path, *services);
    ASSERT_FALSE(read.ok()) << header;
    EXPECT_EQ(read.status().code(), Code::k_corrupt) << header;
    EXPECT_NE(read.status().text().find(words), std::string::npos) << read.status().text();
  }
  for (const int64_t length : {int64_t{3}, int64_t{100}, int64_t{1} << 24}) {  // never asked for memory that the file cannot fill
    write_raw(path, "{}", "", length);
    const Status status = read_safetensors(path, *services).status();
    EXPECT_EQ(status.code(), Code::k_corrupt);
    EXPECT_NE(status.text().find("the table is longer than the file"), std::string::npos) << status.text();
  }
  write_raw(path, "{}", "", int64_t{1} << 40);
  EXPECT_EQ(read_safetensors(path, *services).status().code(), Code::k_corrupt);
  EXPECT_EQ(read_safetensors(temporary("absent"), *services).status().code(), Code::k_invalid_input);
}

// Every dtype of the format x shapes x every place in the data: read if and only if the bytes of the record are those of the shape
// and lie in the data. The sizes are stated here, not taken from the reader's table.
TEST(Safetensors, ARecordHasExactlyTheBytesOfItsShape) {
  const auto services = make_tensor_services();
  const std::string path = temporary("record");
  const std::pair<const char*, uint64_t> dtypes[] = {{"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"I16", 2},     {"U16", 2},
                                                     {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4},     {"F32", 4},
                                                     {"I64", 8},  {"U64", 8},  {"F64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  const std::pair<const char*, uint64_t> shapes[] = {{"[]", 1}, {"[3]", 3}, {"[2,3]", 6}, {"[4,0,2]", 0}};
  const uint64_t data = 48;
  int read_well = 0, refused = 0;
  for (const auto& [dtype, item] : dtypes)
    for (const auto& [shape, count] : shapes)
      for (uint64_t begin : {uint64_t{0}, uint64_t{9}})
        for (uint64_t end : {uint64_t{0}, begin + count * item - 1, begin + count * item, begin + count * item + 1,
                             begin + (count + 1) * item, data, data + 1}) {
          if (end > 2 * data) continue;  // 0 - 1
          const std::string header = std::string(R"({"x":{"dtype":")") + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" +
                                     std::to_string(begin) + "," + std::to_string(end) + "]}}";
          write_raw(path, header, std::string(data, 'd'));
          const bool fits = begin <= end && end <= data && end - begin == count * item;
          const auto read = read_safetensors(path, *services);
          ASSERT_EQ(read.ok(), fits) << header << (read.ok() ? "" : read.status().text());
          (fits ? read_well : refused) += 1;
          if (!fits || count == 0) continue;
          ASSERT_EQ(std::memcmp(read->at(0).second->data(), std::string(data, 'd').data(), count * item), 0);
        }
  EXPECT_GT(read_well, 100);
  EXPECT_GT(refused, 400);
}

TEST(Safetensors, DamageIsRefusedOrEveryTensorIsWhole) {
  const auto services = make_tensor_services();
  const std::string path = temporary("mutant");
  const TensorRef x = *services->allocate({DType::k_f32, {2, 3}, {}, {}}), y = *services->allocate({DType::k_i64, {4}, {}, {}});
  ASSERT_TRUE(write_safetensors(path, {{"x", x}, {"y", y}}, *services).ok());
  std::ifstream file(path, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  int refused = 0;
  const auto judge = [&](const std::string& mutant) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << mutant;
    const auto read = read_safetensors(path, *services);
    refused += !read.ok();
    if (!read.ok()) return;
    for (const auto& [name, tensor] : *read) {
      int64_t n = 1;
      for (int64_t d = 0; d < tensor->rank(); ++d) n *= tensor->sizes()[d];
      ASSERT_LE(n * dtype_bytes(tensor->dtype()), tensor->storage_bytes()) << name;
      ASSERT_LE(tensor->storage_bytes(), static_cast<int64_t>(mutant.size())) << name;
    }
  };
  test::MalformedInputs inputs;
  inputs.try_truncations(good, judge);
  EXPECT_EQ(refused, static_cast<int>(good.size()));
  inputs.try_mutants(good, 500, judge);
  EXPECT_GT(refused, static_cast<int>(good.size()) + 100);
}

}  // namespace
}  // namespace keirin
