// SPDX-License-Identifier: Apache-2.0
//
// The strict JSON document: what it accepts, what it refuses, where it says the fault is, and that its time is linear.
#include "core/capture/pt2/json.h"

#include <gtest/gtest.h>

#include <chrono>

namespace keirin::pt2 {
namespace {

std::string verdict(const std::string& text, Limits limits = {}) {
  Result<JsonDoc> doc = JsonDoc::parse(text, limits);
  return doc.ok() ? "ok" : doc.status().message().what + " @ " + doc.status().message().where;
}

double seconds_to_parse(const std::string& text) {
  auto start = std::chrono::steady_clock::now();
  (void)JsonDoc::parse(text, Limits{}).ok();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Json, WalksMembersAndItems) {
  Result<JsonDoc> doc =
      JsonDoc::parse(R"({"a": [1, -2.5, "x\u00e9", null, true, {"b": []}], "c": 9223372036854775807})", Limits{});
  ASSERT_TRUE(doc.ok()) << doc.status().text();
  JsonRef root(*doc);
  EXPECT_EQ(root.count(), 2u);
  std::string seen;
  root.members([&](std::string_view key, const JsonRef& at) {
    seen += std::string(key) + ":";
    if (at.type() == JsonType::kArray)
      at.items([&](const JsonRef& item) {
        return seen += std::string(json_type_name(item.type())) + " " + item.where() + ";", true;
      });
    else
      seen += std::to_string(at.integer());
    return true;
  });
  EXPECT_EQ(seen,
            "a:an integer a[0] (byte 7);a float a[1] (byte 10);a string a[2] (byte 16);null a[3] (byte 27);"
            "a boolean a[4] (byte 33);an object a[5] (byte 39);c:9223372036854775807");
}

TEST(Json, IsStrict) {
  EXPECT_EQ(verdict("{\"a\": 1, \"a\": 2}"), "a JSON object has the key \"a\" twice @ byte 9");
  EXPECT_EQ(verdict("[1, 9223372036854775808]"), "an integer does not fit 64 bits @ byte 4");
  EXPECT_EQ(verdict("[-9223372036854775809]"), "an integer does not fit 64 bits @ byte 1");
  EXPECT_EQ(verdict("[99999999999999999999999]"), "an integer does not fit 64 bits @ byte 1");
  EXPECT_TRUE(verdict("[NaN]").starts_with("this is not valid JSON @ byte 1"));
  for (const char* text : {"", "[", "[1,]", "{\"a\"}", "[1] 2", "[01]", "['a']", "[\"\xff\"]", "[\"\xed\xa0\x80\"]",
                           "\xef\xbb\xbf[]", "[1e999]", "// x"})
    EXPECT_NE(verdict(text), "ok") << text;
}

TEST(Json, KeepsItsLimits) {
  EXPECT_EQ(verdict(std::string(64, '[') + std::string(64, ']')), "ok");
  EXPECT_EQ(verdict(std::string(65, '[') + std::string(65, ']')), "the JSON text is nested deeper than 64 @ byte 64");
  Limits small;
  small.string_bytes = 3;
  EXPECT_EQ(verdict("[\"abc\"]", small), "ok");
  EXPECT_EQ(verdict("[\"abcd\"]", small), "a JSON string has 4 bytes, the limit is 3 @ byte 1");
}

TEST(Json, HostileTextTakesLinearTime) {
  std::string list = "[0", keys = "{\"k\":0", same = "{\"" + std::string(2000, 'a') + "\":0";
  for (int i = 0; i < 500'000; ++i) list += ",0";
  for (int i = 0; i < 100'000; ++i) keys += ",\"" + std::to_string(i) + "\":0";
  for (int i = 0; i < 500; ++i) same += ",\"" + std::string(2000, 'a') + std::to_string(i) + "\":0";
  for (std::string* text : {&list, &keys, &same}) {
    *text += text == &list ? "]" : "}";
    EXPECT_EQ(verdict(*text), "ok");
    EXPECT_LT(seconds_to_parse(*text), 1.0 * static_cast<double>(text->size()) / 1e6 + 0.5);
  }
}

}  // namespace
}  // namespace keirin::pt2
