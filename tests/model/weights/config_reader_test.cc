#include "model/weights/config_reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "model/weights/json_file.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::config_reader_test {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

json parse(const std::string& text) { return parse_json_object(text, "config.json"); }

// The error of one read from a config.
template <typename Read>
std::string error_with(const std::string& text, Read&& read) {
  const json config = parse(text);
  ConfigReader reader(config, "d/config.json");
  return error_of([&] { read(reader); });
}

TEST(ConfigReader, ReadsEveryTypeUnderAnySynonym) {
  const json config = parse(R"({"embedding_dim": 4096, "hidden_size": 4096, "eps": 1e-6, "cap": 15,
      "bias": true, "mode": "fused", "gone": null, "torch_dtype": "float32",
      "force_bos_token_insert": true, "other": {"a": 1}})");
  ConfigReader reader(config, "config.json");
  EXPECT_EQ(reader.required_int({"hidden_size", "embedding_dim"}, 1, 1 << 20), 4096);
  EXPECT_EQ(reader.optional_int("layers", 7, 1, 10), 7);
  EXPECT_EQ(reader.optional_int("gone", 8, 1, 10), 8);
  EXPECT_EQ(reader.required_number("eps", 0, 1), 1e-6);
  EXPECT_EQ(reader.optional_number("cap", 0, 0, 100), 15);
  EXPECT_EQ(reader.optional_number("base", 0.5, 0, 100), 0.5);
  EXPECT_TRUE(reader.boolean("bias", false));
  EXPECT_TRUE(reader.boolean("tied", true));
  EXPECT_EQ(reader.string_one_of("mode", "single", {"single", "fused"}), "fused");
  EXPECT_EQ(reader.string_one_of("kind", "single", {"single", "fused"}), "single");
  reader.must_be("bias", true);
  reader.must_be("add_qk_norm", false);
  EXPECT_TRUE(reader.has("other"));
  EXPECT_FALSE(reader.has("gone"));
  EXPECT_THAT(error_of([&] { reader.finish(); }), HasSubstr("\"other\" = {\"a\":1}"));
  reader.ignore({"other"});
  EXPECT_EQ(error_of([&] { reader.finish(); }), "");
}

TEST(ConfigReader, NamesEveryUnreadKey) {
  std::string text = R"({"transformers_version": "5", "x": null)";
  for (int i = 10; i < 25; ++i) text += fmt::format(", \"strange_{}\": {}", i, i);
  const std::string error = error_with(text + "}", [](ConfigReader& r) { r.finish(); });
  EXPECT_THAT(error,
              AllOf(StartsWith("d/config.json: wanted only keys"), HasSubstr("\"strange_10\" = 10"),
                    HasSubstr("\"strange_19\" = 19"), HasSubstr("and 5 more")));
  EXPECT_THAT(error, ::testing::Not(HasSubstr("strange_20")));
}

TEST(ConfigReader, RefusesIntegersOutOfRange) {
  const auto read = [](ConfigReader& r) { r.required_int({"n", "m"}, 1, 100); };
  EXPECT_EQ(error_with(R"({"n": 1})", read), "");
  EXPECT_EQ(error_with(R"({"m": 100})", read), "");
  EXPECT_EQ(error_with(R"({"n": 0})", read),
            "d/config.json: n: wanted a whole number from 1 to 100, found 0");
  EXPECT_EQ(error_with(R"({"m": 101})", read),
            "d/config.json: m: wanted a whole number from 1 to 100, found 101");
  EXPECT_EQ(error_with("{}", read),
            "d/config.json: n or m: wanted a whole number from 1 to 100, found no such key");
  for (const char* bad : {"-1", "18446744073709551615", "18446744073709551617",
                          "9223372036854775808", "1.0", "1e2", "\"5\"", "true", "[5]", "{}"}) {
    EXPECT_THAT(error_with(fmt::format("{{\"n\": {}}}", bad), read),
                HasSubstr("n: wanted a whole number from 1 to 100, found "))
        << bad;
  }
}

