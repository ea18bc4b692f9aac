// Prompts with common prefixes: where their states are cached, and what answers report about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::service_prefix_test {

using ::testing::HasSubstr;

std::unique_ptr<ServerProcess> start(const std::vector<std::string>& more = {},
                                     const std::string& threads = "1") {
  std::vector<std::string> flags = {
      "--model",         std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books",
      "--chat-template", "chatml",
      "--threads",       threads};
  flags.insert(flags.end(), more.begin(), more.end());
  return std::make_unique<ServerProcess>(flags);
}

struct Said {
  std::vector<int32_t> ids;
  v1::Usage usage;
};
Said ask(Client& client, v1::GenerateRequest request) {
  request.mutable_stop()->set_max_tokens(4);
  request.mutable_sampling()->set_temperature(0);
  Said said;
  said.usage = client
                   .generate(request,
                             [&](const v1::GenerateResponse& response) {
                               const auto& ids = response.chunk().ids();
                               said.ids.insert(said.ids.end(), ids.begin(), ids.end());
                             })
                   .usage();
  return said;
}

class ServedPrefix : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = start(); }
  static void TearDownTestSuite() { server_.reset(); }

  Said ask(v1::GenerateRequest request) {
    return service_prefix_test::ask(client_, std::move(request));
  }
  // The same tokens and log-probabilities, to the bit, as without a cached state.
  Said expect_cold(v1::GenerateRequest request) {
    Said said = ask(request);
    request.set_prefix(v1::PREFIX_MODE_OFF);
    EXPECT_EQ(ask(request).ids, said.ids);
    return said;
  }

  static std::unique_ptr<ServerProcess> server_;
  Client client_{server_->address()};
};
std::unique_ptr<ServerProcess> ServedPrefix::server_;

std::string text_of(const std::string& about, int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    text += "It was a cold evening in the " + about + ", number " + std::to_string(i) + ". ";
  }
  return text;
}

v1::GenerateRequest messages(const std::vector<std::pair<std::string, std::string>>& said) {
  v1::GenerateRequest request;
  for (const auto& [role, content] : said) {
    v1::Messages::Message& message = *request.mutable_messages()->add_messages();
    message.set_role(role);
    message.set_content(content);
  }
  return request;
}

TEST_F(ServedPrefix, StartsAtTheClientsPoint) {
  const std::string document = text_of("library", 200);
  const auto asked = [&](const std::string& about) {
    return generate_request(document + text_of(about, 30), 4);
  };
  v1::GenerateRequest first = asked("garden");
  first.add_prefix_points(static_cast<int64_t>(document.size()));
  EXPECT_EQ(ask(first).usage.prefix_miss(), v1::PREFIX_MISS_NEW);
  const v1::Usage usage = expect_cold(asked("kitchen")).usage;
  const int64_t chunk = client_.model_info().chunk_tokens();
  EXPECT_GT(usage.prefix_tokens(), 1000);
  EXPECT_EQ(usage.prefix_tokens() % chunk, 0);
  EXPECT_EQ(usage.prefix_lost_tokens(), 0);
  EXPECT_LE(usage.prefix_replayed_tokens(), chunk);
  EXPECT_EQ(usage.prefix_miss(), v1::PREFIX_MISS_NONE);
}

TEST_F(ServedPrefix, ReportsTokensReplayedWithoutAState) {
  const std::string document = text_of("station", 200);
  ask(generate_request(document + text_of("east", 30), 4));
  const v1::Usage usage = expect_cold(generate_request(document + text_of("west", 30), 4)).usage;
  EXPECT_EQ(usage.prefix_tokens(), 0);
  EXPECT_GT(usage.prefix_replayed_tokens(), 1000);
  EXPECT_EQ(usage.prefix_lost_tokens(), 0);
  EXPECT_EQ(usage.prefix_miss(), v1::PREFIX_MISS_NOT_KEPT);
}

