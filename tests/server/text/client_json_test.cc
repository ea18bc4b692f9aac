// JSON of clients: read as nlohmann's own parser reads it, in time and memory of its bytes.
#include "server/text/client_json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <random>

#include "tests/support/amount.h"

namespace recurve::client_json_test {

using Json = nlohmann::json;
using ::testing::HasSubstr;

Json read(const std::string& text, size_t most_levels = 64) {
  return read_client_json(text, "the body", most_levels, {});
}

JsonRefused refusal_of(const std::string& text, size_t most_levels = 64) {
  try {
    read(text, most_levels);
  } catch (const JsonRefused& refused) {
    return refused;
  }
  ADD_FAILURE() << "it is read";
  return JsonRefused("");
}

std::string list_of(const std::string& value, size_t count) {
  std::string list = "[";
  for (size_t i = 0; i < count; ++i) list += (i == 0 ? "" : ",") + value;
  return list + "]";
}

Json random_json(std::mt19937& random, int levels) {
  const uint32_t kind = random() % (levels > 0 ? 9 : 7);
  if (kind == 0) return nullptr;
  if (kind == 1) return random() % 2 == 0;
  if (kind == 2) return -static_cast<int64_t>(random());
  if (kind == 3) return uint64_t{random()} << 32;
  if (kind == 4) return static_cast<double>(random()) / 7;
  if (kind < 7) return std::string(random() % 20, static_cast<char>('a' + random() % 26));
  Json made = kind == 7 ? Json::array() : Json::object();
  for (uint32_t i = random() % 5; i > 0; --i) {
    Json value = random_json(random, levels - 1);
    if (kind == 7) {
      made.push_back(std::move(value));
    } else {
      made[fmt::format("k{}", i)] = std::move(value);
    }
  }
  return made;
}

TEST(ClientJson, IsReadAsTheLibraryReadsIt) {
  for (const char* text : {"1", "\"a\"", "[]", "{}", R"({"a":[{"b":[]},[[1]],{}],"c":{"a":null}})",
                           R"(["\u00e9\ud83e\udd99", 1e400, -0.0, 18446744073709551615])"}) {
    if (!Json::accept(text)) {
      EXPECT_THROW(read(text), JsonRefused) << text;
    } else {
      EXPECT_EQ(read(text), Json::parse(text)) << text;
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const Json wanted = random_json(random, 6);
    EXPECT_EQ(read(wanted.dump(i % 3 - 1)), wanted);
  }
}

TEST(ClientJson, EveryTruncationIsRefused) {
  const std::string text = R"({"a":[{"b":"é"},[[-1.5e3]],{}],"c":{"a":null,"d":true}})";
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THAT(refusal_of(text.substr(0, size)).what(), HasSubstr("the body must be JSON"));
  }
}

TEST(ClientJson, ANameIsSaidOnce) {
  EXPECT_EQ(read(R"([{"a":1},{"a":2}])").size(), 2u);
  const JsonRefused refused = refusal_of(R"({"b":{"a":1},"a":1,"b":2})");
  EXPECT_EQ(refused.field, "b");
  EXPECT_STREQ(refused.what(), "b must be said once, and is said twice");
}

TEST(ClientJson, HasSoManyLevels) {
  EXPECT_NO_THROW(read("[[{}]]", 3));
  EXPECT_STREQ(refusal_of("[[{\"a\":[]}]]", 3).what(),
               "the body must be JSON of at most 3 levels, got more");
}

TEST(ClientJson, OfValuesThatTakeManyTimesTheirBytesIsRefused) {
  for (const char* value : {"{}", "[]", "\"\"", "[[]]", R"({"a":{}})"}) {
    EXPECT_THAT(refusal_of(list_of(value, 1'000'000)).what(),
                HasSubstr("the body must be JSON of fewer small values"))
        << value;
  }
  EXPECT_EQ(read(list_of("12345", 1'000'000)).size(), 1'000'000u) << "ids of a long prompt";
  EXPECT_EQ(read("[\"" + std::string(4 << 20, 'a') + "\"]")[0].get<std::string>().size(), 4 << 20);
  EXPECT_EQ(read(list_of(R"({"role":"user","content":"What do you mean?"})", 15'000)).size(),
            15'000u);
}

// After each object the library's parser with a callback goes through the whole list again.
TEST(ClientJson, TakesTimeByItsLength) {
  const std::string text = list_of("{}", 80'000);
  timespec before{}, after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  EXPECT_EQ(read(text).size(), 80'000u);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  const auto seconds = static_cast<double>(after.tv_sec - before.tv_sec) +
                       static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
  if (!testing::kSanitized) {
    EXPECT_LT(seconds, 0.5);
  }
}

TEST(ClientJson, EndsWhereNobodyWantsIt) {
  const std::atomic<bool> unwanted = true;
  const std::string text = "[\"" + std::string(1 << 20, 'a') + "\"]";
  EXPECT_THROW(read_client_json(text, "the body", 64, {&unwanted}), WorkUnwanted);
}

}  // namespace recurve::client_json_test
