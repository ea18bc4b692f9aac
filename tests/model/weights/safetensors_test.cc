#include "model/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <span>

#include "model/weights/convert.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::safetensors_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "w.safetensors");
}

// The example of the format's description, byte by byte, with the padding its writers add.
TEST(Safetensors, ReadsTheFormatAsPublished) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
                             R"("a":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}}   )";
  const std::string data("\x00\x3c\x00\xc0\x00\x00\x80\x3f\x00\x00\x00\xc0", 12);
  const SafetensorsHeader parsed = parse(safetensors_bytes(header, data));
  EXPECT_EQ(parsed.data_begin, 8 + header.size());
  ASSERT_EQ(parsed.entries.size(), 2u);
  EXPECT_EQ(parsed.entries[0].name, "a");
  EXPECT_EQ(parsed.entries[0].type, StoredType::kF16);
  EXPECT_EQ(parsed.entries[0].shape, (Shape{1, 2}));
  EXPECT_EQ(parsed.entries[1].name, "b");
  EXPECT_EQ(parsed.entries[1].begin, 4u);
  EXPECT_EQ(parsed.entries[1].end, 12u);

  const TempDir dir;
  write_file(dir / "w.safetensors", safetensors_bytes(header, data));
  const SafetensorsFile file(dir / "w.safetensors");
  ASSERT_NE(file.find("a"), nullptr);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(host_values(*file.find("a")), (std::vector<float>{1, -2}));
  EXPECT_EQ(host_values(*file.find("b")), (std::vector<float>{1, -2}));
}

TEST(Safetensors, AcceptsScalarsEmptyTensorsAndNoTensors) {
  EXPECT_TRUE(parse(safetensors_bytes("{}", "")).entries.empty());
  const auto header = parse(SafetensorsWriter()
                                .add_f32("scalar", {}, {3})
                                .add_f32("empty", {0, 5}, {})
                                .add("bytes", "U8", {3}, "abc")
                                .bytes());
  EXPECT_EQ(header.entries.size(), 3u);
}

TEST(Safetensors, ReadsDataOfAnyAlignment) {
  const TempDir dir;
  for (int shift = 0; shift < 8; ++shift) {
    SafetensorsWriter()
        .add("a", "U8", {shift}, std::string(shift, 'x'))
        .add_f32("b", {3}, {1.5f, -2, 1e-30f})
        .add_bf16("c", {1}, {0x3f80})
        .write(dir / "w.safetensors");
    const SafetensorsFile file(dir / "w.safetensors");
    EXPECT_EQ(host_values(*file.find("b")), (std::vector<float>{1.5f, -2, 1e-30f}));
    EXPECT_EQ(host_values(*file.find("c")), (std::vector<float>{1}));
  }
}

struct Bad {
  friend void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.what; }
  const char* what;
  std::string bytes;
  std::vector<std::string> says;
};

std::string one(const std::string& entry, size_t data_bytes) {
  return safetensors_bytes("{\"x\":" + entry + "}", std::string(data_bytes, '\0'));
}

std::string two(const std::string& begin_end, const std::string& begin_end2, size_t data_bytes) {
  const auto entry = [](const std::string& offsets) {
    return R"({"dtype":"U8","shape":[4],"data_offsets":)" + offsets + "}";
  };
  return safetensors_bytes(R"({"x":)" + entry(begin_end) + R"(,"y":)" + entry(begin_end2) + "}",
                           std::string(data_bytes, '\0'));
}

std::vector<Bad> bad_lengths() {
  return {
      {"empty", "", {"wanted a safetensors file", "found only 0 bytes"}},
      {"short", "\1\0\0", {"found only"}},
      {"length_only", std::string(8, '\0'), {"header that begins with"}},
      {"length_beyond_file", safetensors_bytes("{}", "", 3), {"at most 2 bytes", "says it has 3"}},
      {"length_huge",
       safetensors_bytes("{}", "", UINT64_MAX),
       {"says it has 18446744073709551615"}},
      {"length_above_limit",
       safetensors_bytes("{}", std::string(100, ' '), kMaxSafetensorsHeader + 1),
       {"says it has 100000001"}},
      {"length_zero", safetensors_bytes("{}", "", 0), {"header that begins with"}},
      {"length_cuts_header", safetensors_bytes("{}", "", 1), {"wanted JSON, found none at byte"}},
      {"not_an_object", safetensors_bytes("[]", ""), {"header that begins with"}},
  };
}

