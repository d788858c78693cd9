// The one reader of foreign JSON: what it refuses, and that it takes time linear in the text.
#include "base/json_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cpu_seconds.h"
#include "unpack/error.h"
#include "unpack/fields.h"

namespace unpack {
namespace {

std::string error_of(const std::string& text, const base::JsonLimits& limits = {}) {
  try {
    (void)base::read_json(text, "file", limits);
    (void)base::read_ordered_json(text, "file", limits);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(JsonReader, ReadsWhatIsThere) {
  const std::string text = R"( {"b": [1, -2, 2.5, "x", null, true, {}], "a": {"c": []}} )";
  EXPECT_EQ(base::read_json(text, "file"), JsonValue::parse(text));
  EXPECT_EQ(base::read_ordered_json(text, "file"), OrderedJson::parse(text));
  EXPECT_EQ(base::read_ordered_json(text, "file").dump(), OrderedJson::parse(text).dump());
}

TEST(JsonReader, RefusesBytesBehindTheValueAndBehindANul) {
  EXPECT_NE(error_of("{} x"), "");
  EXPECT_NE(error_of("{}{}"), "");
  EXPECT_NE(error_of(std::string("{}\0", 3)), "");
  EXPECT_NE(error_of(std::string("{}\0garbage", 10)), "");
  EXPECT_NE(error_of(std::string("{\"a\": \"\0\"}", 10)), "");
  EXPECT_EQ(error_of("{} \n"), "");
  EXPECT_NE(error_of(""), "");
}

TEST(JsonReader, RefusesNumbersThatNoDoubleHolds) {
  EXPECT_NE(error_of("1e400").find("out of range"), std::string::npos);
  EXPECT_NE(error_of(R"({"unknown": [1e400]})").find("out of range"), std::string::npos);
  EXPECT_EQ(error_of(std::string(400, '9') + "0").find("out of range") == std::string::npos, false);
  EXPECT_NE(error_of("NaN"), "");
}

TEST(JsonReader, RefusesDepthSizeAndNumberOfValues) {
  const auto nested = [](std::size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_EQ(error_of(nested(base::kJsonDepth)), "");
  EXPECT_NE(error_of(nested(base::kJsonDepth + 1)).find("nested"), std::string::npos);
  EXPECT_NE(error_of(nested(200'000)).find("nested"), std::string::npos);
  EXPECT_NE(error_of("[1, 2, 3]", {100, 3}).find("values"), std::string::npos);
  EXPECT_NE(error_of("[1, 2, 3]", {8, 100}).find("bytes"), std::string::npos);
}

TEST(JsonReader, RefusesAKeyThatOccursTwice) {
  EXPECT_NE(error_of(R"({"a": 1, "b": {"c": 1, "c": 2}})").find("'c' occurs twice"),
            std::string::npos);
}

struct ManyValues {
  explicit ManyValues(int count) {
    for (int i = 0; i < count; ++i) {
      objects += i == 0 ? "{}" : ",{}";
      keys += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":1";
    }
    objects += "]";
    keys += "}";
  }

  std::string objects = "[", keys = "{";
};

// Objects in a list, keys in an object: each took time quadratic in their number. Five seconds are
// plenty, and where they are not (an emulator), ten times as many take less than thirty times as
// long.
TEST(JsonReader, TakesLinearTime) {
  const ManyValues many(200'000), few(20'000);
  const auto expect_linear = [&](const auto& read) {
    const double limit = std::max(5.0, 30 * cpu_seconds([&] { read(few); }));
    EXPECT_LT(cpu_seconds([&] { read(many); }), limit);
  };
  expect_linear([](const ManyValues& v) { (void)base::read_json(v.objects, "file"); });
  expect_linear([](const ManyValues& v) { (void)base::read_ordered_json(v.keys, "file"); });
  expect_linear([](const ManyValues& v) { (void)read_fields(v.keys, "file"); });
}

TEST(Fields, WholeNumbersKeepTheirSign) {
  const Fields fields = read_fields(
      R"({"a": 18446744073709551614, "b": -3, "c": 18446744073709551615, "d": 3000000000})",
      "line");
  EXPECT_THROW(read_integer("a", *find_field(fields, "a")), UsageError);
  EXPECT_EQ(read_integer("b", *find_field(fields, "b")), -3);
  EXPECT_THROW(read_integer("c", *find_field(fields, "c")), UsageError);
  EXPECT_THROW(read_integer("d", *find_field(fields, "d")), UsageError);
  EXPECT_THROW(read_ids("c", *find_field(fields, "c"), 100, 10), UsageError);
}

TEST(Fields, SayWhatTheyTakeUnderTheirName) {
  const Fields fields = read_fields(R"({"tau": "x", "list": [[[1]], {"a": 1}]})", "line");
  try {
    (void)read_number("tau", *find_field(fields, "tau"));
    FAIL();
  } catch (const KindError& error) {
    EXPECT_STREQ(error.what(), "tau takes a number, not \"x\"");
  }
  EXPECT_EQ(shown(*find_field(fields, "list")), "[[...], an object]");
}

TEST(Fields, TextsOfTablesAndOptionsHoldNumbersAndLists) {
  EXPECT_EQ(read_integer("a", text_field("+7")), 7);
  EXPECT_EQ(read_integers("a", text_field("3, 17 5"), 10), (std::vector<int>{3, 17, 5}));
  for (const char* bad : {"1,,2", ",1", "1,", "x", "1.5"})
    EXPECT_THROW(read_integers("a", text_field(bad), 10), UsageError) << bad;
  EXPECT_THROW(read_number("a", text_field("inf")), UsageError);
  EXPECT_TRUE(read_flag("a", text_field("1")));
}

TEST(Messages, AreOneLineOfUtf8OfBoundedLength) {
  const std::string message = InputError("a\nb\x1b[31mc\xff\xc3\xa9\xe2\x80\xae\xc2\x9b" +
                                         std::string(100'000, 'x') + " end")
                                  .what();
  EXPECT_LT(message.size(), 500u);
  EXPECT_TRUE(message.starts_with("a\\x0ab\\x1b[31mc\\xff\xc3\xa9\\xe2\\x80\\xae\\xc2\\x9bxx"));
  EXPECT_TRUE(message.ends_with(" end"));
  EXPECT_STREQ(InputError("plain").what(), "plain");
  const std::string cut = InputError(std::string(300, 'x') + std::string(400, '\xc3')).what();
  EXPECT_LT(cut.size(), 500u);
}

}  // namespace
}  // namespace unpack
