// JSON of clients: read as nlohmann's own parser reads it, in time and memory of its bytes.
#include "server/text/json/client_json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <random>

#include "tests/support/amount.h"

namespace recurve::client_json_test {

using Json = ClientJson;
using ::testing::HasSubstr;

Json read(const std::string& text, size_t most_levels = 64) {
  ValueBudget budget{.most = most_values(text.size())};
  return read_client_json(text, "the body", most_levels, {}, budget);
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
    EXPECT_THAT(refusal_of(text.substr(0, size)).what(), HasSubstr("the body must be valid JSON"));
  }
}

TEST(ClientJson, ANameIsSaidOnce) {
  EXPECT_EQ(read(R"([{"a":1},{"a":2}])").size(), 2u);
  const JsonRefused refused = refusal_of(R"({"b":{"a":1},"a":1,"b":2})");
  EXPECT_EQ(refused.field, "b");
  EXPECT_STREQ(refused.what(), "b must be given once, got it twice");
}

TEST(ClientJson, HasSoManyLevels) {
  EXPECT_NO_THROW(read("[[{}]]", 3));
  EXPECT_STREQ(refusal_of("[[{\"a\":[]}]]", 3).what(),
               "the body must be JSON of at most 3 levels, got more");
}

TEST(ClientJson, HasSoManyValues) {
  const auto refusal = [](const std::string& text) -> std::string {
    ValueBudget budget{.most = 100};
    try {
      read_client_json(text, "the body", 64, {}, budget);
    } catch (const TooManyValues& refused) {
      return refused.what();
    }
    return "";
  };
  for (const char* value : {"{}", "[]", "\"\"", "0", "null", "1.5"}) {
    EXPECT_EQ(refusal(list_of(value, 99)), "") << value;
    EXPECT_EQ(refusal(list_of(value, 100)),
              "the body must have at most 100 values except token ids in lists, got more")
        << value;
  }
  EXPECT_EQ(refusal(list_of("[0]", 49)), "");
  EXPECT_NE(refusal(list_of("[0]", 50)), "");
  EXPECT_EQ(refusal(list_of(R"({"a":0})", 49)), "");
  EXPECT_NE(refusal(list_of(R"({"a":0})", 50)), "");
  EXPECT_EQ(read(list_of(R"({"role":"user","content":"What do you mean?"})", 10'000)).size(),
            10'000u);
}

TEST(ClientJson, ListsOfTokenIdsAreNoValues) {
  const std::string_view fields[] = {"prompt", "tokens"};
  const auto read_ids = [&](const std::string& text) {
    ValueBudget budget{.most = 100};
    return read_client_json(text, "the body", 64, {}, budget, fields);
  };
  Json body = read_ids(R"({"n":1,"prompt":)" + list_of("12345", 1'000'000) + R"(,"x":[1,[2]]})");
  EXPECT_EQ(take_ids(body["prompt"]), std::vector<int32_t>(1'000'000, 12345));
  EXPECT_TRUE(take_ids(body["prompt"]).empty());
  EXPECT_EQ(body["x"], Json({1, {2}}));
  body = read_ids(R"({"prompt":[[1,2],[],[-1, 2147483647]],"tokens":[7]})");
  EXPECT_EQ(take_ids(body["prompt"][0]), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(body["prompt"][1], Json::array());
  EXPECT_EQ(take_ids(body["prompt"][2]), (std::vector<int32_t>{-1, INT32_MAX}));
  for (const char* wide : {"3000000000", "-3000000000", "18446744073709551615"}) {
    try {
      read_ids(fmt::format(R"({{"prompt":[1,{}]}})", wide));
      ADD_FAILURE() << wide;
    } catch (const JsonRefused& refused) {
      EXPECT_EQ(refused.what(), fmt::format("prompt must be token ids of 32 bits, got {}", wide));
      EXPECT_EQ(refused.field, "prompt");
    }
  }
  EXPECT_EQ(take_ids(body["tokens"]), std::vector<int32_t>{7});
  // Those of the body's own fields, and no other.
  EXPECT_EQ(read_ids(R"({"x":{"prompt":[1]},"prompt":{"a":[1]}})")["x"]["prompt"], Json({1}));
  EXPECT_EQ(read_ids(R"({"prompt":["a",[1]]})")["prompt"][0], "a");
  for (const char* other : {"\"a\"", "1.5", "null", "{}", "[]", "true"}) {
    try {
      read_ids(fmt::format(R"({{"prompt":[1,{}]}})", other));
      ADD_FAILURE() << other;
    } catch (const JsonRefused& refused) {
      EXPECT_EQ(refused.field, "prompt");
      EXPECT_THAT(refused.what(), HasSubstr("prompt must be a list of token ids, got "));
    }
  }
}

// After each object the library's parser with a callback goes through the whole list again.
TEST(ClientJson, TakesTimeByItsLength) {
  const std::string text = list_of("{}", 30'000);
  timespec before{}, after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  EXPECT_EQ(read(text).size(), 30'000u);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  const auto seconds = static_cast<double>(after.tv_sec - before.tv_sec) +
                       static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
  if (!testing::kSanitized) {
    EXPECT_LT(seconds, 0.5);
  }
}

TEST(ClientJson, EndsWhenCancelled) {
  const std::atomic<bool> unwanted = true;
  const std::string text = "[\"" + std::string(1 << 20, 'a') + "\"]";
  ValueBudget budget{.most = 100};
  EXPECT_THROW(read_client_json(text, "the body", 64, {&unwanted}, budget), WorkUnwanted);
}

}  // namespace recurve::client_json_test