// A conversation starts after the system prompt of an earlier one.
TEST_F(ServedPrefix, StartsAfterTheSystemPrompt) {
  const std::string system = text_of("office", 100);
  const auto conversation = [&](const std::string& about) {
    return messages({{"system", system}, {"user", text_of(about, 30)}});
  };
  EXPECT_EQ(ask(conversation("morning")).usage.prefix_tokens(), 0);
  const v1::Usage usage = expect_cold(conversation("night")).usage;
  EXPECT_GT(usage.prefix_tokens(), 500);
  v1::GenerateRequest named = conversation("noon");
  named.add_prefix_points(2);
  EXPECT_GT(ask(named).usage.prefix_tokens(), 500);
  named.add_prefix_points(3);
  try {
    ask(named);
    ADD_FAILURE() << "there are two messages";
  } catch (const ClientError& error) {
    EXPECT_EQ(error.code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(error.what(), HasSubstr("prefix_points must be in [1, 2], got 3"));
  }
}

// Of a conversation with another last question only that question is processed.
TEST_F(ServedPrefix, StartsBeforeTheLastQuestion) {
  const auto conversation = [&](const std::string& question) {
    return messages({{"user", text_of("orchard", 60)},
                     {"assistant", text_of("cellar", 60)},
                     {"user", question + text_of("attic", 20)}});
  };
  EXPECT_EQ(ask(conversation("What then? ")).usage.prefix_tokens(), 0);
  const v1::Usage usage = expect_cold(conversation("Why so? ")).usage;
  EXPECT_GT(usage.prefix_tokens(), 600);
  EXPECT_LE(usage.prefix_replayed_tokens(), client_.model_info().chunk_tokens());
}

// Waits until so many states are on disk.
v1::Load::Prefixes written(Client& client, int64_t states) {
  v1::Load::Prefixes prefixes;
  EXPECT_TRUE(comes_true([&] {
    prefixes = client.load().prefixes();
    return prefixes.disk_states() >= states;
  }));
  return prefixes;
}

TEST(PrefixesOfAServerBefore, SurviveAKill) {
  const TempDir dir;
  const std::string document = text_of("harbour", 200);
  v1::GenerateRequest asked = generate_request(document + text_of("north", 30), 4);
  asked.add_prefix_points(static_cast<int64_t>(document.size()));
  const std::vector<std::string> flags = {"--state-dir", (dir / "states").string()};
  Said before;
  {
    auto server = start(flags);
    Client client(server->address());
    before = ask(client, asked);
    EXPECT_EQ(before.usage.prefix_miss(), v1::PREFIX_MISS_NEW);
    const v1::Load::Prefixes there = written(client, 2);
    EXPECT_GE(there.disk_bytes(), 2 * client.model_info().state_bytes());
    EXPECT_LE(there.disk_bytes(), client.load().sessions().disk_bytes());
    EXPECT_GT(there.limit_bytes(), there.bytes());
    server->signal(SIGKILL);
    server->wait();
  }
  // The bits do not depend on the number of threads.
  auto server = start(flags, "2");
  Client client(server->address());
  EXPECT_THAT(server->log(), HasSubstr("found 0 sessions, "));
  EXPECT_THAT(server->log(), HasSubstr(" for both, what sessions have not reserved"));
  EXPECT_GE(client.load().prefixes().disk_states(), 2);
  EXPECT_EQ(client.load().prefixes().states(), 0);
  const Said again = ask(client, asked);
  EXPECT_EQ(again.ids, before.ids);
  EXPECT_LT(again.usage.prompt_tokens() - again.usage.prefix_tokens(),
            2 * client.model_info().chunk_tokens());
  EXPECT_EQ(again.usage.prefix_miss(), v1::PREFIX_MISS_NONE);
  // Cached states are counted after the answer's end.
  EXPECT_TRUE(comes_true([&] { return client.load().prefixes().states() == 1; }));
  // From the client's point too.
  v1::GenerateRequest other = generate_request(document + text_of("south", 30), 4);
  const Said warm = ask(client, other);
  EXPECT_GT(warm.usage.prefix_tokens(), 1000);
  other.set_prefix(v1::PREFIX_MODE_OFF);
  EXPECT_EQ(ask(client, other).ids, warm.ids);
}

// States of the same model with other weights are not used, and damaged ones are set aside.
TEST(PrefixesOfAServerBefore, AreNotUsedForOtherWeightsOrDamaged) {
  const TempDir dir;
  const v1::GenerateRequest asked = generate_request(text_of("harbour", 200), 4);
  std::vector<std::string> flags = {"--state-dir", (dir / "states").string()};
  {
    auto server = start(flags);
    Client client(server->address());
    ask(client, asked);
    written(client, 1);
  }
  {
    std::vector<std::string> other = flags;
    other.insert(other.end(), {"--weights", "bf16"});
    auto server = start(other);
    Client client(server->address());
    EXPECT_GE(client.load().prefixes().disk_states(), 1);
    EXPECT_EQ(ask(client, asked).usage.prefix_miss(), v1::PREFIX_MISS_NEW);
  }
  for (const auto& file : std::filesystem::directory_iterator(dir / "states")) {
    if (!file.path().filename().string().starts_with("segment-")) continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t at = 100'000; at < file.file_size(); at += 50'000) {
      bytes.seekp(static_cast<std::streamoff>(at));
      bytes.put('\x5a').put('\xa5').put('\x5a');
    }
  }
  auto server = start(flags);
  Client client(server->address());
  const Said said = ask(client, asked);
  EXPECT_EQ(said.usage.prefix_miss(), v1::PREFIX_MISS_ON_DISK);
  EXPECT_GT(said.usage.prefix_lost_tokens(), 1000);
  EXPECT_THAT(server->log(), HasSubstr("event=prefix_not_read"));
  v1::GenerateRequest cold = asked;
  cold.set_prefix(v1::PREFIX_MODE_OFF);
  EXPECT_EQ(ask(client, cold).ids, said.ids);
  int set_aside = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir / "states")) {
    set_aside += file.path().filename().string().starts_with("set-aside-state-");
  }
  EXPECT_EQ(set_aside, 1);
}

}  // namespace recurve::testing::service_prefix_test