std::vector<Bad> bad_json() {
  const std::string deep(1000, '[');
  return {
      {"no_json", safetensors_bytes("{x", ""), {"wanted JSON, found none at byte 2"}},
      {"rest_after_json", safetensors_bytes("{}{}", ""), {"wanted JSON, found none at byte 3"}},
      {"zeros_after_json",
       safetensors_bytes(std::string("{}\0\0", 4), ""),
       {"found a zero at byte 3"}},
      {"bad_utf8", safetensors_bytes("{\"\xff\":1}", ""), {"wanted JSON"}},
      {"number_too_large", safetensors_bytes("{\"x\":1e999}", ""), {"wanted JSON"}},
      {"entry_is_number",
       safetensors_bytes("{\"x\":1}", ""),
       {"tensor \"x\"", "found the number 1"}},
      {"entry_is_null",
       safetensors_bytes("{\"x\":null}", ""),
       {"an object for each", "found null"}},
      {"entry_is_array", safetensors_bytes("{\"x\":[]}", ""), {"tensor \"x\"", "found an array"}},
      {"deep", safetensors_bytes("{\"x\":" + deep, ""), {"found an array"}},
      {"metadata_number",
       safetensors_bytes(R"({"__metadata__":{"a":1}})", ""),
       {"__metadata__", "wanted text"}},
      {"metadata_deep", safetensors_bytes(R"({"__metadata__":{"a":{}}})", ""), {"found an object"}},
      {"metadata_twice",
       safetensors_bytes(R"({"__metadata__":{},"__metadata__":{}})", ""),
       {"__metadata__", "found two"}},
      {"control_characters_in_name",
       safetensors_bytes(R"({"a\n\u0001\"":1})", ""),
       {R"(tensor "a\x0a\x01\"")"}},
      {"long_name",
       safetensors_bytes("{\"" + std::string(5000, 'n') + "\":1}", ""),
       {std::string(200, 'n') + "\"..."}},
  };
}

std::vector<Bad> bad_entries() {
  return {
      {"no_fields", one("{}", 0), {"tensor \"x\"", "found no dtype"}},
      {"no_offsets", one(R"({"dtype":"U8","shape":[0]})", 0), {"found no data_offsets"}},
      {"no_shape", one(R"({"dtype":"U8","data_offsets":[0,0]})", 0), {"found no shape"}},
      {"unknown_field",
       one(R"({"dtype":"U8","shape":[0],"data_offsets":[0,0],"stride":1})", 0),
       {"found the key \"stride\""}},
      {"field_twice",
       one(R"({"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]})", 0),
       {"found \"dtype\" twice"}},
      {"unknown_dtype",
       one(R"({"dtype":"F31","shape":[0],"data_offsets":[0,0]})", 0),
       {"tensor \"x\"", "wanted a dtype", "found \"F31\""}},
      {"dtype_number",
       one(R"({"dtype":32,"shape":[0],"data_offsets":[0,0]})", 0),
       {"the name of a type", "found the number 32"}},
      {"shape_negative",
       one(R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})", 4),
       {"wanted no negative number, found -4"}},
      {"shape_fraction",
       one(R"({"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})", 4),
       {"whole numbers as shape", "found the number \"4.0\""}},
      {"shape_text",
       one(R"({"dtype":"U8","shape":["4"],"data_offsets":[0,4]})", 4),
       {"whole numbers as shape", "found \"4\""}},
      {"shape_number",
       one(R"({"dtype":"U8","shape":4,"data_offsets":[0,4]})", 4),
       {"an array of whole numbers", "found the number 4"}},
      {"shape_nested",
       one(R"({"dtype":"U8","shape":[[4]],"data_offsets":[0,4]})", 4),
       {"an array of whole numbers", "found an array"}},
      {"rank",
       one(R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]})", 1),
       {"wanted at most 8 dimensions"}},
      {"shape_above_int64",
       one(R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4]})", 4),
       {"found 9223372036854775808"}},
      {"shape_above_uint64",
       one(R"({"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4]})", 4),
       {"found the number \"18446744073709551616\""}},
      {"product_overflows",  // 2^32 * 2^32 = 0 modulo 2^64
       one(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0),
       {"[4294967296, 4294967296]", "more than any file holds"}},
      {"product_of_bytes_overflows",  // 2^62 * 4 = 0 modulo 2^64
       one(R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})", 0),
       {"more than any file holds"}},
      {"offsets_one",
       one(R"({"dtype":"U8","shape":[4],"data_offsets":[4]})", 4),
       {"wanted two data_offsets, found 1"}},
      {"offsets_three",
       one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4,8]})", 4),
       {"wanted two data_offsets, found more"}},
      {"offsets_backward",
       one(R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})", 4),
       {"inside the 4 bytes", "found [4, 0]"}},
      {"offsets_negative",
       one(R"({"dtype":"U8","shape":[4],"data_offsets":[-4,0]})", 4),
       {"wanted no negative number, found -4"}},
      {"offsets_beyond",
       one(R"({"dtype":"U8","shape":[5],"data_offsets":[0,5]})", 4),
       {"inside the 4 bytes", "found [0, 5]"}},
      {"offsets_wrap",
       one(R"({"dtype":"U8","shape":[4],"data_offsets":[18446744073709551612,0]})", 4),
       {"inside the 4 bytes"}},
      {"shape_lies",
       one(R"({"dtype":"F32","shape":[2,3],"data_offsets":[0,16]})", 16),
       {"tensor \"x\"", "wanted 24 bytes for F32 [2, 3]", "found 16"}},
      {"dtype_lies",
       one(R"({"dtype":"F16","shape":[4],"data_offsets":[0,16]})", 16),
       {"wanted 8 bytes for F16 [4]", "found 16"}},
  };
}

