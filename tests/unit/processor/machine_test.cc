// SPDX-License-Identifier: Apache-2.0
//
// Which level of an instruction set a machine gets, on an imagined one: nothing here depends on the processor that runs it.
#include "plugins/processor/machine.h"

#include <gtest/gtest.h>

namespace keirin::processor {
namespace {

using codegen::native::Masks;

enum : uint32_t { kBase = 1, kWider = 2, kLong = 4, kHalf = 8 };
constexpr Level kLevels[] = {
    {"long", "generic", "+long", 4, Masks::kAll, kBase | kLong, 80, 2e9, 10e9},
    {"wide", "generic", "+wide", 16, Masks::kAll, kBase | kWider, 60, 2e9, 9e9},
    {"base", "generic", "", 4, Masks::kWide, kBase, 20, 1e9, 8e9},
};
constexpr Isa kIsa{.triple = "made-up", .levels = kLevels, .none = "too old", .vector_lengths = kLong, .bf16 = kHalf};

Found found(uint32_t features, int vector_bytes = 0) {
  Found f;
  f.features = features, f.vector_bytes = vector_bytes, f.name = "Made Up 1", f.fingerprint = "its own";
  return f;
}

std::unique_ptr<Machine> make(const Found& f, std::string_view level = {}) {
  std::string why_not;
  return make_machine(kIsa, f, level, why_not);
}

TEST(Machine, IsTheBestLevelOfWhichItHasEverything) {
  EXPECT_EQ(make(found(kBase))->arch, "base");
  EXPECT_EQ(make(found(kBase | kWider))->arch, "wide");
  EXPECT_EQ(make(found(kBase | kWider | kLong, 32))->arch, "long");
  const auto half = make(found(kBase | kWider | kHalf));
  EXPECT_EQ(half->name, "Made Up 1");
  EXPECT_EQ(half->fingerprint, "its own");
  EXPECT_TRUE(half->native_bf16);
  EXPECT_EQ(half->code.features, "+wide");
  EXPECT_EQ(half->code.scale, 0);
  EXPECT_EQ(half->info.vector_bytes, 64);
}

TEST(Machine, IsALevelThatWasAskedForAndNothingBeyond) {
  const auto base = make(found(kBase | kWider | kLong | kHalf, 32), "base");
  EXPECT_EQ(base->arch, "base");
  EXPECT_EQ(base->features, uint32_t{kBase});
  EXPECT_FALSE(base->native_bf16);
  EXPECT_EQ(base->fingerprint, "none");
  EXPECT_EQ(base->code.scale, 0);
  EXPECT_EQ(make(found(kBase | kLong | kHalf, 32), "long")->fingerprint, "its own") << "its vectors are as long as the machine's";
}

TEST(Machine, SaysWhyThereIsNone) {
  std::string why_not;
  EXPECT_EQ(make_machine(kIsa, found(kWider), "", why_not), nullptr);
  EXPECT_EQ(why_not, "too old");
  EXPECT_EQ(make_machine(kIsa, found(kBase), "wide", why_not), nullptr);
  EXPECT_EQ(why_not, "this processor, or the operating system, lacks what level wide needs");
  EXPECT_EQ(make_machine(kIsa, found(kBase), "widest", why_not), nullptr);
  EXPECT_EQ(why_not, "no level is called \"widest\"; there are long, wide, base");
}

// Where vectors are scalable the machine says how long they are: lanes follow, up to what rows are cut for, and below 256 bits there are
// no masks.
TEST(Machine, TakesScalableVectorsAsLongAsTheyAre) {
  struct Case {
    int bytes, lanes, scale;
    Masks masks;
  };
  for (const Case& c : {Case{16, 4, 1, Masks::kNone}, {32, 8, 2, Masks::kAll}, {64, 16, 4, Masks::kAll}, {256, 16, 16, Masks::kAll}}) {
    const auto machine = make(found(kBase | kLong, c.bytes));
    EXPECT_EQ(machine->code.lanes, c.lanes) << c.bytes;
    EXPECT_EQ(machine->code.scale, c.scale) << c.bytes;
    EXPECT_EQ(machine->code.masks, c.masks) << c.bytes;
    EXPECT_EQ(machine->info.vector_bytes, 4 * c.lanes) << c.bytes;
  }
  EXPECT_NE(make(found(kBase | kLong, 16))->code.identity(), make(found(kBase | kLong, 32))->code.identity());
}

}  // namespace
}  // namespace keirin::processor