TEST(ConfigReader, RefusesOtherValuesThatDoNotFit) {
  EXPECT_EQ(error_with(R"({"e": -0.5})", [](ConfigReader& r) { r.required_number("e", 0, 1); }),
            "d/config.json: e: wanted a number from 0 to 1, found -0.5");
  EXPECT_EQ(error_with(R"({"e": "1"})", [](ConfigReader& r) { r.optional_number("e", 1, 0, 1); }),
            "d/config.json: e: wanted a number from 0 to 1, found \"1\"");
  EXPECT_EQ(error_with(R"({"b": 1})", [](ConfigReader& r) { r.boolean("b", false); }),
            "d/config.json: b: wanted true or false, found 1");
  EXPECT_EQ(
      error_with(R"({"s": "c"})", [](ConfigReader& r) { r.string_one_of("s", "a", {"a", "b"}); }),
      "d/config.json: s: wanted a or b, found \"c\"");
  EXPECT_EQ(error_with(R"({"add_qk_norm": true})",
                       [](ConfigReader& r) { r.must_be("add_qk_norm", false); }),
            "d/config.json: add_qk_norm: wanted false, which is all that is implemented, found "
            "true");
  EXPECT_EQ(error_with(R"({"a": 1, "b": 2})",
                       [](ConfigReader& r) { r.optional_int({"a", "b"}, 1, 1, 9); }),
            "d/config.json: b: wanted the same as a, 1, found 2");
  const std::string large = error_with("{\"n\": \"" + std::string(100000, 'x') + "\"}",
                                       [](ConfigReader& r) { r.required_int("n", 1, 2); });
  EXPECT_LT(large.size(), 300u);
}

TEST(JsonFile, RefusesWhatParsersDisagreeOn) {
  const auto error = [](const std::string& text) { return error_of([&] { parse(text); }); };
  EXPECT_EQ(error(R"({"a": {"b": 1}, "c": {"b": 1}})"), "");
  EXPECT_EQ(error(R"({"a": [{"b": 1, "c": 2, "b": 3}]})"),
            "config.json: wanted each key once, found \"b\" twice");
  EXPECT_EQ(error(R"({"a": {"x": 1}, "a": 2})"),
            "config.json: wanted each key once, found \"a\" twice");
  EXPECT_EQ(error("{\"a\": 1"), "config.json: wanted JSON, found none at byte 8");
  EXPECT_EQ(error(std::string("{}\0x", 4)), "config.json: wanted JSON, found a zero at byte 3");
  EXPECT_EQ(error("{} {}"), "config.json: wanted JSON, found none at byte 4");
  EXPECT_EQ(error(""), "config.json: wanted JSON, found none at byte 1");
  EXPECT_EQ(error("[1]"), "config.json: wanted a JSON object, found array");
  EXPECT_NE(error("{\"a\": 1e999}"), "");
  EXPECT_EQ(error("{\"a\": " + std::string(60, '[') + std::string(60, ']') + "}"), "");
  EXPECT_EQ(error("{\"a\": " + std::string(100000, '[')),
            "config.json: wanted JSON of at most 64 levels, found more");
}

// As Python writes it, and every config.json of Mamba-2 with it.
TEST(JsonFile, TakesInfinityAsAValue) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(parse(R"({"a": [0.0, Infinity], "b":-Infinity ,"c": Infinity})"),
            json({{"a", {0.0, kInfinity}}, {"b", -kInfinity}, {"c", kInfinity}}));
  EXPECT_EQ(
      parse(R"({"Infinity": "-Infinity", "b": "a\" Infinity", "c": "\\", "d": Infinity})"),
      json({{"Infinity", "-Infinity"}, {"b", "a\" Infinity"}, {"c", "\\"}, {"d", kInfinity}}));
  const auto error = [](const std::string& text) { return error_of([&] { parse(text); }); };
  for (const std::string value :
       {"NaN", "infinity", "Infinity1", "xInfinity", "--Infinity", "+Infinity", "- Infinity",
        "1Infinity", "Infinity.0", "Infinit", "-Infinity-", "InfinityInfinity", "[Infinity 1]"}) {
    EXPECT_THAT(error("{\"a\": " + value + "}"), HasSubstr("wanted JSON, found none at byte "))
        << value;
  }
  EXPECT_EQ(error("{Infinity : 1}"), "config.json: wanted JSON, found none at byte 2");
  EXPECT_EQ(error("{\"a\": Infinity, x}"), "config.json: wanted JSON, found none at byte 17");
  EXPECT_EQ(error("Infinity"), "config.json: wanted a JSON object, found number");
  EXPECT_EQ(
      error_with("{\"a\": Infinity}", [](ConfigReader& r) { r.optional_number("a", 0, 0, 1); }),
      "d/config.json: a: wanted a number from 0 to 1, found Infinity");
}

TEST(JsonFile, RefusesFilesTooLargeOrNotThere) {
  const TempDir dir;
  write_file(dir / "a.json", "{\"a\": 1}");
  EXPECT_EQ(read_json_file(dir / "a.json", 8), json({{"a", 1}}));
  EXPECT_THAT(error_of([&] { read_json_file(dir / "a.json", 7); }),
              HasSubstr("a.json: wanted at most 7 bytes, found 8"));
  EXPECT_THAT(error_of([&] { read_json_file(dir / "b.json", 7); }),
              HasSubstr("b.json: wanted a readable file, found: No such file"));
}

}  // namespace recurve::config_reader_test