std::vector<Bad> bad_layouts() {
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  return {
      {"overlap",
       two("[0,4]", "[2,6]", 6),
       {"tensor \"y\"", "[2, 6] that overlap [0, 4]", "tensor \"x\""}},
      {"same_data", two("[0,4]", "[0,4]", 4), {"overlap"}},
      {"gap", two("[0,4]", "[6,10]", 10), {"tensor \"y\"", "gap up to byte 6"}},
      {"gap_at_start", two("[2,6]", "[6,10]", 10), {"tensor \"x\"", "from byte 0 on"}},
      {"truncated", two("[0,4]", "[4,8]", 7), {"tensor \"y\"", "inside the 7 bytes"}},
      {"rest", two("[0,4]", "[4,8]", 9), {"wanted 8 bytes of data", "found 9"}},
      {"name_twice",
       safetensors_bytes("{\"x\":" + entry + ",\"y\":" + entry + ",\"x\":" + entry + "}", ""),
       {"tensor \"x\"", "found two"}},
      {"name_twice_escaped",
       safetensors_bytes("{\"x\":" + entry + ",\"\\u0078\":" + entry + "}", ""),
       {"tensor \"x\"", "found two"}},
  };
}

class BadSafetensors : public ::testing::TestWithParam<Bad> {};

TEST_P(BadSafetensors, IsRefusedInOneSentence) {
  const std::string error = error_of([&] { parse(GetParam().bytes); });
  EXPECT_THAT(error, ::testing::StartsWith("w.safetensors: "));
  EXPECT_THAT(error, ::testing::Not(HasSubstr("\n")));
  EXPECT_LT(error.size(), 700u);
  for (const std::string& says : GetParam().says) EXPECT_THAT(error, HasSubstr(says));
}

const auto kName = [](const auto& info) { return std::string(info.param.what); };
INSTANTIATE_TEST_SUITE_P(Length, BadSafetensors, ::testing::ValuesIn(bad_lengths()), kName);
INSTANTIATE_TEST_SUITE_P(Json, BadSafetensors, ::testing::ValuesIn(bad_json()), kName);
INSTANTIATE_TEST_SUITE_P(Entry, BadSafetensors, ::testing::ValuesIn(bad_entries()), kName);
INSTANTIATE_TEST_SUITE_P(Layout, BadSafetensors, ::testing::ValuesIn(bad_layouts()), kName);

// A download that broke off is refused wherever it did.
TEST(Safetensors, RefusesEveryTruncation) {
  const std::string whole =
      SafetensorsWriter().add_f32("a", {2, 2}, {1, 2, 3, 4}).add_bf16("b", {3}, {1, 2, 3}).bytes();
  EXPECT_EQ(parse(whole).entries.size(), 2u);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(error_of([&] { parse(whole.substr(0, size)); }), "") << size;
  }
}

std::string open_error(const std::filesystem::path& path) {
  return error_of([&] { SafetensorsFile file(path); });
}

TEST(Safetensors, RefusesWhatIsNoReadableFile) {
  const TempDir dir;
  EXPECT_THAT(open_error(dir / "none"), AllOf(HasSubstr("none: "), HasSubstr("No such file")));
  EXPECT_THAT(open_error(dir.path()), HasSubstr("wanted a file, found a directory"));
  write_file(dir / "empty", "");
  EXPECT_THAT(open_error(dir / "empty"), HasSubstr("found only 0 bytes"));
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(open_error(dir / "pipe"), HasSubstr("found a device or pipe"));
  if (geteuid() == 0) return;  // root reads everything
  write_file(dir / "secret", safetensors_bytes("{}", ""));
  ASSERT_EQ(chmod((dir / "secret").c_str(), 0), 0);
  EXPECT_THAT(open_error(dir / "secret"), HasSubstr("Permission denied"));
}

TEST(Safetensors, NoticesAFileThatWasCut) {
  const TempDir dir;
  const auto path = dir / "w.safetensors";
  SafetensorsWriter().add_f32("a", {100000}, std::vector<float>(100000, 1)).write(path);
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, 5000);
  EXPECT_THAT(error_of([&] { host_values(*file.find("a")); }),
              AllOf(HasSubstr(path.string()), HasSubstr("was cut to 5000")));
}

}  // namespace recurve::safetensors_test
